#!/usr/bin/env bash
# Starts the release build on a data directory of its own, and lets every stock client loose on it.
set -euo pipefail
cd "$(dirname "$0")/.."

data=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    rm -rf "$data"
}
trap stop EXIT

mkfifo "$data/ready"
target/release/freezeframe serve --data-dir "$data/store" --kafka 127.0.0.1:0 --zookeeper off --http 127.0.0.1:0 \
    --set group.initial.rebalance.delay.ms=0 \
    --set storage.segment-bytes=1MiB --set log.cleaner.backoff.ms=200 --set log.segment.delete.delay.ms=1000 >"$data/ready" 2>"$data/log" &
server=$!
read -r -t 30 line <"$data/ready" || { cat "$data/log"; exit 1; }
kafka=$(sed -n 's/.*kafka=\([^ ]*\).*/\1/p' <<<"$line")
echo "stock clients against freezeframe on $kafka"

status=0
tests/clients/run-all.sh "$kafka" --moments || status=$?
if ! kill -0 "$server" 2>/dev/null; then echo "the server is gone:"; status=1; fi
if [ "$status" != 0 ]; then echo "--- the server's log"; tail -n 50 "$data/log"; fi
exit "$status"
