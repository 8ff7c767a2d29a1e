#!/usr/bin/env bash
# The tests that kazoo is developed with, against a server that they start and stop themselves: run.sh BINARY
#
# BINARY is `freezeframe`. kazoo's source has the tests; it is fetched from its registry at a pinned version into the cache
# directory (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME). Python 3.11 is needed. It takes four minutes. The output
# goes to zookeeper-kazoo-suite.log there. The exit code is 1 if a test failed that is not in the list below.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}
FREEZEFRAME=$(realpath "${1:?usage: run.sh BINARY}")
version=2.11.0
suite=$cache/kazoo-suite-$version
log=$cache/zookeeper-kazoo-suite.log

# Three want a second server, one a server that has lost the others, three change the members of an ensemble, and one has
# certificates of version 1.
known=(
    TestClient::test_update_host_list TestEventletClient::test_update_host_list TestGeventClient::test_update_host_list
    TestReadOnlyMode::test_read_only
    TestReconfig::test_add_remove_observer TestReconfig::test_bad_input TestReconfig::test_no_super_auth
    TestSSLClient::test_create
)

if [[ ! -e $suite/built ]]; then
    rm -rf "$suite" && mkdir -p "$suite" && python3 -m venv "$suite/venv" &&
        "$suite/venv/bin/pip" install -q kazoo==$version pure-sasl==0.6.2 pytest==9.2.0 pyjks==20.0.0 pyopenssl==24.2.1 \
            gevent==26.9.0 eventlet==0.41.3 objgraph==3.7.0 &&
        "$suite/venv/bin/pip" download -q --no-deps --no-binary :all: -d "$suite" kazoo==$version &&
        tar xzf "$suite/kazoo-$version.tar.gz" -C "$suite" && touch "$suite/built" || exit
fi
export FREEZEFRAME PATH=$here:$PATH ZOOKEEPER_CLASSPATH=none ZOOKEEPER_VERSION=3.9.4 ZOOKEEPER_CLUSTER_SIZE=1
(cd "$suite/kazoo-$version" && timeout 1200 "$suite/venv/bin/python" -m pytest -q -W ignore --color=no kazoo/tests) >"$log" 2>&1
summary=$(grep -aE '^=+ .*[0-9]+ passed.* in ' "$log") || {
    echo "FAILED: kazoo's suite did not run to its end: $log"
    exit 1
}
failed=0
while read -r test; do
    if [[ " ${known[*]} " != *" $test "* ]]; then
        echo "FAILED: $test: $log"
        failed=1
    fi
done < <(sed -n 's/^\(FAILED\|ERROR\) [^:]*::\([^ ]*\).*/\2/p' "$log" | sort -u)
echo "$summary" | tr -d =
exit $failed
