#!/usr/bin/env bash
# Two brokers of the last Apache Kafka with a ZooKeeper mode, unchanged, on a freezeframe of their own.
#
#   run.sh FREEZEFRAME
#
# Brokers and server are killed on the way. Kafka's jars come from Maven Central, into the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). It prints a line for each step, and takes about a minute.
set -euo pipefail

freezeframe=$(realpath "${1:?usage: run.sh FREEZEFRAME}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/kafka-on-zookeeper
steps=$here/../zookeeper-clients/java/src/main/java/freezeframe/zookeeper/Steps.java

mkdir -p "$cache"
if ! cmp -s "$here/pom.xml" "$cache/pom.xml"; then
    rm -rf "$cache/lib"
    mvn -B -q -Dstyle.color=never -f "$here/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$cache/lib"
    cp "$here/pom.xml" "$cache/pom.xml"
fi
javac --release 17 -cp "$cache/lib/*" -d "$cache/classes" "$here/KafkaOnZooKeeper.java" "$steps"
cp "$here/log4j.properties" "$cache/classes/"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
status=0
java -cp "$cache/classes:$cache/lib/*" freezeframe.zookeeper.KafkaOnZooKeeper "$freezeframe" "$directory" 2>"$directory/log" || status=$?
if [ "$status" != 0 ]; then tail -n 20 "$directory"/*.log "$directory/log"; fi
exit "$status"
