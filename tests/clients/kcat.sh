#!/usr/bin/env bash
# Debian's kcat, as it is, against a broker: as much of the common scenario as the tool can do.
#
#   kcat.sh --bootstrap HOST:PORT --run ID [--moments]
#
# With --moments, groups are set by the binary in FREEZEFRAME, or the one of the release build.
#
# kcat has no admin requests, so Kafka's own kafka-topics creates and deletes the topic, and it cannot choose a
# record's timestamp: the times here are those at which it sent them, and no step has them out of order.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/shell-steps.sh"

bootstrap='' run='' moments=
while [[ $# -gt 0 ]]; do
    case $1 in
        --bootstrap) bootstrap=$2 && shift 2 ;;
        --run) run=$2 && shift 2 ;;
        --moments) moments=1 && shift ;;
        *) break ;;
    esac
done
if [[ $# -gt 0 || -z $bootstrap || -z $run ]]; then
    echo "usage: kcat.sh --bootstrap HOST:PORT --run ID [--moments]" >&2
    exit 2
fi

topic=t-kcat-$run
group=g-$topic
codecs=(none gzip snappy lz4 zstd)
line='%p %o %T %k=%s %h\n'
freezeframe=${FREEZEFRAME:-$here/../../target/release/freezeframe}
started=()
trap 'for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT

security=() admin_config=() properties=()
protocol=PLAINTEXT
if [[ -n ${FREEZEFRAME_TLS_DIRECTORY:-} ]]; then
    directory=$FREEZEFRAME_TLS_DIRECTORY protocol=SSL
    security+=(-X ssl.ca.location="$directory/trust.pem" -X ssl.certificate.location="$directory/other.crt" -X ssl.key.location="$directory/other.key")
    properties+=("$(grep -v '^security.protocol' "$directory/java.properties")")
fi
if [[ -n ${FREEZEFRAME_SASL_MECHANISM:-} ]]; then
    user=$FREEZEFRAME_SASL_USER password=$FREEZEFRAME_SASL_PASSWORD
    [[ $protocol == SSL ]] && protocol=SASL_SSL || protocol=SASL_PLAINTEXT
    security+=(-X sasl.mechanism="$FREEZEFRAME_SASL_MECHANISM" -X sasl.username="$user" -X sasl.password="$password")
    [[ $FREEZEFRAME_SASL_MECHANISM == PLAIN ]] && module=plain.PlainLoginModule || module=scram.ScramLoginModule
    properties+=("sasl.mechanism=$FREEZEFRAME_SASL_MECHANISM"
        "sasl.jaas.config=org.apache.kafka.common.security.$module required username=\"$user\" password=\"$password\";")
fi
if [[ $protocol != PLAINTEXT ]]; then
    security+=(-X security.protocol="$protocol")
    printf '%s\n' "security.protocol=$protocol" "${properties[@]}" >"$work/admin.properties"
    admin_config=(--command-config "$work/admin.properties")
fi
admin() { "$here/../kafka/console.sh" kafka-topics --bootstrap-server "$bootstrap" "${admin_config[@]}" "$@"; }
# librdkafka's own time limits bound what it waits for; `timeout` is for what they do not cover.
kc() { timeout 60 kcat -b "$bootstrap" "${security[@]}" -X log_level=0 -X allow.auto.create.topics="${auto:-false}" "$@"; }
partitions() { kc -L -J | jq --arg name "$1" '.topics[] | select(.topic == $name) | .partitions | length'; }

# a, g

create() {
    admin --create --topic "$topic" --partitions 3 --replication-factor 1
    equal "partitions" 3 "$(partitions "$topic")"
}

auto_create() {
    echo v | auto=true kc -P -t "$topic-auto" -X message.timeout.ms=10000 || fail "expected a new topic to be made, saw an error"
    equal "values in it" v "$(kc -C -t "$topic-auto" -e -q)"
}

delete() {
    admin --delete --topic "$topic.*"
    wait_for "$topic to be gone" is_gone
}
is_gone() { [[ $(kc -L -J | jq -r '.topics[].topic') != *"$topic"* ]]; }

# c: two members, which join before there is anything to read, so that neither reads what the other has

join() {
    timeout 120 kcat -b "$bootstrap" "${security[@]}" -G "$group" "$topic" -u -f "$line" -X auto.offset.reset=earliest -Z \
        -X heartbeat.interval.ms=300 -X session.timeout.ms=10000 >"$work/$1.seen" 2>"$work/$1.log" &
    started+=($!)
}
# The last "assigned:" line of a member names its share.
share() { grep -a 'assigned:' "$work/$1.log" | tail -n 1 | grep -o "$topic \[[0-9]*\]" | wc -l; }
are_joined() { local l r; l=$(share left) r=$(share right); [[ $l -gt 0 && $r -gt 0 && $((l + r)) -eq 3 ]]; }
joined() { wait_for "two members to share 3 partitions" are_joined; }

# b: kcat sends a line KEY:VALUE a record; an empty value is null by -Z

lines() {
    local i
    for ((i = 0; i < $2; i++)); do
        if ((i % 50 == 7)); then echo "k-$i:"; else echo "k-$i:$1-$i"; fi
    done
}

produce() {
    lines "$1" "$2" | kc -P -t "$topic" -K: -Z -z "${3:-none}" -H h=1 -H h=2 -H "codec=$1" -X acks=all \
        -X enable.idempotence=true -X message.timeout.ms=10000 || fail "expected kcat to end well, saw that it did not"
}

# read_all TOPIC FILE: its records, in the order of partition and offset
read_all() { kc -C -t "$1" -o beginning -e -q -Z -f "$line" >"$2" && sort -n -k1,1 -k2,2 -o "$2" "$2"; }

sent_equals_read() {
    local codec label
    for codec in "${codecs[@]}"; do
        lines "$codec" 300 | sed "s/:\$/:NULL/; s/:/=/; s/\$/ h=1,h=2,codec=$codec/"
    done | sort >"$work/sent"
    read_all "$topic" "$work/all" || fail "expected to read $topic, saw an error"
    cut -d' ' -f4- "$work/all" | sort >"$work/read"
    same "keys, values and headers" "$work/sent" "$work/read"
    awk '$2 != next_one[$1]++ { print "expected dense offsets, saw", $0; bad = 1; exit } END { exit bad }' "$work/all" ||
        fail "expected dense offsets, saw a hole"
}

group_read() {
    wait_for "1500 records between both" are_read
    # In the order that each member read them: partition by partition, offsets rise.
    local member
    for member in left right; do
        awk '$2 != next_one[$1]++ { exit 1 }' "$work/$member.seen" || fail "expected order in each partition, saw none at $member"
    done
    sort -n -k1,1 -k2,2 "$work/left.seen" "$work/right.seen" >"$work/group"
    same "the group's records" "$work/all" "$work/group"
}
are_read() { [[ $(cat "$work/left.seen" "$work/right.seen" | wc -l) -ge 1500 ]]; }

# d: on SIGTERM kcat commits and leaves

leave() {
    kill "${started[@]}"
    local pid
    for pid in "${started[@]}"; do
        wait_for "kcat to end" is_ended "$pid"
    done
}
is_ended() { ! kill -0 "$1" 2>/dev/null; }

committed() {
    "$here/../kafka/console.sh" kafka-consumer-groups --bootstrap-server "$bootstrap" "${admin_config[@]}" --describe --offsets \
        --group "$group" | awk -v topic="$topic" '$2 == topic { print $3, $4 }' | sort >"$work/committed"
    awk '{ end[$1] = $2 + 1 } END { for (p in end) print p, end[p] }' "$work/all" | sort >"$work/ends"
    same "committed offsets" "$work/ends" "$work/committed"
}

resume() {
    produce resumed 6
    join third
    wait_for "6 records" has_lines "$work/third.seen" 6
    kill "${started[-1]}"
    wait_for "kcat to end" is_ended "${started[-1]}"
    lines resumed 6 | sed 's/:/=/; s/$/ h=1,h=2,codec=resumed/' | sort >"$work/sent"
    cut -d' ' -f4- "$work/third.seen" | sort >"$work/read"
    same "the rest" "$work/sent" "$work/read"
}
has_lines() { [[ $(wc -l <"$1") -ge $2 ]]; }

# e

seek_by_time() {
    read_all "$topic" "$work/all"
    local partition time
    for partition in 0 1 2; do
        # the times of the records at a quarter, a half and three quarters of the partition, and one ms later
        for time in $(awk -v p=$partition '$1 == p { t[n++] = $3 } END { for (q = 0; q <= 4; q++) { x = t[int((n - 1) * q / 4)]; printf "%d\n%d\n", x, x + 1 } }' "$work/all"); do
            local expected seen
            expected=$(awk -v p=$partition -v t="$time" '$1 == p && $3 >= t { print $2; found = 1; exit } END { if (!found) print -1 }' "$work/all")
            seen=$(kc -Q -t "$topic:$partition:$time" | awk '{ print $4 }')
            equal "offset at $time in partition $partition" "$expected" "$seen"
        done
    done
    time=$(awk '{ print $3 }' "$work/all" | sort -n | sed -n 700p)
    kc -C -t "$topic" -p 1 -o "s@$time" -e -q -Z -f "$line" >"$work/read"
    awk -v t="$time" '$1 == 1 && ($3 >= t || found) { found = 1; print }' "$work/all" >"$work/expected"
    same "records of partition 1 from time $time on" "$work/expected" "$work/read"
}

# f

slice_equals() {
    read_all "$1" "$work/read" || fail "expected to read $1, saw an error"
    same "records of $1" "$2" "$work/read"
}

ends_equal() {
    local partition
    for partition in 0 1 2; do
        equal "end of $1 [$partition]" "$(awk -v p=$partition '$1 == p { n = $2 + 1 } END { print n }' "$2")" \
            "$(kc -Q -t "$1:$partition:-1" | awk '{ print $4 }')"
    done
}

refused() {
    local said
    if said=$(echo v | kc -P -t "$1" -X message.timeout.ms=4000 2>&1); then
        fail "expected a record for $1 to be refused, saw it accepted"
    fi
    [[ ! ${said,,} =~ timed\ out|unknown\ (topic|partition) ]] || fail "expected a refusal, saw $said"
}

# sought M FIRST: the group is set to a moment, and a member of it reads all that came from there on.
sought() {
    local said
    said=$("$freezeframe" --bootstrap "$bootstrap" groups seek "$group" --at "s$1" 2>&1) || fail "expected the group to be set, saw $said"
    read_all "$topic" "$work/all"
    comm -13 <(sort "$2") <(sort "$work/all") | sort -n -k1,1 -k2,2 >"$work/expected"
    join sought
    wait_for "the records from the moment on" has_lines "$work/sought.seen" "$(wc -l <"$work/expected")"
    kill "${started[-1]}"
    wait_for "kcat to end" is_ended "${started[-1]}"
    sort -n -k1,1 -k2,2 "$work/sought.seen" >"$work/read"
    same "records from the moment on" "$work/expected" "$work/read"
}

moment_steps() {
    local first=$work/first second=$work/second between=$work/between m m2
    read_all "$topic" "$first"
    m=$(next_millisecond)
    step "f moments-produce" produce after 50
    m2=$(next_millisecond)
    read_all "$topic" "$second"
    comm -13 <(sort "$first") <(sort "$second") | sort -n -k1,1 -k2,2 >"$between"
    step "f moments-produce-later" produce later 5
    step "f moment-assigned" slice_equals "$topic.__at.s$m" "$first"
    step "f moment-second" slice_equals "$topic.__at.s$m2" "$second"
    step "f moment-end-offsets" ends_equal "$topic.__at.s$m" "$first"
    step "f window-assigned" slice_equals "$topic.__at.s$m..s$m2" "$between"
    step "f moment-with-at-sign" slice_equals "$topic@s$m" "$first"
    step "f window-with-at-sign" slice_equals "$topic@s$m..s$m2" "$between"
    step "f group-set-to-a-moment" sought "$m" "$first"
    step "f produce-refused .__at.s$m" refused "$topic.__at.s$m"
    step "f produce-refused .__at.s$m..s$m2" refused "$topic.__at.s$m..s$m2"
}

step "a create-topic" create
step "a auto-create-topic" auto_create
join left
join right
step "c group-join" joined
for codec in "${codecs[@]}"; do
    step "b produce-$codec" produce "$codec" 300 "$codec"
done
step "b read-back" sent_equals_read
step "c group-consume" group_read
step "d group-leaves" leave
step "d committed-offsets-read-back" committed
step "d group-resumes" resume
step "e seek-by-time" seek_by_time
if [[ $moments ]]; then
    moment_steps
fi
step "g delete-topic" delete
exit $((failures > 0))
