"""Draws the pictures beside this file: draw.py BINARY [PICTURE…]"""

import sys
from pathlib import Path

import architecture
import beside_kafka
import cut
import sixty_seconds
import two_times

PICTURES = {
    "sixty-seconds": sixty_seconds,
    "cut": cut,
    "two-times": two_times,
    "beside-kafka": beside_kafka,
    "architecture": architecture,
}


def main(binary, chosen):
    here = Path(__file__).resolve().parent
    for name in chosen or PICTURES:
        PICTURES[name].make(binary, here)
        picture = here / f"{name}.svg"
        print(f"{picture.name}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(PICTURES):
        sys.exit(f"usage: draw.py BINARY [{' | '.join(PICTURES)}]…")
    main(sys.argv[1], sys.argv[2:])
