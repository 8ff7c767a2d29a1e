#!/usr/bin/env bash
# TCP on loopback, in turns: what iperf3 sends on one connection, and what one consumer gets of records in memory. Then sends with
# and without MSG_ZEROCOPY. Needs iperf3, which it installs with apt-get if it is missing.
#   docs/bench/tcp.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=${1:-5}
command -v iperf3 >/dev/null || { apt-get update && apt-get install -y --no-install-recommends iperf3; } >/dev/null
cargo build --release --quiet -p bench -p cli
data=$(mktemp -d "${TMPDIR:-/var/tmp}/tcp.XXXXXX")
target/release/freezeframe serve --data-dir "$data/data" --kafka 127.0.0.1:0 --durability os \
    --set storage.tail-bytes=4GiB >"$data/ready" 2>"$data/log" &
server=$!
iperf3 --server --bind 127.0.0.1 --port 5299 >/dev/null 2>&1 &
iperf=$!
stop() {
    kill "$server" "$iperf" 2>/dev/null || true
    wait
    rm -rf "$data"
}
trap stop EXIT
until address=$(grep -o 'ready kafka=[^ ]*' "$data/ready"); do
    kill -0 "$server" || { cat "$data/log" >&2; exit 1; }
    sleep 0.1
done
for ((round = 1; round <= rounds; round++)); do
    iperf3 --client 127.0.0.1 --port 5299 --time 3 --length 128K --json >>"$data/iperf"
    target/release/freezeframe-bench consume --bootstrap "${address##*=}" --pid "$server" --size 1KiB --bytes 1GiB --json >>"$data/consume"
done
python3 - "$data/iperf" "$data/consume" <<'PY'
import json, statistics, sys

def documents(path):
    text, at = open(path).read().strip(), 0
    while at < len(text):
        document, end = json.JSONDecoder().raw_decode(text, at)
        yield document
        at = end + 1

iperf = [run["end"] for run in documents(sys.argv[1])]
rates = [end["sum_received"]["bits_per_second"] / 8e6 for end in iperf]
cpu = [end["cpu_utilization_percent"]["host_total"] / 100 / (rate / 1e3) for end, rate in zip(iperf, rates)]
consumed = [run["figures"] for run in documents(sys.argv[2])]
ours, ours_cpu = ([run[key] for run in consumed] for key in ("mb_per_s", "broker_cpu_s_per_gb"))
shares = [one / other for one, other in zip(ours, rates)]
print(f"iperf3, one connection   {statistics.median(rates):6.0f} MB/s   {statistics.median(cpu):5.3f} sender CPU s/GB")
print(f"consume from memory      {statistics.median(ours):6.0f} MB/s   {statistics.median(ours_cpu):5.3f} broker CPU s/GB   {statistics.median(shares):.2f} of iperf3")
PY
python3 docs/bench/zerocopy.py "$rounds"
