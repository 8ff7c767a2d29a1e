#!/usr/bin/env bash
# Measures what it costs to go back in time, and plots what was found.
#
#   time.sh [DIR [option of `freezeframe-bench time all`…]]
#
# DIR is on the disk to measure (default: a directory beside the build); what is written there is removed again. The
# server that it starts listens on a free port of 127.0.0.1 and is stopped at the end. Results go to results/time.json.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

(cd "$root" && cargo build --release --quiet -p bench -p cli)
mkdir -p "${1:-$target/bench-time}" "$here/results"
data=$(mktemp -d "${1:-$target/bench-time}/server.XXXXXX")
"$target/release/freezeframe" serve --data-dir "$data/data" --kafka 127.0.0.1:0 --zookeeper off --http off \
    >"$data/log" 2>"$data/err" &
server=$!
stop() {
    kill "$server" 2>/dev/null || true
    wait
    rm -rf "$data"
}
trap stop EXIT
until address=$(grep -o 'ready kafka=[^ ]*' "$data/log"); do
    kill -0 "$server" || { cat "$data/err" >&2; exit 1; }
    sleep 0.1
done
"$target/release/freezeframe-bench" time all --bootstrap "${address##*=}" --pid "$server" \
    --dir "${1:-$target/bench-time}" --results "$here/results/time.json" "${@:2}"
"$here/plots.sh" --plot-only
