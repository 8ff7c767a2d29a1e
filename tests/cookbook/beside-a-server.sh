# Programs of others beside a server of ours, one test in a subshell each: run.sh and ../ecosystem/run.sh source it.
#
# They set `subject`, the name of the test, `work`, its directory, `started`, the processes it has to end, and `freezeframe`, the binary.
# What is installed stays in the cache directory.

programs_cache=${FREEZEFRAME_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-clients}

# How long a program may take for a thing. A machine that is busy with something else needs more.
patience_s=${FREEZEFRAME_PATIENCE_S:-180}

# fail WHAT: ends the test, and shows the ends of its logs.
fail() {
    echo "FAILED $subject: $1"
    tail -n 20 "$work"/*.log
    exit 1
}

# skip WHY: ends the test without a failure.
skip() {
    echo "SKIPPED $subject: $1"
    exit 0
}

# until_holds WHAT COMMAND…: waits for it, but not for ever.
until_holds() {
    local what=$1 deadline=$((SECONDS + patience_s))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || fail "expected $what within $patience_s s"
        sleep 0.1
    done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Starts a server with free ports and an empty directory, where `freezeframe` finds it.
start_server() {
    "$freezeframe" serve --data-dir "$work/data" --kafka 127.0.0.1:0 --zookeeper 127.0.0.1:0 --http 127.0.0.1:0 >"$work/ready" 2>"$work/server.log" &
    server=$!
    started+=("$server")
    until_holds "the server to be ready" grep -qs '^ready ' "$work/ready"
    export FREEZEFRAME_DATA_DIR=$work/data
    FREEZEFRAME_BOOTSTRAP=$(sed -n 's/^ready kafka=\([^ ]*\).*/\1/p' "$work/ready")
    FREEZEFRAME_ZOOKEEPER=$(sed -n 's/^ready .* zookeeper=\([^ ]*\).*/\1/p' "$work/ready")
    FREEZEFRAME_HTTP=$(sed -n 's/^ready .* http=\([^ ]*\).*/\1/p' "$work/ready")
    export FREEZEFRAME_BOOTSTRAP FREEZEFRAME_ZOOKEEPER FREEZEFRAME_HTTP
    PATH=$(dirname "$freezeframe"):$PATH
}

# python_programs REQUIREMENTS DIRECTORY: installs them there, and puts their programs into the path.
python_programs() {
    local requirements=$1 programs=$2
    if ! cmp -s "$requirements" "$programs/requirements.txt"; then
        rm -rf "$programs"
        python3 -m venv "$programs" && "$programs/bin/pip" install -q -r "$requirements" &&
            cp "$requirements" "$programs/requirements.txt" || fail "expected $requirements to install"
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

# Ends what the test started: everything in `started` (a process, or a group of them), and each PostgreSQL that is left.
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
