# Patroni elects PostgreSQL's leader in our znodes.
recipe leader-history-of-patroni
works Patroni "$(pinned patroni "$here/../cookbook/leader-history-of-patroni/requirements.txt")" \
    "a bootstrap, a switchover and a failover of two members by ZooKeeper's protocol; the leader of each moment"
