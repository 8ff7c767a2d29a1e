# For kcat.sh and console.sh, which source it with their own arguments: steps with one line of output each, and waits
# with an end. The whole script runs a second time, as the child of a time limit.
if [[ -z ${STEPS_ARE_BOUNDED:-} ]]; then
    limit_s=${limit_s:-180}
    STEPS_ARE_BOUNDED=1 timeout "$limit_s" "$0" "$@"
    code=$?
    [[ $code -ne 124 ]] ||
        echo "FAILED after the last line: expected the run to end within $limit_s s, saw it still run"
    exit "$code"
fi

failures=0
work=$(mktemp -d)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# step NAME COMMAND…: the command runs in a subshell; when it fails, what it printed last says why.
step() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1 </dev/null); then
        echo "ok $name"
    else
        failures=$((failures + 1))
        echo "FAILED $name: $(tail -n 3 <<<"$said" | tr '\n' ' ')"
    fi
}

# Ends the step.
fail() {
    echo "$*"
    exit 1
}

# equal WHAT EXPECTED SEEN
equal() {
    [[ $2 == "$3" ]] || fail "expected $1 '$2', saw '$3'"
}

# same WHAT FILE FILE: equal files, or the first lines that differ.
same() {
    cmp -s "$2" "$3" || fail "expected $1 as sent, saw $(diff "$2" "$3" | head -n 4 | tr '\n' ' ') in $(wc -l <"$3") lines"
}

# wait_for WHAT COMMAND…
wait_for() {
    local what=$1 deadline=$((SECONDS + 30))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || fail "expected $what, saw none of it within 30 s"
        sleep 0.05
    done
}

now_ms() { date +%s%3N; }

# A moment that no record produced so far lies after, and every later one does. The clock is this machine's.
next_millisecond() {
    local m=$(($(now_ms) + 1))
    while [[ $(now_ms) -le $m ]]; do :; done
    echo "$m"
}
