"""Draws the pictures beside this file: draw.py BINARY [PICTURE…]

Without names it draws all but wave.png, which needs Pillow, and `freezeframe-bench` beside BINARY.
"""

import importlib
import sys
from pathlib import Path

PICTURES = {
    "sixty-seconds.svg": "sixty_seconds",
    "cut.svg": "cut",
    "two-times.svg": "two_times",
    "beside-kafka.svg": "beside_kafka",
    "architecture.svg": "architecture",
    "wave.png": "wave_panes",
}


def main(binary, chosen):
    here = Path(__file__).resolve().parent
    for name in chosen or [name for name in PICTURES if name != "wave.png"]:
        importlib.import_module(PICTURES[name]).make(binary, here)
        print(f"{name}: {(here / name).stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(PICTURES):
        sys.exit(f"usage: draw.py BINARY [{' | '.join(PICTURES)}]…")
    main(sys.argv[1], sys.argv[2:])
