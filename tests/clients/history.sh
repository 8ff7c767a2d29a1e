#!/usr/bin/env bash
# The libraries that read the past over HTTP: clients/python, clients/java and clients/go, against servers that they start.
#
#   history.sh [LANG…]      LANG: python java go
#
# The server is FREEZEFRAME_BINARY, else target/release/freezeframe. Libraries are built in the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME), and read with stock Kafka clients. Together they take less than a
# minute once they are built. The last line counts tests.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/programs.sh"
libraries=$(realpath "$here/../../clients")
all=(python java go)
chosen=("$@")
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${all[@]}")
for library in "${chosen[@]}"; do
    if [[ " ${all[*]} " != *" $library "* ]]; then
        echo "history.sh: no library named $library; there are ${all[*]}" >&2
        exit 2
    fi
done
FREEZEFRAME_BINARY=$(realpath -m "${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}")
[[ -x $FREEZEFRAME_BINARY ]] || { echo "history.sh: no server: $FREEZEFRAME_BINARY" >&2; exit 2; }
export FREEZEFRAME_BINARY

# Python's tests start servers themselves.
build_history-python() {
    local programs=$cache/history-python requirements=$libraries/python/tests/requirements.txt
    cmp -s "$requirements" "$programs/requirements.txt" && return
    rm -rf "$programs"
    python3 -m venv "$programs" && "$programs/bin/pip" install -q -r "$requirements" && cp "$requirements" "$programs/"
}
run_history-python() {
    (cd "$libraries/python" && PYTHONPYCACHEPREFIX=$cache/pycache "$cache/history-python/bin/python" -m pytest -p no:cacheprovider -rpfE --tb=short) |
        sed -u 's/^PASSED /ok /; s/^ERROR /FAILED /'
}

build_history-java() {
    changed "$cache/history-java/built" "$libraries/java" || return 0
    mvn -B -q -Dstyle.color=never -f "$libraries/java/pom.xml" -Dbuild.dir="$cache/history-java" package && touch "$cache/history-java/built"
}
run_history-java() {
    local built=$cache/history-java
    java -cp "$built/classes:$built/test-classes:$built/lib/*" freezeframe.FreezeframeMomentsSteps \
        --bootstrap "$MOMENTS_KAFKA" --http "$MOMENTS_HTTP" --run "$$"
}

build_history-go() {
    (cd "$libraries/go" && go test -c -o "$cache/history-go/library" .) &&
        (cd "$libraries/go/stockclient" && go test -c -o "$cache/history-go/stockclient" .)
}
run_history-go() {
    for tests in library stockclient; do "$cache/history-go/$tests" -test.v; done |
        sed -u 's/^--- PASS: /ok /; s/^--- FAIL: /FAILED /; s/^--- SKIP: /FAILED skipped /'
}

dir=$(mktemp -d)
server=
stop() {
    if [[ -n $server ]]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi
    rm -rf "$dir"
}
trap stop EXIT
mkfifo "$dir/ready"
"$FREEZEFRAME_BINARY" serve --data-dir "$dir/store" --kafka 127.0.0.1:0 --http 127.0.0.1:0 --set group.initial.rebalance.delay.ms=0 \
    >"$dir/ready" 2>"$dir/log" &
server=$!
read -r -t 60 line <"$dir/ready" || { cat "$dir/log"; exit 1; }
MOMENTS_KAFKA=$(sed -n 's/.* kafka=\([^ ]*\).*/\1/p' <<<"$line")
MOMENTS_HTTP=http://$(sed -n 's/.* http=\([^ ]*\).*/\1/p' <<<"$line")
export MOMENTS_KAFKA MOMENTS_HTTP

for library in "${chosen[@]}"; do run_client "history-$library" "history-$library"; done
if ! kill -0 "$server" 2>/dev/null; then echo "the server is gone:"; failed=$((failed + 1)); fi
if [[ $failed -gt 0 ]]; then echo "--- the server's log"; tail -n 50 "$dir/log"; fi
print_table
