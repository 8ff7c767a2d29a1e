# `freezeframe import` from Apache Kafka: with transactions, compaction, removed records and every compression, twice and while it goes on.
python_programs "$here/kafka/requirements.txt" "$cache/kafka"
start_server
kafka=127.0.0.1:$(free_port)
"$here/../kafka/run-kafka.sh" "$work/kafka" "${kafka#*:}" log.cleaner.backoff.ms=100 >"$work/kafka.ready" 2>"$work/kafka.log" &
started+=($!)
until_holds "Kafka to be ready" grep -qs '^ready ' "$work/kafka.ready"
source_of_import() { python "$here/kafka/source_of_import.py" "$kafka" "$FREEZEFRAME_BOOTSTRAP" "$@" >>"$work/python.log" 2>&1; }
import=("$freezeframe" import "kafka://$kafka" --topics all --groups all)
import() { "${import[@]}" >>"$work/import.log" 2>&1; }

source_of_import fill || fail "expected topics and groups at Kafka"
import || fail "expected an import"
source_of_import compare || fail "expected the same records and offsets"
import || fail "expected a second import"
source_of_import compare || fail "expected a second import to copy nothing twice"

"${import[@]}" --follow >>"$work/import.log" 2>&1 &
follower=$!
started+=("$follower")
source_of_import grow || fail "expected more records at Kafka"
until_holds "the import to follow" source_of_import compare
kill -INT "$follower"
wait "$follower" || fail "expected the import to end in order"
source_of_import take-over || fail "expected the group to go on where it was at Kafka"
works "Apache Kafka" "$(pinned kafka.version "$here/../kafka/pom.xml")" \
    "\`freezeframe import\` of records with their offsets, timestamps, keys and headers, of committed transactions alone, of what compaction and removal left, and of groups' offsets; again, and while new ones come"
