#!/usr/bin/env bash
# Asks a server what its description promises, and much that it does not: schemathesis makes the requests.
#   tests/clients/openapi.sh HTTP-ADDRESS [MORE ARGUMENTS FOR SCHEMATHESIS]
set -euo pipefail
http=$1
shift
cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}
python=$cache/openapi
version=4.32.5
if ! "$python/bin/schemathesis" --version 2>/dev/null | grep -qF "$version"; then
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
fi
# It leaves a directory where it runs.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Texts of any kind are accepted as moments by the schema, and few of them are one. Other paths change things.
"$python/bin/schemathesis" run "http://$http/v1/openapi.json" --include-method GET --phases coverage,fuzzing \
    --exclude-checks positive_data_acceptance --max-examples 10 --seed 1 --generation-database none --no-color "$@"
