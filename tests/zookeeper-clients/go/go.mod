module freezeframe/tests/zookeeper-clients/go

go 1.26.0

require github.com/go-zookeeper/zk v1.0.4
