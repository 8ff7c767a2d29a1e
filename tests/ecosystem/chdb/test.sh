# chDB, which is ClickHouse in a Python process, reads a topic over HTTP as of two moments.
python_programs "$here/chdb/requirements.txt" "$cache/chdb"
start_server

"$freezeframe" topics create prices --partitions 3 2>"$work/topics.log"
printf '%s\n' apples:3 bread:4 cheese:9 | "$freezeframe" produce prices -K: 2>"$work/produced.log"
before=$("$freezeframe" moment)
printf '%s\n' apples:5 dates:7 | "$freezeframe" produce prices -K: 2>"$work/produced.log"
after=$("$freezeframe" moment)

changed=$'apples\t3\t5\ndates\t\\N\t7\n'
timeout 180 python "$here/chdb/prices.py" "$before" "$after" >"$work/changed" 2>"$work/chdb.log" || fail "expected chDB to read the topic"
printf '%s%s' "$changed" "$changed" | diff - "$work/changed" || fail "expected chDB to see what changed, as Arrow and as JSON lines"
version=$(pinned chdb "$here/chdb/requirements.txt")
works "ClickHouse (chDB)" "$version" "\`url(…, ArrowStream)\` and \`url(…, JSONEachRow)\` over HTTP: a topic as of two moments, joined"
