#!/usr/bin/env bash
# Draws every picture of this directory again, from what the real binary answers.
#
#   draw.sh [BINARY]        BINARY: a `freezeframe`; without it, one is built
#
# It needs Python 3.11 and bash. Servers run on free ports of 127.0.0.1, with data in temporary directories.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=${1:-${CARGO_TARGET_DIR:-$root/target}/release/freezeframe}
if [[ $# -eq 0 ]]; then
    (cd "$root" && cargo build --release --quiet -p cli)
fi
python3 -B "$here/draw.py" "$binary"
