#!/usr/bin/env bash
# Runs the recipes of the cookbook that need other software, and compares what they print with what their pages say.
#
#   run.sh FREEZEFRAME [RECIPE…]        RECIPE: the name of a page in docs/cookbook, without .md; by default each with a line `Needs:`
#
# Each recipe has a server of its own, with free ports and an empty directory. RECIPE/setup.sh installs what the page
# needs into the cache directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME), and starts what the page says
# is running. The commands themselves are those of the page. A recipe may take five minutes once all is installed;
# FREEZEFRAME_PATIENCE_S (180) gives each wait, and the recipe, more on a busy machine.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pages=$(realpath "$here/../../docs/cookbook")
. "$here/beside-a-server.sh"
cache=$programs_cache/cookbook
limit_s=$((patience_s + 120))

# The blocks of a kind in a page, one behind the other.
blocks() { awk -v fence="\`\`\`$1" '$0 == "```" { inside = 0 } inside; $0 == fence { inside = 1 }' "$2"; }

# In a subshell: its variables, and what it ends with, are of one recipe.
run_recipe() (
    recipe=$1 page=$pages/$1.md subject=$1
    started=()
    work=$(mktemp -d)
    trap stop EXIT
    mkdir "$work/page"
    [[ -e $page ]] || fail "there is no page $page"

    start_server
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
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
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
