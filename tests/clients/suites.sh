#!/usr/bin/env bash
# The test suites of stock clients themselves, against a broker that runs already, ours or Kafka's own (../kafka/run-kafka.sh).
#
#   suites.sh HOST:PORT [SUITE…]      SUITE: franz-go librdkafka
#
# The broker is to have num.partitions=4, as the suites expect. Each suite is installed from a registry at a pinned version
# (franz-go's module has its tests; librdkafka's are in the crate rdkafka-sys) and built in the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). Go, a C++ compiler with make, Java 17 and Maven are needed. Both
# suites together take about six minutes, and ten the first time. The output goes to *.log in the cache directory. The exit code is 1
# if a test failed that is not in the lists of known failures below.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/suites
franz_go=v1.22.2
rdkafka=4.10.0+2.12.1

# They name the topic __consumer_offsets, which is not here: offsets are events in the journal. They pass on Kafka.
without_internal_topics=(TestConsumeRegex TestConsumeRegexShareSkipsInternal Test848RegexBrokerResolves)
# They fail on one broker of Apache Kafka 4.3.1 too: they want topics with three replicas (0103, 0129), segments that are too small for it
# (0077), and an authorizer (the others). After a failure, <MAIN> fails because what the test left still runs.
on_kafka_too=(
    0077_compaction 0081_admin 0103_transactions 0109_auto_create_topics 0115_producer_auth 0119_consumer_auth
    0129_fetch_aborted_msgs '<MAIN>'
)

if [[ $# -lt 1 || $1 != *:* ]]; then
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
broker=$1
shift
suites=("$@")
[[ ${#suites[@]} -gt 0 ]] || suites=(franz-go librdkafka)
mkdir -p "$cache"

suite_franz-go() {
    local source=$cache/franz-go-$franz_go
    if [[ ! -e $source/built ]]; then
        rm -rf "$source"
        local module
        module=$(cd "$cache" && go mod download -json "github.com/twmb/franz-go@$franz_go" | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
        cp -r "$module" "$source" && chmod -R u+w "$source" && touch "$source/built"
    fi
    (cd "$source/pkg/kgo" && KGO_SEEDS=$broker KGO_TEST_RF=1 KGO_TEST_RECORDS=50000 go test -count=1 -timeout 20m .)
}
failures_franz-go() { sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p' "$1"; }
ended_franz-go() { grep -qE '^(ok|FAIL)\s+github.com' "$1"; }

suite_librdkafka() {
    local source=$cache/rdkafka-sys-$rdkafka/librdkafka
    if [[ ! -e $source/built ]]; then
        rm -rf "${source%/*}"
        curl -fsSL "https://static.crates.io/crates/rdkafka-sys/rdkafka-sys-$rdkafka.crate" | tar xz -C "$cache" || return
        (cd "$source" && ./configure --disable-sasl --disable-curl && make -s -j"$(nproc)" libs && make -s -C tests build) || return
        touch "$source/built"
    fi
    # Some tests use Kafka's tools.
    mkdir -p "$cache/kafka/bin"
    for tool in kafka-topics kafka-acls kafka-configs; do
        printf '#!/bin/sh\nexec %q %s "$@"\n' "$here/../kafka/console.sh" "$tool" >"$cache/kafka/bin/$tool.sh"
        chmod +x "$cache/kafka/bin/$tool.sh"
    done
    echo "bootstrap.servers=$broker" >"$cache/librdkafka.conf"
    (cd "$source/tests" && ulimit -c 0 && RDKAFKA_TEST_CONF=$cache/librdkafka.conf TEST_KAFKA_VERSION=4.3.1 KAFKA_PATH=$cache/kafka BROKERS=$broker \
        LD_LIBRARY_PATH=../src:../src-cpp timeout 1200 ./test-runner -L -Q -K -E -p4)
}
failures_librdkafka() { sed -n 's/.*[[:space:]]\([^[:space:]|]\{1,\}\)[[:space:]]*|[[:space:]]*FAILED.*/\1/p' "$1"; }
ended_librdkafka() { grep -q 'TEST .* SUMMARY' "$1"; }

failed=0
for suite in "${suites[@]}"; do
    if ! declare -F "suite_$suite" >/dev/null; then
        echo "suites.sh: no suite named $suite; there are franz-go and librdkafka" >&2
        exit 2
    fi
    log=$cache/$suite.log
    "suite_$suite" >"$log" 2>&1
    if ! "ended_$suite" "$log"; then
        echo "FAILED: $suite did not run to its end: $log"
        failed=1
        continue
    fi
    known=0
    while read -r test; do
        if [[ " ${without_internal_topics[*]} ${on_kafka_too[*]} " == *" $test "* ]]; then
            known=$((known + 1))
        else
            echo "FAILED: $suite: $test: $log"
            failed=1
        fi
    done < <("failures_$suite" "$log" | sort -u)
    echo "$suite ran; known failures: $known"
done
exit $failed
