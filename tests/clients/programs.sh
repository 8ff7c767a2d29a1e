# Builds and runs the client programs, and counts their steps. Sourced by run-all.sh and security.sh.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}
mkdir -p "$cache"

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

# run_client CLIENT LOG ARGUMENT…: builds the program, runs it with the arguments, counts its steps and adds a row to the table
run_client() {
    local client=$1 log=$cache/$2.log code oks failures
    shift 2
    echo "== $client"
    SECONDS=0
    if ! "build_$client" >"$log" 2>&1; then
        tail -n 20 "$log"
        echo "FAILED build: expected $client to build, saw that it does not"
        failed=$((failed + 1))
        table+=("$(printf '%-14s %6s %6s %7s' "$client" - build -)")
        return
    fi
    SECONDS=0
    "run_$client" "$@" 2>&1 | tee "$log"
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
}

# The table and the count of steps; fails if a step failed.
print_table() {
    echo
    printf '%-14s %6s %6s %7s\n' client passed failed time
    printf '%s\n' "${table[@]}"
    echo
    echo "$passed passed, $failed failed"
    [[ $failed -eq 0 ]]
}
