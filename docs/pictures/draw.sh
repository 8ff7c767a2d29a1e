#!/usr/bin/env bash
# Draws every picture of this directory again, from what the real binary answers.
#
#   draw.sh [BINARY]        BINARY: a `freezeframe`; without it, one is built, and `freezeframe-bench`
#
# It needs Python 3.11 and bash. The wave is filmed if `freezeframe-bench` is beside BINARY; for it, Pillow is installed
# into .venv beside this script. Servers run on free ports of 127.0.0.1, with data in temporary directories.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=${1:-${CARGO_TARGET_DIR:-$root/target}/release/freezeframe}
if [[ $# -eq 0 ]]; then
    (cd "$root" && cargo build --release --quiet -p cli -p bench)
fi
python3 -B "$here/draw.py" "$binary"

if [[ ! -x $(dirname "$binary")/freezeframe-bench ]]; then
    echo "draw.sh: wave.png is as it was: there is no freezeframe-bench beside $binary" >&2
    exit
fi
python=$here/.venv/bin/python
if ! "$python" -c 'import PIL' 2>/dev/null; then
    python3 -m venv "$here/.venv"
    "$here/.venv/bin/pip" install --quiet 'pillow>=11,<14'
fi
"$python" -B "$here/draw.py" "$binary" wave.png
