#!/usr/bin/env bash
# Fuzzes the doors of a server with libFuzzer, which learns from the code that inputs reach:
#
#   run.sh [--address-sanitizer] [RUNS [DOOR…]]     RUNS inputs at each door (a million), all doors if none is named
#
# With --address-sanitizer, memory of the heap that is read or written out of its bounds, or after it was freed, is a find
# too.
#
# What it finds is written to the directory `found` of the cache (FREEZEFRAME_FUZZ_CACHE, else below XDG_CACHE_HOME), where
# the inputs stay from which it goes on the next time. All that it says of a door is in DOOR.log there. An input that takes
# ten seconds, or 2 GiB, is a find too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${FREEZEFRAME_FUZZ_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/freezeframe-fuzz}
sanitizer=
if [[ ${1:-} == --address-sanitizer ]]; then
    sanitizer=-address
    shift
fi
runs=${1:-1000000}
shift || true
doors=("$@")
[[ ${#doors[@]} -gt 0 ]] || doors=(frames sasl tokens http zookeeper links arena names moments)
mkdir -p "$cache/found"

target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p fuzz
# What libFuzzer needs to see is a pass of the compiler.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions"
if [[ -n $sanitizer ]]; then
    # The compiler has it, and does not call it stable.
    export RUSTC_BOOTSTRAP=1
    flags+=" -Zsanitizer=address"
fi
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS=$flags CARGO_TARGET_DIR=$target/fuzz$sanitizer cargo build --quiet --release --target "$host" -p fuzz --features libfuzzer

for door in "${doors[@]}"; do
    echo "== $door"
    "$target/release/freezeframe-fuzz" "$door" "$cache/$door-seeds"
    mkdir -p "$cache/$door"
    FREEZEFRAME_FUZZ_DOOR=$door "$target/fuzz$sanitizer/$host/release/freezeframe-fuzz" "$cache/$door" "$cache/$door-seeds" \
        -runs="$runs" -max_len=2048 -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$cache/found/$door-" -print_final_stats=1 \
        -verbosity=0 2>&1 | tee "$cache/$door.log" | grep -v '^$' | tail -n 12
done
