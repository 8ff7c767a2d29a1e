#!/usr/bin/env bash
# Stock Kafka clients against a broker that runs already, ours or Kafka's own (../kafka/run-kafka.sh).
#
#   run-all.sh HOST:PORT [--moments] [--tls DIR] [--sasl MECHANISM] [LANG…]      LANG: java java-groups java-share go sarama node confluent kafka-python kcat console
#
# Each client is installed from its own registry at a pinned version, and built in the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME), so the repository stays clean. --moments also reads topics as
# of a moment, which Kafka itself does not know; --tls speaks TLS, with the certificates of ../zookeeper-clients/make-certificates.sh in DIR; --sasl
# logs in by MECHANISM (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512) as FREEZEFRAME_SASL_USER with FREEZEFRAME_SASL_PASSWORD (neither with console). Every program takes less than a minute, console less than two, and
# java-groups and java-share (groups whose members hear of changes every five seconds) less than four; all of their output goes to *.log in the cache directory. The last line counts steps.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}
all=(java java-groups java-share go sarama node confluent kafka-python kcat console)

bootstrap='' moments='' is_directory='' is_mechanism='' chosen=()
for argument in "$@"; do
    if [[ -n $is_directory ]]; then
        is_directory=''
        FREEZEFRAME_TLS_DIRECTORY=$(realpath "$argument")
        export FREEZEFRAME_TLS_DIRECTORY
        continue
    fi
    if [[ -n $is_mechanism ]]; then
        is_mechanism=''
        export FREEZEFRAME_SASL_MECHANISM=$argument
        continue
    fi
    case $argument in
        --moments) moments=--moments ;;
        --tls) is_directory=1 ;;
        --sasl) is_mechanism=1 ;;
        *:*) bootstrap=$argument ;;
        python) chosen+=(confluent kafka-python) ;;
        *)
            if [[ " ${all[*]} " != *" $argument "* ]]; then
                echo "run-all.sh: no client named $argument; there are ${all[*]}" >&2
                exit 2
            fi
            chosen+=("$argument")
            ;;
    esac
done
if [[ -z $bootstrap ]]; then
    echo "usage: run-all.sh HOST:PORT [--moments] [--tls DIR] [--sasl MECHANISM] [LANG…]" >&2
    exit 2
fi
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${all[@]}")
mkdir -p "$cache"
run=$(date +%s)-$$

# changed STAMP PATH…: something below the paths is newer than the stamp
changed() {
    local stamp=$1
    shift
    [[ ! -e $stamp || -n $(find "$@" -newer "$stamp" -print -quit) ]]
}

build_java() {
    changed "$cache/java/built" "$here/java" || return 0
    mvn -B -q -Dstyle.color=never -f "$here/java/pom.xml" -Dbuild.dir="$cache/java" package && touch "$cache/java/built"
}
run_java() {
    java -cp "$cache/java/classes:$cache/java/lib/*" freezeframe.clients.Main "$@"
}

build_java-groups() { build_java; }
run_java-groups() {
    java -cp "$cache/java/classes:$cache/java/lib/*" freezeframe.clients.ServerAssignedGroups "$@"
}

build_java-share() { build_java; }
run_java-share() {
    java -cp "$cache/java/classes:$cache/java/lib/*" freezeframe.clients.SharedRecords "$@"
}

build_go() { (cd "$here/go" && go build -o "$cache/go/client" .); }
run_go() { "$cache/go/client" "$@"; }

build_sarama() { (cd "$here/sarama" && go build -o "$cache/sarama/client" .); }
run_sarama() { "$cache/sarama/client" "$@"; }

build_node() {
    changed "$cache/node/built" "$here/node" || return 0
    mkdir -p "$cache/node" && cp "$here"/node/*.js "$here"/node/*.json "$cache/node/" &&
        (cd "$cache/node" && npm ci --ignore-scripts --no-audit --no-fund --silent) && touch "$cache/node/built"
}
run_node() { node "$cache/node/main.js" "$@"; }

build_python() {
    changed "$cache/python/built" "$here/python/requirements.txt" || return 0
    python3 -m venv "$cache/python" && "$cache/python/bin/pip" install -q -r "$here/python/requirements.txt" &&
        touch "$cache/python/built"
}
run_python() { PYTHONPYCACHEPREFIX=$cache/pycache "$cache/python/bin/python" "$here/python/$1" "${@:2}"; }
build_confluent() { build_python; }
run_confluent() { run_python with_confluent.py "$@"; }
build_kafka-python() { build_python; }
run_kafka-python() { run_python with_kafka_python.py "$@"; }

# Kafka's own jars are for the tools that create topics
build_kcat() {
    if ! command -v kcat >/dev/null || ! command -v jq >/dev/null; then
        apt-get -qq update && apt-get -qq install -y kcat jq
    fi && build_console
}
run_kcat() { "$here/kcat.sh" "$@"; }

build_console() { "$here/../kafka/jars.sh" >/dev/null; }
run_console() { "$here/console.sh" "$2" "$4" ${5:+"$5"}; }

passed=0 failed=0 table=()
for client in "${chosen[@]}"; do
    echo "== $client"
    log=$cache/$client.log
    SECONDS=0
    if ! "build_$client" >"$log" 2>&1; then
        tail -n 20 "$log"
        echo "FAILED build: expected $client to build, saw that it does not"
        failed=$((failed + 1))
        table+=("$(printf '%-14s %6s %6s %7s' "$client" - build -)")
        continue
    fi
    SECONDS=0
    "run_$client" --bootstrap "$bootstrap" --run "$run" $moments 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    oks=$(grep -c '^ok ' "$log")
    failures=$(grep -c '^FAILED ' "$log")
    # A program that dies has no line for it; one that ran no step has not passed.
    if [[ $failures -eq 0 && ($code -ne 0 || $oks -eq 0) ]]; then
        echo "FAILED exit: expected $client to end well, saw exit code $code after $oks steps"
        failures=1
    fi
    passed=$((passed + oks)) failed=$((failed + failures))
    table+=("$(printf '%-14s %6d %6d %6ds' "$client" "$oks" "$failures" "$SECONDS")")
done

echo
printf '%-14s %6s %6s %7s\n' client passed failed time
printf '%s\n' "${table[@]}"
echo
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
