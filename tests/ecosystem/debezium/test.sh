# Kafka Connect runs Debezium's connector for PostgreSQL.
recipe change-data-capture-as-of-a-moment
versions=$here/../cookbook/change-data-capture-as-of-a-moment/pom.xml
works Debezium "$(pinned debezium.version "$versions")" "a snapshot of PostgreSQL and each later change as records, exactly once, with transactions; no moment shows half a transfer"
works "Kafka Connect" "$(pinned kafka.version "$versions")" "a distributed worker with \`exactly.once.source.support\`, its settings, offsets and states in topics"
