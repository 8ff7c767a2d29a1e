"""Draws the pictures beside this file: draw.py [--check] BINARY [PICTURE…]

Without names it draws all but wave.png, which needs Pillow, and `freezeframe-bench` beside BINARY. With --check it draws
elsewhere, and fails if what is here differs.
"""

import importlib
import sys
import tempfile
from pathlib import Path

PICTURES = {
    "sixty-seconds.svg": "sixty_seconds",
    "cut.svg": "cut",
    "two-times.svg": "two_times",
    "beside-kafka.svg": "beside_kafka",
    "architecture.svg": "architecture",
    "wave.png": "wave_panes",
}


HERE = Path(__file__).resolve().parent


def draw(binary, names, directory):
    for name in names:
        importlib.import_module(PICTURES[name]).make(binary, directory)
        print(f"{name}: {(directory / name).stat().st_size} bytes")


def differing(names, directory):
    """The pictures that are not what they were. Of the terminal, times and sizes do not count."""
    for name in names:
        before, after = ((it / name).read_text(encoding="utf-8") for it in (HERE, directory))
        if name == "sixty-seconds.svg":
            words = importlib.import_module(PICTURES[name]).words
            before, after = words(before), words(after)
        if before != after:
            yield name


def main(arguments):
    is_check = "--check" in arguments
    binary, *names = [it for it in arguments if it != "--check"]
    names = names or [name for name in PICTURES if name != "wave.png"]
    if not is_check:
        draw(binary, names, HERE)
        return
    with tempfile.TemporaryDirectory() as directory:
        draw(binary, names, Path(directory))
        if stale := list(differing(names, Path(directory))):
            sys.exit(f"stale: {', '.join(stale)}. Run docs/pictures/draw.sh, and look at what changed.")


if __name__ == "__main__":
    given = [it for it in sys.argv[1:] if it != "--check"]
    if not given or not set(given[1:]) <= set(PICTURES):
        sys.exit(f"usage: draw.py [--check] BINARY [{' | '.join(PICTURES)}]…")
    main(sys.argv[1:])
