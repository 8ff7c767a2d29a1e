#!/usr/bin/env bash
# What Kafka Streams with group.protocol=streams (KIP-1071), and its administrators, see of a server.
#
#   groups.sh [--broker HOST:PORT]
#
# Without --broker the server is ours (FREEZEFRAME_BINARY, else target/release/freezeframe), on a directory of its own. Give one that
# is named group.streams.heartbeat.interval.ms=500 (Kafka: and group.streams.min.heartbeat.interval.ms=500). Java 17 and
# Maven are needed; the programs are built in the cache directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/streams
binary=${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}
broker=''
case ${1:-} in
    '') ;;
    --broker) broker=$2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

if [[ ! -e $cache/built || -n $(find "$here" -newer "$cache/built" -print -quit) ]]; then
    mvn -B -q -Dstyle.color=never -f "$here/pom.xml" -Dbuild.dir="$cache" package
    touch "$cache/built"
fi
work=$(mktemp -d)
server=0
trap '[[ $server -eq 0 ]] || { kill "$server" && wait "$server"; } 2>/dev/null || true; rm -rf "$work"' EXIT

if [[ -z $broker ]]; then
    "$binary" serve --data-dir "$work/data" --kafka 127.0.0.1:0 --set group.streams.heartbeat.interval.ms=500 \
        --set group.streams.session.timeout.ms=6000 >"$work/ready" 2>"$work/server.log" &
    server=$!
    for _ in $(seq 600); do
        grep -q '^ready ' "$work/ready" && break
        kill -0 "$server" 2>/dev/null || { echo "FAILED: the server ended"; tail "$work/server.log"; exit 1; }
        sleep 0.1
    done
    broker=$(sed -n 's/^ready kafka=\([^ ]*\).*/\1/p' "$work/ready")
    [[ -n $broker ]] || { echo "FAILED: the server is not ready after a minute"; exit 1; }
fi
TMPDIR=$work java -Djava.io.tmpdir="$work" -Xmx512m -cp "$cache/classes:$cache/lib/*" freezeframe.streams.Groups "$broker" "$(date +%s)-$$"
