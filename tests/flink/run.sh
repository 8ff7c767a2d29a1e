#!/usr/bin/env bash
# A Flink job with an exactly-once sink copies a topic, while the job and the server are killed.
#
#   run.sh [--broker HOST:PORT] [--kills N] [--lines N]
#
# Every few seconds the job, or the server, gets kill -9 and starts again on what it left, the job from its last checkpoint. In the end
# each line must have been copied once, as a consumer of committed records sees it. Without --broker the server is ours
# (FREEZEFRAME_BINARY, else target/release/freezeframe), on a directory of its own; a broker that is named is not killed. Java 17 and
# Maven are needed; the programs are built in the cache directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). It
# takes about two minutes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/flink
binary=${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}
broker='' kills=8 lines=20000
while [[ $# -gt 0 ]]; do
    case $1 in
        --broker) broker=$2 ;;
        --kills) kills=$2 ;;
        --lines) lines=$2 ;;
        *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done

if [[ ! -e $cache/built || -n $(find "$here" -newer "$cache/built" -print -quit) ]]; then
    mvn -B -q -Dstyle.color=never -f "$here/pom.xml" -Dbuild.dir="$cache" package
    touch "$cache/built"
fi
opens=(--add-opens=java.base/java.{lang,util,util.concurrent,io,net,nio,text,time}=ALL-UNNAMED)
java=(java -Xmx1g "${opens[@]}" -cp "$cache/classes:$cache/lib/*")
work=$(mktemp -d)
server=0 app=0
trap 'for one in $app $server; do [[ $one -eq 0 ]] || { kill -9 "$one" && wait "$one"; } 2>/dev/null || true; done; rm -rf "$work"' EXIT

start_server() {
    "$binary" serve --data-dir "$work/data" --kafka "${port:-127.0.0.1:0}" >"$work/ready" 2>>"$work/server.log" &
    server=$!
    for _ in $(seq 600); do
        grep -q '^ready ' "$work/ready" && break
        kill -0 "$server" 2>/dev/null || { echo "FAILED: the server ended"; tail "$work/server.log"; exit 1; }
        sleep 0.1
    done
    port=$(sed -n 's/^ready kafka=\([^ ]*\).*/\1/p' "$work/ready")
    [[ -n $port ]] || { echo "FAILED: the server is not ready after a minute"; exit 1; }
}

start_app() {
    "${java[@]}" freezeframe.flink.Copy "$port" "$id-in" "$id-out" "$work/checkpoints" >>"$work/app.log" 2>&1 &
    app=$!
}

id=copy-$(date +%s)-$$
port=$broker
[[ -n $broker ]] || start_server
"${java[@]}" freezeframe.flink.Check create "$port" "$id-in" "$id-out"
start_app
"${java[@]}" freezeframe.flink.Check produce "$port" "$id-in" "$lines" $((lines / (kills * 8))) &
producer=$!
for ((kill = 1; kill <= kills; kill++)); do
    sleep $((3 + RANDOM % 5)).$((RANDOM % 10))
    if [[ -n $broker || $((kill % 2)) -eq 0 ]]; then
        echo "kill -9 of the job ($kill of $kills)"
        kill -9 "$app" && wait "$app" 2>/dev/null || true
        start_app
    else
        echo "kill -9 of the server ($kill of $kills)"
        kill -9 "$server" && wait "$server" 2>/dev/null || true
        start_server
    fi
done
wait "$producer"
"${java[@]}" freezeframe.flink.Check verify "$port" "$id-out" "$lines" 180
