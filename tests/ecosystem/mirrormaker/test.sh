# MirrorMaker 2 copies between Apache Kafka and Freezeframe, in both directions at once and with kill -9; then one way, with names kept.
# Its settings are those of docs/MOVE.md, with these two servers, and with each interval a second.
settings_page=$here/../../docs/MOVE.md
python_programs "$here/mirrormaker/requirements.txt" "$cache/mirrormaker/python"
libraries=$cache/mirrormaker/libraries
if ! cmp -s "$here/mirrormaker/pom.xml" "$libraries/pom.xml"; then
    rm -rf "$libraries"
    mvn -B -q -Dstyle.color=never -f "$here/mirrormaker/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$libraries/lib" >"$work/maven.log" && cp "$here/mirrormaker/pom.xml" "$libraries/" ||
        fail "expected MirrorMaker to be fetched"
fi

# Both sides have rules, and let this test do everything.
authorizer=org.apache.kafka.metadata.authorizer.StandardAuthorizer
export FREEZEFRAME_KAFKA_AUTHORIZER_CLASS_NAME=$authorizer FREEZEFRAME_KAFKA_SUPER_USERS=User:ANONYMOUS
export FREEZEFRAME_KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS=0
start_server
kafka=127.0.0.1:$(free_port)
"$here/../kafka/run-kafka.sh" "$work/kafka" "${kafka#*:}" authorizer.class.name=$authorizer super.users=User:ANONYMOUS \
    >"$work/kafka.ready" 2>"$work/kafka.log" &
started+=($!)
until_holds "Kafka to be ready" grep -qs '^ready ' "$work/kafka.ready"

# start_mirrormaker NAME ARGUMENT…: with the block of the page that begins with `# NAME.properties`
start_mirrormaker() {
    awk -v first="# $1.properties" '$0 == "```" { inside = 0 } $0 == first { inside = 1 } inside' "$settings_page" |
        sed "s/old-kafka:9092/$kafka/; s/localhost:9092/$FREEZEFRAME_BOOTSTRAP/" >"$work/$1.properties"
    {
        printf '%s.interval.seconds = 1\n' refresh.topics refresh.groups sync.topic.configs sync.topic.acls emit.checkpoints \
            emit.heartbeats sync.group.offsets
        printf '%s.offset.flush.interval.ms = 1000\n' kafka freezeframe
    } >>"$work/$1.properties"
    java -Xmx512m -Dorg.slf4j.simpleLogger.showDateTime=true -cp "$libraries/lib/*" org.apache.kafka.connect.mirror.MirrorMaker \
        "$work/$1.properties" "${@:2}" >>"$work/$1.log" 2>&1 &
    mirrormaker=$!
    started+=("$mirrormaker")
}
kill_mirrormaker() { { kill -9 "$mirrormaker" && wait "$mirrormaker"; } 2>/dev/null; }
mirrors() { python "$here/mirrormaker/mirrors.py" "$kafka" "$FREEZEFRAME_BOOTSTRAP" "$@" >>"$work/mirrors.log" 2>&1; }

mirrors both-fill || fail "expected topics and groups to be filled"
before=$(freezeframe moment)
start_mirrormaker both-ways
mirrors both-compare || fail "expected copies in both directions"

mirrors both-grow &
growth=$!
mirrors both-wait-for-growth || fail "expected copies of what is new"
kill_mirrormaker
wait "$growth" || fail "expected more records"
start_mirrormaker both-ways
mirrors both-compare both-take-over || fail "expected copies without gaps and repetitions after a kill"
kill_mirrormaker

mirrors move-fill || fail "expected a topic and its group at Kafka"
start_mirrormaker move --clusters freezeframe
mirrors move-compare || fail "expected the topic with its name, and its group"
kill_mirrormaker
mirrors move-take-over || fail "expected the group to go on"

# System time begins when records arrive; user time is that of the source.
[[ $(freezeframe cat 'kafka.orders@u:2026-11-21 09:30Z' | wc -l) -eq 30 ]] || fail "expected the records of the first half hour"
if freezeframe cat "kafka.orders@$before" >"$work/before.log" 2>&1; then fail "expected no copy before the start of MirrorMaker"; fi

works "MirrorMaker 2" "$(pinned kafka.version "$here/mirrormaker/pom.xml")" \
    "both ways with Apache Kafka $(pinned kafka.version "$here/../kafka/pom.xml"), exactly once in spite of \`kill -9\`: records, settings, rules, heartbeats, and groups that go on on the other side; one way with names kept"
