"""A small SVG writer: text stays text, and the same input gives the same bytes."""

from html import escape

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

INK = "#1b2733"
MUTED = "#566573"
RULE = "#d5dde5"
PANEL = "#f1f5f9"
BLUE = "#1f6fb2"
LIGHT_BLUE = "#dcebf8"
ORANGE = "#c2501a"
GREEN = "#2b7a4f"
WHITE = "#ffffff"


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Svg:
    """A picture with a background of its own, so that it reads on light and on dark pages."""

    def __init__(self, width, height, title, background=WHITE):
        self.size = (width, height)
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="{SANS}" font-size="14" fill="{INK}" role="img">',
            f"<title>{escape(title)}</title>",
        ]
        self.rect(0, 0, width, height, fill=background, radius=8)

    def add(self, markup):
        self.parts.append(markup)

    def text(self, x, y, text, size=14, fill=INK, anchor="start", bold=False, mono=False):
        style = f' font-size="{size}"' if size != 14 else ""
        style += f' fill="{fill}"' if fill != INK else ""
        style += f' text-anchor="{anchor}"' if anchor != "start" else ""
        style += ' font-weight="600"' if bold else ""
        style += f' font-family="{MONO}"' if mono else ""
        self.add(f'<text x="{number(x)}" y="{number(y)}"{style}>{escape(text, quote=False)}</text>')

    def rect(self, x, y, width, height, fill="none", stroke=None, radius=0, dash=None, line=1):
        style = f' rx="{radius}"' if radius else ""
        style += f' stroke="{stroke}" stroke-width="{line}"' if stroke else ""
        style += f' stroke-dasharray="{dash}"' if dash else ""
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self.add(f'<rect {place} fill="{fill}"{style}/>')

    def line(self, x1, y1, x2, y2, stroke=RULE, width=1, dash=None):
        style = f' stroke-dasharray="{dash}"' if dash else ""
        place = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        self.add(f'<line {place} stroke="{stroke}" stroke-width="{width}"{style}/>')

    def circle(self, x, y, radius, fill, stroke=None, width=2):
        style = f' stroke="{stroke}" stroke-width="{width}"' if stroke else ""
        self.add(f'<circle cx="{number(x)}" cy="{number(y)}" r="{radius}" fill="{fill}"{style}/>')

    def arrow(self, points, stroke=MUTED, width=1.5):
        """A line through the points, with a head at the last."""
        (x1, y1), (x2, y2) = points[-2:]
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        base = (x2 - 7 * ux, y2 - 7 * uy)
        path = " ".join(f"{number(x)},{number(y)}" for x, y in [*points[:-1], base])
        self.add(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"/>')
        left, right = (base[0] - 4 * uy, base[1] + 4 * ux), (base[0] + 4 * uy, base[1] - 4 * ux)
        head = " ".join(f"{number(x)},{number(y)}" for x, y in [(x2, y2), left, right])
        self.add(f'<polygon points="{head}" fill="{stroke}"/>')

    def write(self, path):
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")
