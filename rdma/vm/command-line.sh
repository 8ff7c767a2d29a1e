#!/bin/bash
# In the virtual machine: the real program on both ends of a link, as its users have it. `rdma/vm/test` runs it.
set -euo pipefail

fail() { echo "FAILED: $*" >&2; tail -n 20 log >&2; exit 1; }
metric() { wget -q -O - http://127.0.0.1:8080/metrics | sed -n "s/^freezeframe_$1 //p"; }

freezeframe serve --data-dir /tmp/data --kafka "$RDMA_IP1:9092" --http 127.0.0.1:8080 >ready 2>log </dev/null &
server=$!
until grep -qs ready ready; do kill -0 $server || fail "the server does not start"; sleep 0.1; done
export FREEZEFRAME_BOOTSTRAP=$RDMA_IP1:9092

freezeframe doctor | tee doctor >&2
grep -q '^ok	RDMA link	' doctor || fail "doctor finds no link"
[ "$(metric link_written_bytes_total)" -gt 0 ] || fail "doctor's request did not go both ways"
for ((line = 1; line <= 10000; line++)); do printf '%0500d\n' "$line"; done >in
freezeframe topics create t
freezeframe produce t --link rdma <in
[ "$(metric link_read_bytes_total)" -gt 5000000 ] || fail "the records did not come by RDMA"
before=$(metric link_written_bytes_total)
freezeframe cat t --link tcp | cmp - in
[ "$(metric link_written_bytes_total)" = "$before" ] || fail "--link tcp uses RDMA"
for link in auto rdma; do freezeframe cat t --link $link | cmp - in; done
freezeframe consume t --link rdma --from-beginning --count 10000 | cmp - in
[ $(($(metric link_written_bytes_total) - before)) -gt 15000000 ] || fail "the records did not go by RDMA"
[ "$(metric link_copied_bytes_total)" = 0 ] || fail "payloads were copied"
until [ "$(metric links)" = 0 ]; do sleep 0.1; done

# A machine without a device says why, and goes on over TCP.
rdma link delete rxe0
freezeframe doctor --json >doctor
freezeframe cat t | cmp - in
rdma link delete rxe1
if freezeframe cat t --link rdma >out 2>error; then fail "there is no link"; fi
grep -q 'no RDMA device' error || fail "the error does not say what is missing: $(cat error)"
freezeframe cat t | cmp - in
kill $server
wait $server
