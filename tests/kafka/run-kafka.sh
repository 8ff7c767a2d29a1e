#!/usr/bin/env bash
# Runs a real Apache Kafka broker (KRaft, one combined node) to compare ourselves with.
#
#   run-kafka.sh DIR PORT [key=value…]
#
# Its data live in DIR, which is formatted when it is new. It listens on 127.0.0.1:PORT, with the controller on a
# free port, and prints `ready kafka=127.0.0.1:PORT` once it serves. It stays in the foreground: its process id is
# this script's, and SIGTERM stops it cleanly. Each key=value is a line of server.properties and wins over ours.
#
# The settings are Kafka's defaults, but for the replication factors (there is one broker) and for
# group.initial.rebalance.delay.ms=0, since waiting 3 s for more members only makes tests slow.
# Heap and collector are those of Kafka's own kafka-server-start.sh.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: run-kafka.sh DIR PORT [key=value…]" >&2
    exit 2
fi
dir=$1 port=$2
shift 2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$("$here/jars.sh")
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

if is_open "$port"; then
    echo "run-kafka.sh: something already listens on 127.0.0.1:$port" >&2
    exit 1
fi
controller_port=$((port + 10000 < 65536 ? port + 10000 : port - 10000))
while is_open "$controller_port"; do
    controller_port=$((20000 + RANDOM % 12000))
done

properties=$dir/server.properties
{
    cat <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$dir/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
END
    for line in "$@"; do
        echo "$line"
    done
} >"$properties"

quiet=-Dlog4j2.configurationFile=$here/log4j2.properties
if [[ ! -e $dir/data/meta.properties ]]; then
    java -Xshare:auto -XX:TieredStopAtLevel=1 "$quiet" -cp "$lib/*" kafka.tools.StorageTool format \
        --cluster-id freezeframe-oracle-001 --config "$properties" >&2
fi

# Kafka's port opens before the broker is unfenced. Metadata (api 3, version 0, no topics named) lists the brokers
# that are alive: until ours is, there are none. The answer starts with size, correlation id, count of brokers.
count_of_brokers() {
    is_open "$port" || return 1
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '\x00\x00\x00\x0e\x00\x03\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00' >&3
    timeout 2 head -c 12 <&3 | od -An -tx1 -j8 | tr -d ' \n'
    exec 3>&-
}

(
    broker=$$
    for _ in $(seq 600); do
        kill -0 "$broker" 2>/dev/null || exit 0
        if [[ $(count_of_brokers) == 00000001 ]]; then
            echo "ready kafka=127.0.0.1:$port"
            exit 0
        fi
        sleep 0.1
    done
    echo "run-kafka.sh: no answer within 60 s" >&2
    kill "$broker"
) &

exec java -Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 \
    -XX:+ExplicitGCInvokesConcurrent -XX:MaxInlineLevel=15 -Djava.awt.headless=true \
    "$quiet" -cp "$lib/*" kafka.Kafka "$properties"
