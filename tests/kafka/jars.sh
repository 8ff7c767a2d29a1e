#!/usr/bin/env bash
# Prints the directory that holds Apache Kafka's jars, filling it from Maven Central the first time.
#
# The version is the one in pom.xml. A directory counts as filled only when it holds a copy of that very
# pom.xml, put there last: a broken download is fetched again, a changed pom.xml too.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/pom.xml")
cache=${FREEZEFRAME_KAFKA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-kafka/$version}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if ! cmp -s "$here/pom.xml" "$cache/pom.xml"; then
    rm -rf "$cache/lib" "$cache/pom.xml" "$cache/tools.jsa"
    mvn -B -q -Dstyle.color=never -f "$here/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$cache/lib" >&2
    # A console tool spends most of its second or two on loading classes. The JVM can keep them, as one of the tools
    # leaves them that finds no broker; it ignores an archive that another JVM wrote.
    printf 'request.timeout.ms=200\ndefault.api.timeout.ms=300\n' >"$cache/train.properties"
    java -XX:ArchiveClassesAtExit="$cache/tools.jsa" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$cache/lib/*" org.apache.kafka.tools.TopicCommand \
        --bootstrap-server 127.0.0.1:1 --command-config "$cache/train.properties" --list >/dev/null 2>&1 || true
    cp "$here/pom.xml" "$cache/pom.xml"
fi
echo "$cache/lib"
