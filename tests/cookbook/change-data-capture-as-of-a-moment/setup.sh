# PostgreSQL with logical decoding, where psql finds it, and a worker of Kafka Connect with Debezium at CONNECT.
command -v jq >/dev/null || skip "there is no jq"
postgres_programs || skip "PostgreSQL is not installed"
libraries=$cache/$recipe
if ! cmp -s "$here/$recipe/pom.xml" "$libraries/pom.xml"; then
    rm -rf "$libraries"
    mvn -B -q -Dstyle.color=never -f "$here/$recipe/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$libraries/lib" >"$work/maven.log" && cp "$here/$recipe/pom.xml" "$libraries/" ||
        fail "expected Debezium to be fetched"
fi

chmod 711 "$work"
mkdir "$work/postgres"
give_to_postgres "$work/postgres"
export PGHOST=127.0.0.1 PGPORT PGUSER=postgres PGPASSWORD=unused PGDATABASE=postgres
PGPORT=$(free_port)
(as_postgres "$postgres_programs/initdb" --username=postgres --auth=trust "$work/postgres/data" >"$work/initdb.log" 2>&1) || fail "initdb failed"
as_postgres "$postgres_programs/postgres" -D "$work/postgres/data" -p "$PGPORT" -k "$work/postgres" -c wal_level=logical >"$work/postgres.log" 2>&1 &
started+=($!)
until_holds "PostgreSQL to answer" "$postgres_programs/pg_isready" -q

CONNECT=127.0.0.1:$(free_port)
export CONNECT
cat >"$work/worker.properties" <<END
bootstrap.servers=$FREEZEFRAME_BOOTSTRAP
group.id=workers
listeners=http://$CONNECT
config.storage.topic=connect-config
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
key.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
exactly.once.source.support=enabled
END
java -Xmx512m -cp "$libraries/lib/*" org.apache.kafka.connect.cli.ConnectDistributed "$work/worker.properties" >"$work/worker.log" 2>&1 &
started+=($!)
until_holds "the worker to answer" curl -fsS -o "$work/answer" "http://$CONNECT/connectors" 2>/dev/null
