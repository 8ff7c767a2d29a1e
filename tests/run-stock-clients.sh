#!/usr/bin/env bash
# Starts the release build on a data directory of its own, and lets every stock client loose on it.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}
data=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    rm -rf "$data"
}
trap stop EXIT

part() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

mkfifo "$data/ready"
tests/zookeeper-clients/make-certificates.sh "$data/certificates"
printf 'Server {\n  login required user_member="a secret";\n};\n' >"$data/login.conf"
FREEZEFRAME_ZOOKEEPER_SUPERDIGEST=super:D/InIHSb7yEEbrWz8b9l71RjZJU= \
target/release/freezeframe serve --data-dir "$data/store" --set listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0 --zookeeper 127.0.0.1:0 --zookeeper-tls 127.0.0.1:0 --http 127.0.0.1:0 \
    --set ssl.keystore.location="$data/certificates/server.pem" --set ssl.truststore.location="$data/certificates/trust.pem" --set ssl.client.auth=required \
    --set group.initial.rebalance.delay.ms=0 --set zookeeper.extendedTypesEnabled=true \
    --set zookeeper.sasl.login-config="$data/login.conf" --set zookeeper.reconfigEnabled=true \
    --set zookeeper.ssl.keyStore.location="$data/certificates/server.p12" --set zookeeper.ssl.keyStore.passwordPath="$data/certificates/password" \
    --set zookeeper.ssl.trustStore.location="$data/certificates/trust.p12" --set zookeeper.ssl.trustStore.passwordPath="$data/certificates/password" \
    --set zookeeper.X509AuthenticationProvider.superUser=O=Frames,CN=root \
    --set storage.segment-bytes=1MiB --set log.cleaner.backoff.ms=200 --set log.segment.delete.delay.ms=1000 >"$data/ready" 2>"$data/log" &
server=$!
read -r -t 30 line <"$data/ready" || { cat "$data/log"; exit 1; }
kafka=$(sed -n 's/.*kafka=\([^ ]*\).*/\1/p' <<<"$line")
kafka_tls=$(sed -n 's/.*kafka-ssl=\([^ ]*\).*/\1/p' <<<"$line")
zookeeper=$(sed -n 's/.* zookeeper=\([^ ]*\).*/\1/p' <<<"$line")
http=$(sed -n 's/.* http=\([^ ]*\).*/\1/p' <<<"$line")
secure=$(sed -n 's/.*zookeeper-tls=\([^ ]*\).*/\1/p' <<<"$line")
echo "stock clients against freezeframe on $kafka, and for ZooKeeper on $zookeeper"

status=0
tests/clients/run-all.sh "$kafka" --moments || status=$?
part "the same over TLS, in a selection"
tests/clients/run-all.sh "$kafka_tls" --tls "$data/certificates" go sarama node confluent kafka-python || status=$?
part "Kafka's clients over TLS and SASL, with rules, on a server of their own"
tests/clients/security.sh || status=$?
part "libraries that read the past"
tests/clients/history.sh || status=$?
tests/zookeeper-clients/run-all.sh "$zookeeper" --past --sasl 'member:a secret' --tls "$secure=$data/certificates" || status=$?
part "HTTP, by its description in OpenAPI"
tests/clients/openapi.sh "$http" >"$data/openapi" || { status=$?; cat "$data/openapi"; }
part "Apache ZooKeeper, message by message"
tests/zookeeper-oracle/diff.sh "$zookeeper" "$cache/zookeeper-oracle" --seeds 10 || status=$?
part "imports from Apache ZooKeeper"
PORT_BASE=19500 "$cache/zookeeper-python/bin/python" tests/zookeeper-oracle/import.py target/release/freezeframe "$cache/zookeeper-oracle" ||
    status=$?
part "Apache Kafka in ZooKeeper mode"
tests/kafka-on-zookeeper/run.sh target/release/freezeframe || status=$?
part "other programs, the quick ones"
tests/ecosystem/run.sh duckdb kaskade rsyslog || status=$?
if ! kill -0 "$server" 2>/dev/null; then echo "the server is gone:"; status=1; fi
if [ "$status" != 0 ]; then echo "--- the server's log"; tail -n 50 "$data/log"; fi
exit "$status"
