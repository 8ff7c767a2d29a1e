#!/usr/bin/env bash
# Programs of others on a server of ours, each started as its own documentation says, and asserts on what they saw.
#
#   run.sh [--write] [NAME…]        NAME: a directory beside this file, by default each
#
# Each prints a line `WORKS PROGRAM VERSION: what was seen` for a program, and the rows of docs/WORKS-WITH.md must say the
# same: --write writes them. NAME/test.sh installs the program at a pinned version, or Debian's, into the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). The server is FREEZEFRAME_BINARY, else target/release/freezeframe.
# Programs that have a recipe in the cookbook are tested by it (../cookbook/run.sh). FREEZEFRAME_PATIENCE_S (180) is how
# long each wait may take.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
page=$(realpath "$here/../../docs/WORKS-WITH.md")
. "$here/../cookbook/beside-a-server.sh"
cache=$programs_cache/ecosystem

# recipe RECIPE: the test is that recipe of the cookbook.
recipe() {
    "$here/../cookbook/run.sh" "$freezeframe" "$1" >"$work/recipe.log" 2>&1 || fail "expected the recipe $1 to pass"
    if skipped=$(sed -n "s/^SKIPPED $1: //p" "$work/recipe.log") && [[ -n $skipped ]]; then skip "$skipped"; fi
}

# works PROGRAM VERSION SEEN
works() {
    echo "WORKS $1 $2: $3"
    echo "| $1 | $2 | $3 | $(command_of "$subject") |" >>"$work/rows"
}
command_of() { echo "\`tests/ecosystem/run.sh $1\`"; }

# pinned PACKAGE FILE: the version in a requirements.txt or in the properties of a pom.xml
pinned() { sed -n "s/^$1\(\[.*\]\)\{0,1\}==//p; s/.*<$1>\(.*\)<.*/\1/p" "$2"; }

# Unpacks packages of Debian below $debian, since installing some changes what else runs on the machine.
debian_programs() {
    command -v apt-get >/dev/null || skip "there is no apt-get to fetch $* with"
    debian=$cache/$subject
    if [[ ! -e $debian/unpacked ]]; then
        rm -rf "$debian"
        mkdir -p "$debian"
        (
            cd "$debian" && { apt-get -qq download "$@" || { apt-get -qq update && apt-get -qq download "$@"; }; } &&
                for package in *.deb; do dpkg -x "$package" . || exit; done && rm ./*.deb && touch unpacked
        ) >"$work/apt.log" 2>&1 || fail "expected $* to unpack"
    fi
    debian_libraries=$(echo "$debian"/usr/lib/*-linux-gnu*)
    PATH=$debian/usr/sbin:$debian/usr/bin:$PATH
}

# The rows of a test in the page. Debian decides about the version of its packages.
listed() { grep -F "$(command_of "$1")" "$page"; }
without_debians_version() { sed "s/Debian's [^|]*/Debian's /"; }

# Puts rows into the table of the page, in place of those of the same test.
write_rows() {
    { grep '^| .*`tests/ecosystem/run.sh ' "$page" | grep -vF "$(command_of "$1")"; cat "$2"; } | LC_ALL=C sort -f >"$work/table"
    awk -v table="$work/table" '
        inside && /^\|/ { next }
        { inside = 0; print }
        /^\| --- / && !written { while ((getline row < table) > 0) print row; inside = written = 1 }
    ' "$page" >"$work/page" && cat "$work/page" >"$page"
}

# In a subshell: its variables, and what it ends with, are of one test.
run_test() (
    subject=$1
    started=()
    work=$(mktemp -d)
    trap stop EXIT
    [[ -e $here/$1/test.sh ]] || fail "there is no $here/$1"
    . "$here/$1/test.sh" || fail "expected each step to succeed"
    [[ -z ${server:-} ]] || kill -0 "$server" || fail "the server is gone"
    if [[ -n $write ]]; then write_rows "$1" "$work/rows"; fi
    diff <(listed "$1" | without_debians_version) <(LC_ALL=C sort -f "$work/rows" | without_debians_version) ||
        fail "expected docs/WORKS-WITH.md to say so: run.sh --write $1"
    echo "ok $1 ($SECONDS s)"
)

# Each row is of a test that has its version in a file, and each test has a row.
check_page() {
    local name version row recipe
    for name in "${all[@]}"; do
        listed "$name" >/dev/null || echo "FAILED docs/WORKS-WITH.md has no row of $name: run.sh --write $name"
    done
    while IFS='|' read -r _ _ version _ row; do
        name=${row#*run.sh } version=${version# }
        name=${name%%\`*} version=${version% }
        recipe=$(sed -n 's/^recipe //p' "$here/$name/test.sh")
        [[ $version == Debian* ]] || grep -rqF -- "$version" "$here/$name" "$here/../kafka/pom.xml" ${recipe:+"$here/../cookbook/$recipe"} ||
            echo "FAILED docs/WORKS-WITH.md has version $version in a row of $name, which does not pin it"
    done < <(grep '^| .*`tests/ecosystem/run.sh ' "$page")
}

write=
if [[ ${1:-} == --write ]]; then
    write=1
    shift
fi
mapfile -t all < <(cd "$here" && printf '%s\n' */test.sh | sed 's,/test.sh,,')
[[ $# -gt 0 ]] || set -- "${all[@]}"
for name in "$@"; do
    if [[ ! -e $here/$name/test.sh ]]; then
        echo "run.sh: no test named $name; there are ${all[*]}" >&2
        exit 2
    fi
done
freezeframe=$(realpath "${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}")
if [[ ! -x $freezeframe ]]; then
    echo "run.sh: there is no $freezeframe; build it, or name another one in FREEZEFRAME_BINARY" >&2
    exit 1
fi
mkdir -p "$cache"
status=0
for name in "$@"; do
    SECONDS=0
    run_test "$name" || status=1
done
wrong=$(check_page)
if [[ -n $wrong ]]; then
    echo "$wrong"
    status=1
fi
exit "$status"
