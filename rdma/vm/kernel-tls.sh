#!/bin/bash
# In the virtual machine, whose kernel has TLS: a server that lets it encrypt, as its users have it. `rdma/vm/test` runs it.
# It needs server.pem, the server's key and certificates, and authority.crt, who signed them.
set -euo pipefail

fail() { echo "FAILED: $*" >&2; tail -n 20 log >&2; exit 1; }
taken_over() { awk '$1 == "TlsTxSw" { print $2 }' /proc/net/tls_stat; }

freezeframe serve --data-dir /tmp/data --set listeners=SSL://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092 \
    --set ssl.keystore.location=server.pem --set tls.kernel=true >ready 2>log </dev/null &
server=$!
until grep -qs ready ready; do kill -0 $server || fail "the server does not start"; sleep 0.1; done
grep -q 'the kernel encrypts' log || fail "the server does not say who encrypts"
export FREEZEFRAME_BOOTSTRAP=127.0.0.1:9093

before=$(taken_over)
for ((line = 1; line <= 10000; line++)); do printf '%0500d\n' "$line"; done >in
freezeframe topics create t --tls-trust authority.crt
freezeframe produce t --tls-trust authority.crt <in
freezeframe cat t --tls-trust authority.crt | cmp - in
FREEZEFRAME_BOOTSTRAP=127.0.0.1:9092 freezeframe cat t | cmp - in
[ "$(($(taken_over) - before))" -ge 3 ] || fail "the kernel has not taken the connections over: $(cat /proc/net/tls_stat)"
kill $server
wait $server
if grep -E 'WARN (compat_kafka|kafka_|engine_core)|ERROR' log >&2; then fail "the server warns"; fi
