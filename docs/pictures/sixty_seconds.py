"""sixty-seconds.svg: the README's sixty seconds, typed at a terminal of 80 columns.

A shell runs at a pseudo-terminal beside a server of its own. What it shows is drawn, and nothing else. Without
animation (in a program that does not play it, or for readers who ask for less motion) all of it is visible at once.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import tempfile
import termios
import time
from html import escape
from pathlib import Path

from service import Service
from svg import MONO, Svg, number

README = Path(__file__).resolve().parents[2] / "README.md"
COLUMNS, ROWS = 80, 26
PROMPT = "$ "
CELL, LEADING = 10.2, 20
BACKGROUND, TEXT, DIM = "#10161d", "#dfe7ee", "#7cc4f0"
# Seconds: for a key, before the answer, to read a line, and while all of it stays.
KEY, ANSWER, READ, STAY = 0.03, 0.25, 0.45, 8.0


def commands():
    """The lines of the block that tells the reader to paste it."""
    text = README.read_text(encoding="utf-8")
    section = text.split("\n## Sixty seconds\n", 1)[1].split("\n## ", 1)[0]
    block = re.search(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return block[1].splitlines()


class Terminal:
    """A screen as wide as a terminal, for programs that print lines and colours."""

    def __init__(self):
        self.lines = [""]

    def show(self, data):
        data = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
        for character in data:
            if character == "\n":
                self.lines.append("")
            elif character == "\t":
                self.lines[-1] += " " * (8 - len(self.lines[-1]) % 8)
            elif character.isprintable():
                if len(self.lines[-1]) == COLUMNS:
                    self.lines.append("")
                self.lines[-1] += character
            elif character not in "\r\x07":
                raise SystemExit(f"the terminal got {character!r}, which is not drawn")


class Shell:
    """An interactive bash at a pseudo-terminal."""

    def __init__(self, service, directory):
        settings = Path(directory) / "inputrc"
        settings.write_text("set enable-bracketed-paste off\n")
        environment = {**service.environment(), "PS1": PROMPT, "TERM": "xterm", "INPUTRC": str(settings)}
        environment |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "HISTFILE": "/dev/null"}
        self.terminal, child = pty.openpty()
        os.set_blocking(self.terminal, False)
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=child, stdout=child, stderr=child, env=environment,
            cwd=directory, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)
        self.read()

    def read(self):
        """What is printed until the next prompt."""
        data, deadline = b"", time.monotonic() + 30
        while not data.endswith(PROMPT.encode()):
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self.terminal], [], [], left)[0]:
                raise SystemExit(f"no prompt within 30 s after {data!r}")
            data += os.read(self.terminal, 1 << 16)
        return data.decode()[: -len(PROMPT)]

    def type(self, line):
        """What the line prints, without its echo."""
        os.write(self.terminal, line.encode() + b"\n")
        shown = self.read()
        echo = line + "\r\n"
        if not shown.startswith(echo):
            raise SystemExit(f"expected the echo of {line!r}, got {shown!r}")
        return shown[len(echo) :]

    def stop(self):
        """Hangs up, which ends the shell and whatever it still runs."""
        os.close(self.terminal)
        self.process.wait()


def record(service):
    """Each command with the lines that it printed."""
    with tempfile.TemporaryDirectory() as directory:
        shell = Shell(service, directory)
        try:
            shown = []
            for line in commands():
                screen = Terminal()
                screen.show(shell.type(line))
                shown.append((line, screen.lines[:-1]))
            return shown
        finally:
            shell.stop()


def pre(text):
    """Text whose spaces are not folded, in any program."""
    return escape(text, quote=False).replace("  ", "\u00a0\u00a0")


def words(picture):
    """What a picture says, without what differs from run to run."""
    texts = re.findall(r">([^<]*)</text>", picture)
    return [re.sub(r"(\bsh?)?\d[\w.,:-]*", "#", re.sub(r" in \d.*", "", text)) for text in texts]


def draw(shown, path):
    rows = sum(1 + len(lines) for _, lines in shown)
    widest = max(len(line) for command, lines in shown for line in [PROMPT + command, *lines])
    if rows >= ROWS or widest > COLUMNS:
        raise SystemExit(f"{rows} rows of {widest} columns do not fit on a screen of {ROWS} by {COLUMNS}")
    left, top = 42, 66
    height = top + ROWS * LEADING
    drawing = Svg(900, height, "A terminal: the sixty seconds of the README", BACKGROUND)
    for nth, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        drawing.circle(28 + 20 * nth, 24, 6, colour)
    drawing.text(450, 29, "freezeframe: sixty seconds", 14, "#8b9aa8", "middle")
    events, clock, row = [], 0.5, 0
    for command, lines in shown:
        start = clock
        clock += KEY * len(command)
        events.append((row, start, clock, PROMPT, command))
        row += 1
        clock += ANSWER
        for line in lines:
            events.append((row, clock, clock, "", line))
            row += 1
        clock += READ * max(1, len(lines))
    total = clock + STAY
    events.append((row, clock, clock, PROMPT, ""))
    style, body = [], []
    for nth, (row, start, end, prompt, text) in enumerate(events):
        y = top + LEADING * row
        name = f"e{nth}"
        begin = f"{100 * start / total:.2f}%"
        style.append(f"@keyframes {name}{{0%{{opacity:0}}{begin},100%{{opacity:1}}}}")
        style.append(f".{name}{{animation:{name} {total:.1f}s step-end infinite}}")
        body.append(f'<g class="{name}">')
        if prompt:
            body.append(f'<text x="{left}" y="{y}" fill="#28c840">$</text>')
        if text:
            x = left + CELL * len(prompt)
            fill = f' fill="{DIM}"' if prompt else ""
            length = f'textLength="{number(CELL * len(text))}" lengthAdjust="spacingAndGlyphs"'
            body.append(f'<text x="{number(x)}" y="{y}" {length}{fill}>{pre(text)}</text>')
        if prompt and text:
            width = CELL * len(text)
            # A lid of the background's colour slides off the line, a cell at a time.
            style.append(
                f"@keyframes k{nth}{{0%,{begin}{{transform:translateX({-width:.1f}px);"
                f"animation-timing-function:steps({len(text)},end)}}{100 * end / total:.2f}%,100%{{transform:none}}}}"
            )
            style.append(f".k{nth}{{animation:k{nth} {total:.1f}s infinite}}")
            place = f'x="{number(x + width)}" y="{y - 15}" width="{number(width)}" height="{LEADING}"'
            body.append(f'<rect class="k{nth}" {place} fill="{BACKGROUND}"/>')
        elif prompt:
            body.append(f'<rect x="{number(left + CELL * 2)}" y="{y - 14}" width="{CELL}" height="17" fill="{TEXT}"/>')
        body.append("</g>")
    # It begins with everything visible, for those who only see its first frame.
    style.append(f"*{{animation-delay:{3 - total:.1f}s!important}}")
    style.append("@media (prefers-reduced-motion:reduce){*{animation:none!important}}")
    drawing.add(f"<style>{''.join(style)}</style>")
    drawing.add(f'<g font-family="{MONO}" font-size="16" fill="{TEXT}">')
    drawing.parts += body
    drawing.add("</g>")
    drawing.write(path)


def make(binary, directory):
    with Service(binary) as service:
        shown = record(service)
    draw(shown, directory / "sixty-seconds.svg")
