#!/usr/bin/env bash
# Measures the storage crate by the papers' experiments, and plots what was found.
#
#   plots.sh [DIR [option of `freezeframe-bench storage all`…]]
#
# DIR is on the disk to measure (default: a directory beside the build); what is written there is removed again.
# Results go to results/storage.json, plots to *.svg, both beside this script. matplotlib is installed into .venv
# beside it if it is not there yet. `plots.sh --plot-only` plots the results that are there, also those of time.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
results=$here/results/storage.json

if [[ ${1:-} != --plot-only ]]; then
    target=${CARGO_TARGET_DIR:-$root/target}
    (cd "$root" && cargo build --release --quiet -p bench)
    dir=${1:-$target/bench-storage}
    mkdir -p "$dir" "$(dirname "$results")"
    "$target/release/freezeframe-bench" storage all --dir "$dir" --results "$results" "${@:2}"
fi

python=$here/.venv/bin/python
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
    python3 -m venv "$here/.venv"
    "$here/.venv/bin/pip" install --quiet 'matplotlib>=3.9,<4'
fi
for results in "$here"/results/*.json; do
    "$python" "$here/plot.py" "$results" "$here"
done
