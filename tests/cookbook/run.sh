#!/usr/bin/env bash
# Runs the recipes of the cookbook that need other software, and compares what they print with what their pages say.
#
#   run.sh FREEZEFRAME [RECIPE…]        RECIPE: the name of a page in docs/cookbook, without .md; by default each with a line `Needs:`
#
# Each recipe has a server of its own, with free ports and an empty directory. RECIPE/setup.sh installs what the page
# needs into the cache directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME), and starts what the page says
# is running. The commands themselves are those of the page. A recipe takes at most five minutes once all is installed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pages=$(realpath "$here/../../docs/cookbook")
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}/cookbook
limit_s=300

# The blocks of a kind in a page, one behind the other.
blocks() { awk -v fence="\`\`\`$1" '$0 == "```" { inside = 0 } inside; $0 == fence { inside = 1 }' "$2"; }

# fail WHAT: ends the recipe, and shows the ends of its logs.
fail() {
    echo "FAILED $recipe: $1"
    tail -n 20 "$work"/*.log
    exit 1
}

# skip WHY: ends the recipe without a failure.
skip() {
    echo "SKIPPED $recipe: $1"
    exit 0
}

# until_holds WHAT COMMAND…: waits for it, a minute at most.
until_holds() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || fail "expected $what within a minute"
        sleep 0.1
    done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Installs requirements.txt of the recipe, and puts its programs into the path.
python_programs() {
    local programs=$cache/$recipe
    if ! cmp -s "$here/$recipe/requirements.txt" "$programs/requirements.txt"; then
        rm -rf "$programs"
        python3 -m venv "$programs" && "$programs/bin/pip" install -q -r "$here/$recipe/requirements.txt" &&
            cp "$here/$recipe/requirements.txt" "$programs/" || fail "expected requirements.txt to install"
    fi
    PATH=$programs/bin:$PATH
}

# Finds PostgreSQL's programs.
postgres_programs() {
    local postgres
    for postgres in "$(command -v postgres)" /usr/lib/postgresql/*/bin/postgres; do
        [[ -x $postgres ]] && postgres_programs=$(dirname "$(readlink -f "$postgres")")
    done
    [[ -n ${postgres_programs:-} ]]
}

# as_postgres PROGRAM…: takes the place of a subshell. PostgreSQL does not run as root, and the cache is below root's home.
as_postgres() {
    [[ $EUID -ne 0 ]] || set -- setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"
    exec "$@"
}
give_to_postgres() { [[ $EUID -ne 0 ]] || chown nobody:nogroup "$1"; }

# Ends what the recipe started: everything in the process group of its page, what setup.sh lists in `started`, its server, and each PostgreSQL that is left.
stop() {
    local process file
    for process in "${started[@]}"; do kill -- "$process" 2>/dev/null; done
    wait 2>/dev/null
    while read -r file; do
        process=$(head -n 1 "$file")
        [[ $(readlink "/proc/$process/cwd") != "$(dirname "$file")" ]] || kill -QUIT "$process"
    done < <(find "$work" -name postmaster.pid)
    rm -rf --one-file-system "$work"
}

# In a subshell: its variables, and what it ends with, are of one recipe.
run_recipe() (
    recipe=$1 page=$pages/$1.md
    started=()
    work=$(mktemp -d)
    trap stop EXIT
    mkdir "$work/page"
    [[ -e $page ]] || fail "there is no page $page"

    "$freezeframe" serve --data-dir "$work/data" --kafka 127.0.0.1:0 --zookeeper 127.0.0.1:0 --http 127.0.0.1:0 >"$work/ready" 2>"$work/server.log" &
    server=$!
    started+=("$server")
    until_holds "the server to be ready" grep -qs '^ready ' "$work/ready"
    export FREEZEFRAME_DATA_DIR=$work/data
    FREEZEFRAME_BOOTSTRAP=$(sed -n 's/^ready kafka=\([^ ]*\).*/\1/p' "$work/ready")
    FREEZEFRAME_ZOOKEEPER=$(sed -n 's/^ready .* zookeeper=\([^ ]*\).*/\1/p' "$work/ready")
    export FREEZEFRAME_BOOTSTRAP FREEZEFRAME_ZOOKEEPER
    PATH=$(dirname "$freezeframe"):$PATH
    . "$here/$recipe/setup.sh" || fail "expected its set-up to succeed"

    cd "$work/page"
    SECONDS=0
    blocks text "$page" >"$work/expected"
    timeout "$limit_s" bash -e -c "$(blocks sh "$page")" >"$work/printed" 2>"$work/page.log" &
    started=(-$! "${started[@]}")
    { wait $!; } 2>/dev/null || fail "the page ended with exit code $?"
    diff -u "$work/expected" "$work/printed" || fail "expected what the page says"
    kill -0 "$server" || fail "the server is gone"
    echo "ok $recipe ($SECONDS s)"
)

if [[ $# -eq 0 ]]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
freezeframe=$(realpath "$1")
shift
if [[ $# -eq 0 ]]; then
    while read -r page; do set -- "$@" "$(basename "$page" .md)"; done < <(grep -l '^Needs:' "$pages"/*.md)
fi
if [[ $# -eq 0 ]]; then
    echo "$pages has no recipe with a line Needs:" >&2
    exit 1
fi
mkdir -p "$cache"
status=0
for recipe in "$@"; do run_recipe "$recipe" || status=1; done
exit "$status"
