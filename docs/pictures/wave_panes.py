"""wave.png: three panes of the wave, animated: as of a moment, the newest records, and offsetsForTimes live.

`freezeframe-bench wave` films the tank with a server of its own, and writes each frame of each movie. This script puts the panes
of three of them side by side. It needs Pillow, which draw.sh installs into a directory of its own.
"""

import json
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from service import Service

# Where `freezeframe-bench` draws a movie in the picture of one of its frames, in pixels.
LEFT, TOP, SIDE = 332, 94, 300
PANES = [
    ("c", "As of a moment of user time"),
    ("a", "The newest records, one by one"),
    ("live", "offsetsForTimes, while it is live"),
]
MARGIN, HEAD, FOOT = 14, 62, 34
# How many frames there are at most, and how many bytes the file may have.
COUNT, BYTES = 30, 600_000
BACKGROUND, TEXT, DIM, GOOD, BAD = (10, 14, 20), (231, 237, 243), (139, 154, 168), (94, 214, 150), (255, 122, 89)


def film(binary, directory):
    """The results of a run that kept its pace."""
    bench = Path(binary).absolute().parent / "freezeframe-bench"
    with Service(binary) as service:
        command = [bench, "wave", "--bootstrap", service.kafka, "--out", directory, "--all-frames", directory]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    if "did not keep the pace" in run.stdout + run.stderr:
        raise SystemExit(f"wave.png: the machine was too busy, try again: {run.stdout.splitlines()[-1]}")
    return json.loads((directory / "results.json").read_text())


def first_frame(movies):
    """The frame that is shown where nothing is played: the median of those in which offsetsForTimes is wrong."""
    wrong = enumerate(movies["live"]["wrong_cells"])
    # Not while the first drops fall, and not so late that the animation would end.
    inside = sorted((cells, nth) for nth, cells in wrong if cells and 20 <= nth < 100 - COUNT)
    return inside[len(inside) // 2][1]


def pane(directory, movie, frame):
    sheet = Image.open(directory / f"{movie}-{frame + 1:03}.png").convert("RGB")
    box = (LEFT, TOP, LEFT + SIDE, TOP + SIDE)
    return sheet.crop(box)


def compose(directory, results, movies, frame):
    picture = Image.new("RGB", (MARGIN + len(PANES) * (SIDE + MARGIN), HEAD + SIDE + FOOT), BACKGROUND)
    drawing = ImageDraw.Draw(picture)
    title, small = ImageFont.load_default(18), ImageFont.load_default(15)
    for nth, (movie, name) in enumerate(PANES):
        x = MARGIN + nth * (SIDE + MARGIN)
        wrong = movies[movie]["wrong_cells"][frame]
        drawing.text((x, 12), name, TEXT, title)
        drawing.text((x, 36), f"{wrong:,} of 10,000 cells wrong", BAD if wrong else GOOD, small)
        picture.paste(pane(directory, movie, frame), (x, HEAD))
    seconds, delay = (frame + 1) * results["frame_ms"] / 1000, 2 * results["delay_ms"]
    foot = f"second {seconds:.1f} of the same water, seen by {results['cameras']} cameras that report up to {delay} ms late;"
    foot += " wrong is what differs from the truth"
    drawing.text((MARGIN, HEAD + SIDE + 9), foot, DIM, small)
    return picture


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(picture):
    """The rows of a picture with a palette. A row like the one above is all zeros (filter 2)."""
    width, height = picture.size
    data, rows, before = picture.tobytes(), bytearray(), None
    for y in range(height):
        row = data[y * width : (y + 1) * width]
        rows += b"\x02" + bytes(width) if row == before else b"\x00" + row
        before = row
    return zlib.compress(bytes(rows), 9)


def common_palette(pictures):
    colours = Image.new("RGB", (pictures[0].width, sum(it.height for it in pictures)))
    for nth, picture in enumerate(pictures):
        colours.paste(picture, (0, nth * picture.height))
    return colours.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def animated(pictures, frame_ms):
    """An APNG."""
    palette = common_palette(pictures)
    pictures = [it.quantize(palette=palette, dither=Image.Dither.NONE) for it in pictures]
    width, height = pictures[0].size
    parts = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))]
    parts.append(chunk(b"PLTE", bytes(palette.getpalette())))
    parts.append(chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    sequence = 0
    for nth, picture in enumerate(pictures):
        control = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, frame_ms, 1000, 0, 0)
        parts.append(chunk(b"fcTL", control))
        sequence += 1
        if nth == 0:
            parts.append(chunk(b"IDAT", packed(picture)))
        else:
            parts.append(chunk(b"fdAT", struct.pack(">I", sequence) + packed(picture)))
            sequence += 1
    parts.append(chunk(b"IEND", b""))
    return b"".join(parts)


def make(binary, directory):
    with tempfile.TemporaryDirectory() as frames:
        frames = Path(frames)
        results = film(binary, frames)
        movies = {movie["name"]: movie for movie in results["movies"]}
        first = first_frame(movies)
        pictures = [compose(frames, results, movies, nth) for nth in range(first, first + COUNT)]
        encoded = animated(pictures, results["frame_ms"])
        while len(encoded) > BYTES:
            pictures.pop()
            encoded = animated(pictures, results["frame_ms"])
        (directory / "wave.png").write_bytes(encoded)
