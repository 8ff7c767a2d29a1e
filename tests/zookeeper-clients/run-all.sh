#!/usr/bin/env bash
# Stock ZooKeeper clients against a server that runs already, ours or Apache's.
#
#   run-all.sh HOST:PORT [--past] [--sasl USER:PASSWORD] [--tls HOST:PORT=CERTIFICATES] [java|kazoo|go|rust…]
#
# The server needs extendedTypesEnabled, and with --sasl that user. With --tls it serves that address too, with the
# certificates that make-certificates.sh made, clientAuth=need, and O=Frames,CN=root as
# X509AuthenticationProvider.superUser. Each client is fetched from its own registry at a pinned version, into the cache
# directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). --past also reads the tree as of a moment, which
# Apache's server cannot. Every program takes less than a minute. The last line counts steps.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}

connect=${1:?usage: run-all.sh HOST:PORT [--past] [--sasl USER:PASSWORD] [--tls HOST:PORT=CERTIFICATES] [java|kazoo|go|rust…]}
shift
past=() sasl=() tls=() chosen=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --past) past=(--past) ;;
        --sasl)
            sasl=(--sasl "${2:?a user and a password}")
            shift
            ;;
        --tls)
            tls=(--tls "${2:?an address and a directory}")
            shift
            ;;
        java | kazoo | go | rust) chosen+=("$1") ;;
        *)
            echo "run-all.sh: no client named $1; there are java, kazoo, go and rust" >&2
            exit 2
            ;;
    esac
    shift
done
[[ ${#chosen[@]} -gt 0 ]] || chosen=(java kazoo go rust)
mkdir -p "$cache"
run=$(date +%s)-$$

build_java() {
    mvn -B -q -Dstyle.color=never -f "$here/java/pom.xml" -Dbuild.dir="$cache/zookeeper-java" package
}
run_java() {
    java -cp "$cache/zookeeper-java/classes:$cache/zookeeper-java/lib/*" freezeframe.zookeeper.Main "$@" "${sasl[@]}" "${tls[@]}"
}

build_kazoo() {
    python3 -m venv "$cache/zookeeper-python" &&
        "$cache/zookeeper-python/bin/pip" install -q -r "$here/python/requirements.txt"
}
run_kazoo() {
    PYTHONPYCACHEPREFIX=$cache/pycache "$cache/zookeeper-python/bin/python" "$here/python/with_kazoo.py" "$@" "${sasl[@]}" "${tls[@]}"
}

build_go() { (cd "$here/go" && go build -o "$cache/zookeeper-go/client" .); }
run_go() { "$cache/zookeeper-go/client" "$@"; }

build_rust() { CARGO_TARGET_DIR=$cache/zookeeper-rust cargo build --locked --quiet --manifest-path "$here/rust/Cargo.toml"; }
run_rust() { "$cache/zookeeper-rust/debug/zookeeper-client-steps" "$@"; }

passed=0 failed=0
for client in "${chosen[@]}"; do
    echo "== zookeeper $client"
    log=$cache/zookeeper-$client.log
    if ! "build_$client" >"$log" 2>&1; then
        tail -n 20 "$log"
        echo "FAILED build: expected $client to build, saw that it does not"
        failed=$((failed + 1))
        continue
    fi
    "run_$client" --connect "$connect" --run "$run" "${past[@]}" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    oks=$(grep -c '^ok ' "$log")
    failures=$(grep -c '^FAILED ' "$log")
    # A program that dies has no line for it; one that ran no step has not passed.
    if [[ $failures -eq 0 && ($code -ne 0 || $oks -eq 0) ]]; then
        echo "FAILED exit: expected $client to end well, saw exit code $code after $oks steps"
        failures=1
    fi
    passed=$((passed + oks)) failed=$((failed + failures))
done

echo
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
