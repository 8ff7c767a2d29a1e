# Patroni's cluster `shop` of two members, north and south. The page runs where north.yml, north.pid and data/north are.
command -v jq >/dev/null || skip "there is no jq"
postgres_programs || skip "PostgreSQL is not installed"
python_programs "$here/$recipe/requirements.txt" "$cache/$recipe"

chmod 711 "$work"
mkdir "$work/page/data"
give_to_postgres "$work/page/data"
for name in north south; do
    rest=127.0.0.1:$(free_port) postgres=127.0.0.1:$(free_port)
    cat >"$work/page/$name.yml" <<END
scope: shop
name: $name
zookeeper:
  hosts: [$FREEZEFRAME_ZOOKEEPER]
restapi:
  listen: $rest
  connect_address: $rest
bootstrap:
  dcs: {ttl: 20, loop_wait: 1, retry_timeout: 3}
postgresql:
  listen: $postgres
  connect_address: $postgres
  data_dir: $work/page/data/$name
  bin_dir: $postgres_programs
  pgpass: $work/page/data/$name.pgpass
  authentication:
    superuser: {username: postgres, password: a password}
    replication: {username: replicator, password: a password}
  parameters: {unix_socket_directories: $work/page/data}
END
    as_postgres patroni "$work/page/$name.yml" >"$work/$name.log" 2>&1 &
    started+=($!)
    echo $! >"$work/page/$name.pid"
    # The second one copies the first.
    is_running() { "$freezeframe" zk get "/service/shop/members/$name" 2>/dev/null | grep -q '"state":"\(running\|streaming\)"'; }
    until_holds "$name to run" is_running
done
