#!/usr/bin/env bash
# Apache Kafka's console tools against a broker, as an operator would use them one after the other.
#
#   console.sh HOST:PORT RUN [--moments]
#
# The console producer gives each record the time at which it is sent.
set -uo pipefail
# Some forty tools, each a JVM that starts for a second or two.
limit_s=400
source "$(dirname "${BASH_SOURCE[0]}")/shell-steps.sh"

if [[ $# -lt 2 ]]; then
    echo "usage: console.sh HOST:PORT RUN [--moments]" >&2
    exit 2
fi
bootstrap=$1
topic=t-console-$2
group=g-$topic
moments=${3:-}
trap 'end_transactional; rm -rf "$work"' EXIT

tool() {
    local name=$1
    shift
    timeout 60 "$here/../kafka/console.sh" "$name" --bootstrap-server "$bootstrap" "$@" 2>"$work/stderr" ||
        fail "expected $name $* to end well, saw $(tail -n 3 "$work/stderr" | tr '\n' ' ')"
}

# has WHAT TEXT IN: `IN` contains `TEXT`
has() { [[ $3 == *"$2"* ]] || fail "expected $1 to have '$2', saw '$3'"; }
has_not() { [[ $3 != *"$2"* ]] || fail "expected $1 to have no '$2', saw '$3'"; }

broker_api_versions() {
    local seen
    seen=$(tool kafka-broker-api-versions)
    has "the answer" "$bootstrap (id: " "$seen"
    has "the answer" "ListOffsets(2): " "$seen"
}

create() {
    has "the answer" "Created topic $topic." "$(tool kafka-topics --create --topic "$topic" --partitions 3)"
    has "a second --create" "already exists" "$(timeout 60 "$here/../kafka/console.sh" kafka-topics \
        --bootstrap-server "$bootstrap" --create --topic "$topic" 2>&1)"
}

describe() {
    local seen
    seen=$(tool kafka-topics --describe --topic "$topic")
    has "the description" "PartitionCount: 3" "$seen"
    equal "count of leaders" 3 "$(grep -c "Leader: [0-9]" <<<"$seen")"
}

list() { has "the list" "$topic" "$(tool kafka-topics --list)"; }

alter() {
    tool kafka-topics --alter --topic "$topic" --partitions 4
    has "the description" "PartitionCount: 4" "$(tool kafka-topics --describe --topic "$topic")"
}

# produce FIRST LAST
produce() {
    local i
    for ((i = $1; i <= $2; i++)); do echo "k-$i:v-$i"; done >"$work/lines"
    tool kafka-console-producer --topic "$topic" --reader-property parse.key=true --reader-property key.separator=: \
        <"$work/lines"
}

# consume TOPIC COUNT ARGS…: reads COUNT records, and is content when there is none more for a moment
consume() {
    local from=$1 count=$2
    shift 2
    # The tool's time limit without a record ends it with an error that is none to us; it bounds --max-messages too.
    timeout 60 "$here/../kafka/console.sh" kafka-console-consumer --bootstrap-server "$bootstrap" --topic "$from" \
        --max-messages "$count" --timeout-ms 8000 --formatter-property print.timestamp=true \
        --formatter-property print.key=true --formatter-property print.partition=true \
        --formatter-property print.offset=true "$@" 2>"$work/stderr" >"$work/consumed"
    equal "count of records read from $from" "$count" "$(wc -l <"$work/consumed")"
}

# consumed FIRST LAST: those were read, once each
consumed() {
    local i
    for ((i = $1; i <= $2; i++)); do printf 'k-%d\tv-%d\n' "$i" "$i"; done | sort >"$work/expected"
    cut -f4,5 "$work/consumed" | sort >"$work/seen"
    same "keys and values" "$work/expected" "$work/seen"
}

consume_in_group() {
    consume "$topic" 20 --group "$group" --from-beginning
    consumed 1 20
    grep -vqE '^CreateTime:[0-9]{13}	Partition:[0-3]	Offset:[0-9]+	' "$work/consumed" &&
        fail "expected time, partition and offset in each line, saw $(head -n 1 "$work/consumed")"
    return 0
}

# sum COLUMN FILE of the group's lines for the topic; a dash counts nothing
sum() { awk -v topic="$topic" -v column="$1" '$2 == topic { sum += $column } END { print sum + 0 }' "$2"; }

describe_group() {
    tool kafka-consumer-groups --describe --group "$group" >"$work/groups"
    equal "sum of committed offsets" 20 "$(sum 4 "$work/groups")"
    equal "sum of log ends" 30 "$(sum 5 "$work/groups")"
    equal "sum of lags" 10 "$(sum 6 "$work/groups")"
    has "the list of groups" "$group" "$(tool kafka-consumer-groups --list)"
}

# reset SUM ARGS…: the offsets of all partitions, which then add up to SUM
reset() {
    local expected=$1
    shift
    tool kafka-consumer-groups --reset-offsets --group "$group" --topic "$topic" --execute "$@" >"$work/reset"
    equal "sum of new offsets" "$expected" "$(awk -v topic="$topic" '$2 == topic { sum += $4 } END { print sum + 0 }' "$work/reset")"
}

reset_to_datetime() {
    reset 20 --to-datetime "$(date -u -d "@$((between / 1000)).$(printf %03d $((between % 1000)))" +%Y-%m-%dT%H:%M:%S.%3NZ)"
    consume "$topic" 10 --group "$group"
    consumed 21 30
}

# offsets TIME: the offset that each partition has for it, added up
offsets() { tool kafka-get-offsets --topic "$topic" --time "$1" | awk -F: '{ sum += $3 } END { print sum + 0 }'; }

get_offsets() {
    equal "sum of earliest offsets" 0 "$(offsets -2)"
    equal "sum of latest offsets" 30 "$(offsets latest)"
    equal "partitions listed" 4 "$(tool kafka-get-offsets --topic "$topic" --time -1 | wc -l)"
    # A partition without a record after that time is not listed with an offset: compare those that have one.
    local seen expected
    tool kafka-get-offsets --topic "$topic" --time "$between" | awk -F: '$3 != "" { print $2, $3 }' | sort >"$work/seen"
    sed 's/^CreateTime:\([0-9]*\)\tPartition:\([0-9]*\)\tOffset:\([0-9]*\).*/\2 \3/' "$work/consumed" |
        sort -n -k1,1 -k2,2 | awk '!($1 in first) { first[$1] = $2; print $1, $2 }' | sort >"$work/expected"
    same "first offsets at or after $between" "$work/expected" "$work/seen"
}

configs() {
    tool kafka-configs --alter --entity-type topics --entity-name "$topic" --add-config retention.ms=123456789
    has "configs" "retention.ms=123456789" "$(tool kafka-configs --describe --entity-type topics --entity-name "$topic")"
    tool kafka-configs --alter --entity-type topics --entity-name "$topic" --delete-config retention.ms
    has_not "configs" "123456789" "$(tool kafka-configs --describe --entity-type topics --entity-name "$topic")"
}

delete_records() {
    local partition
    # one partition that holds records, up to its second one
    partition=$(sed -n '1s/.*Partition:\([0-9]*\).*/\1/p' "$work/consumed")
    printf '{"version": 1, "partitions": [{"topic": "%s", "partition": %d, "offset": 1}]}' "$topic" "$partition" \
        >"$work/delete.json"
    has "the answer" "low_watermark: 1" "$(tool kafka-delete-records --offset-json-file "$work/delete.json")"
    equal "sum of earliest offsets" 1 "$(offsets earliest)"
}

delete_group() {
    has "the answer" "was successful" "$(tool kafka-consumer-groups --delete --group "$group")"
    has_not "the list of groups" "$group" "$(tool kafka-consumer-groups --list)"
}

delete_topic() {
    tool kafka-topics --delete --topic "$topic"
    has_not "the list" "$topic" "$(tool kafka-topics --list)"
}

# open_start: the offset at which the open transaction of a producer of the topic begins
open_start() { tool kafka-transactions describe-producers --topic "$topic-txn" --partition 0 | awk 'NR > 1 { print $6 }'; }
is_open_from() { [[ $(open_start) == "$1" ]]; }

# Kafka's own load generator, which waits with its transaction open once it has sent two records: none a second is what
# it may send.
open_transaction() {
    tool kafka-topics --create --topic "$topic-txn" --partitions 1
    timeout "$limit_s" "$here/../kafka/console.sh" kafka-producer-perf-test --bootstrap-server "$bootstrap" \
        --topic "$topic-txn" --num-records 10 --payload-monotonic --throughput 0 \
        --transactional-id "$topic" --transaction-duration-ms 3600000 >"$work/load" 2>&1 &
    echo $! >"$work/transactional"
    wait_for "a transaction to be open" is_open_from 0
}

end_transactional() { [[ ! -e $work/transactional ]] || kill "$(<"$work/transactional")" 2>/dev/null; }

# column NAME: of the tool's answer, which has a line of names and one more
column() { awk -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) n = i } NR == 2 { print $n }'; }

transactions_list() {
    local seen
    seen=$(tool kafka-transactions list --transactional-id-pattern "$topic")
    equal "count of lines" 2 "$(wc -l <<<"$seen")"
    equal "id" "$topic" "$(column TransactionalId <<<"$seen")"
    equal "state" Ongoing "$(column TransactionState <<<"$seen")"
}

transactions_describe() {
    local seen
    seen=$(tool kafka-transactions describe --transactional-id "$topic")
    equal "state" Ongoing "$(column TransactionState <<<"$seen")"
    equal "partitions" "$topic-txn-0" "$(column TopicPartitions <<<"$seen")"
}

transactions_find_hanging() {
    local broker
    broker=$(tool kafka-broker-api-versions | sed -n 's/.*(id: \([0-9]*\) .*/\1/p')
    # Its coordinator knows of it, so it does not hang.
    equal "count of lines" 1 "$(tool kafka-transactions find-hanging --broker-id "$broker" --topic "$topic-txn" | wc -l)"
}

transactions_abort() {
    tool kafka-transactions abort --topic "$topic-txn" --partition 0 --start-offset 0
    equal "start of an open transaction" None "$(open_start)"
    end_transactional
    # Nothing is in the way of what comes later, and nothing comes before it.
    local topic=$topic-txn
    produce 1 1
    consume "$topic" 1 --from-beginning --isolation-level read_committed
    consumed 1 1
    tool kafka-topics --delete --topic "$topic"
}

moment() {
    consume "$1" 20 --from-beginning --group "g-at-$topic"
    consumed 1 20
    # kafka-get-offsets knows only topics that are listed, and a moment is not; the group's description asks for it.
    equal "sum of its end offsets" 20 "$(tool kafka-consumer-groups --describe --group "g-at-$topic" |
        awk -v topic="$1" '$2 == topic { sum += $5 } END { print sum }')"
}

step "broker-api-versions" broker_api_versions
step "topics-create" create
step "topics-describe" describe
step "topics-list" list
step "topics-alter" alter
step "console-producer" produce 1 20
step "console-consumer-in-group" consume_in_group
between=$(next_millisecond)
step "console-producer-later" produce 21 30
step "consumer-groups-describe" describe_group
step "consumer-groups-reset-to-datetime" reset_to_datetime
step "get-offsets" get_offsets
step "configs" configs
if [[ $moments == --moments ]]; then
    step "console-consumer-of-a-moment" moment "$topic.__at.s$between"
fi
step "transactional-producer-perf-test" open_transaction
step "transactions-list" transactions_list
step "transactions-describe" transactions_describe
step "transactions-find-hanging" transactions_find_hanging
step "transactions-abort" transactions_abort
step "delete-records" delete_records
step "consumer-groups-delete" delete_group
step "topics-delete" delete_topic
exit $((failures > 0))
