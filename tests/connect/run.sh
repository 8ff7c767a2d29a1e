#!/usr/bin/env bash
# Kafka Connect copies a file into a topic exactly once, and the topic into a file, while the worker and the server are
# killed.
#
#   run.sh [--kills N] [--lines N]
#
# Every few seconds the worker, or the server, gets kill -9 and starts again on what it left. In the end the topic must
# have each line of the file once and in order, and the file of the sink each line at least once. The server is ours
# (FREEZEFRAME_BINARY, else target/release/freezeframe), on a directory of its own. Java 17, Maven and curl are needed;
# Connect is fetched into the cache directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). It takes about
# three minutes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/connect
binary=${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}
kills=6 lines=20000
while [[ $# -gt 0 ]]; do
    case $1 in
        --kills) kills=$2 ;;
        --lines) lines=$2 ;;
        *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done

if [[ ! -e $cache/built || $here/pom.xml -nt $cache/built ]]; then
    mvn -B -q -Dstyle.color=never -f "$here/pom.xml" -Dbuild.dir="$cache" package
    touch "$cache/built"
fi
work=$(mktemp -d)
server=0 worker=0 writer=0
trap 'for one in $writer $worker $server; do [[ $one -eq 0 ]] || { kill -9 "$one" && wait "$one"; } 2>/dev/null || true; done; rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1"
    tail -n 5 "$work"/*.log
    exit 1
}

# until WHAT COMMAND…: waits for it, three minutes at most
until_holds() {
    local what=$1
    shift
    for _ in $(seq 900); do
        "$@" && return
        sleep 0.2
    done
    fail "expected $what within three minutes"
}

start_server() {
    "$binary" serve --data-dir "$work/data" --kafka "${kafka:-127.0.0.1:0}" >"$work/ready" 2>>"$work/server.log" &
    server=$!
    until_holds "the server to be ready" grep -q '^ready ' "$work/ready"
    kafka=$(sed -n 's/^ready kafka=\([^ ]*\).*/\1/p' "$work/ready")
}

rest=127.0.0.1:$((20000 + RANDOM % 10000))
start_worker() {
    java -Xmx512m -cp "$cache/lib/*" org.apache.kafka.connect.cli.ConnectDistributed "$work/worker.properties" >>"$work/worker.log" 2>&1 &
    worker=$!
}

is_up() { curl -fsS -o "$work/answer" "http://$rest/connectors" 2>/dev/null; }

# connector NAME JSON: waits until the worker takes it
connector() {
    put() {
        curl -fsS -o "$work/answer" -X PUT -H 'Content-Type: application/json' -d "$2" "http://$rest/connectors/$1/config" 2>/dev/null
    }
    until_holds "connector $1 to be taken" put "$1" "$2"
}

in_topic() { "$binary" consume lines --bootstrap "$kafka" --from-beginning --format values 2>/dev/null; }

start_server
cat >"$work/worker.properties" <<END
bootstrap.servers=$kafka
group.id=workers
listeners=http://$rest
config.storage.topic=connect-config
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
exactly.once.source.support=enabled
offset.flush.interval.ms=500
session.timeout.ms=6000
heartbeat.interval.ms=500
END
start_worker
touch "$work/in"
until_holds "the worker to answer" is_up
connector source '{"connector.class":"FileStreamSource","tasks.max":"1","file":"'"$work"'/in","topic":"lines","batch.size":"50","exactly.once.support":"required","transaction.boundary":"poll","producer.override.transaction.timeout.ms":"10000"}'
connector sink '{"connector.class":"FileStreamSink","tasks.max":"1","file":"'"$work"'/out","topics":"lines","consumer.override.isolation.level":"read_committed"}'

(
    for ((line = 1; line <= lines; line++)); do
        echo "line $line"
        ((line % (lines / (kills * 80)) > 0)) || sleep 0.1
    done >>"$work/in"
) &
writer=$!
for ((kill = 1; kill <= kills; kill++)); do
    sleep $((6 + RANDOM % 6)).$((RANDOM % 10))
    if ((kill % 2)); then
        echo "kill -9 of the server ($kill of $kills)"
        { kill -9 "$server" && wait "$server"; } 2>/dev/null || true
        start_server
    else
        echo "kill -9 of the worker ($kill of $kills)"
        { kill -9 "$worker" && wait "$worker"; } 2>/dev/null || true
        start_worker
    fi
done
wait "$writer"
writer=0

has_all() { [[ $(in_topic | wc -l) -ge $lines ]]; }
until_holds "$lines lines in the topic" has_all
cmp <(in_topic) "$work/in" || fail "expected the topic to have each line once and in order"
sink_has_all() { [[ -e $work/out && $(sort -u "$work/out" | grep -c '^line [0-9]*$') -eq $lines ]]; }
until_holds "each line in the sink's file" sink_has_all
echo "ok: $lines lines, each exactly once in the topic; $(wc -l <"$work/out") in the sink's file"
