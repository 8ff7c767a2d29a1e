#!/usr/bin/env bash
# Makes the wave again: starts Freezeframe and Apache Kafka, films, and writes what is beside this script.
#
#   remake.sh [option of `freezeframe-bench wave`…]      e.g. remake.sh --all-frames /tmp/frames
#   remake.sh --without-kafka [option…]                  no JDK and no Maven needed
#
# Both servers are on free ports of 127.0.0.1, with data in a temporary directory, and are stopped at the end.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
kafka=yes
if [[ ${1:-} == --without-kafka ]]; then
    kafka=no
    shift
fi

(cd "$root" && cargo build --release --quiet -p cli -p bench)
data=$(mktemp -d)
servers=()
stop() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    wait
    rm -rf "$data"
}
trap stop EXIT

# Waits until a server has said on which address it is ready.
ready() {
    for _ in $(seq 600); do
        if address=$(grep -o 'ready kafka=[^ ]*' "$1" 2>/dev/null); then
            echo "${address##*=}"
            return
        fi
        sleep 0.1
    done
    echo "remake.sh: no server is ready: $(tail -3 "$1")" >&2
    return 1
}

"$target/release/freezeframe" serve --data-dir "$data/ours" --kafka 127.0.0.1:0 --zookeeper off --http off \
    >"$data/ours.log" 2>"$data/ours.err" &
servers+=($!)
options=(--bootstrap "$(ready "$data/ours.log")")
if [[ $kafka == yes ]]; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$root/tests/kafka/run-kafka.sh" "$data/theirs" "$port" >"$data/theirs.log" 2>&1 &
    servers+=($!)
    options+=(--kafka "$(ready "$data/theirs.log")")
fi
"$target/release/freezeframe-bench" wave "${options[@]}" --out "$here" "$@"
