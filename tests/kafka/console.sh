#!/usr/bin/env bash
# Runs one of Apache Kafka's console tools, from the jars that run-kafka.sh uses.
#
#   console.sh TOOL ARGS…        e.g. console.sh kafka-topics --bootstrap-server 127.0.0.1:9092 --list
#   console.sh --class TOOL      prints the tool's main class
set -euo pipefail

only_class=
if [[ ${1:-} == --class ]]; then only_class=1 && shift; fi

case ${1:-} in
    kafka-acls) main=org.apache.kafka.tools.AclCommand ;;
    kafka-broker-api-versions) main=org.apache.kafka.tools.BrokerApiVersionsCommand ;;
    kafka-client-metrics) main=org.apache.kafka.tools.ClientMetricsCommand ;;
    kafka-cluster) main=org.apache.kafka.tools.ClusterTool ;;
    kafka-configs) main=kafka.admin.ConfigCommand ;;
    kafka-console-consumer) main=org.apache.kafka.tools.consumer.ConsoleConsumer ;;
    kafka-console-producer) main=org.apache.kafka.tools.ConsoleProducer ;;
    kafka-console-share-consumer) main=org.apache.kafka.tools.consumer.ConsoleShareConsumer ;;
    kafka-consumer-groups) main=org.apache.kafka.tools.consumer.group.ConsumerGroupCommand ;;
    kafka-consumer-perf-test) main=org.apache.kafka.tools.ConsumerPerformance ;;
    kafka-delegation-tokens) main=org.apache.kafka.tools.DelegationTokenCommand ;;
    kafka-delete-records) main=org.apache.kafka.tools.DeleteRecordsCommand ;;
    kafka-e2e-latency) main=org.apache.kafka.tools.EndToEndLatency ;;
    kafka-features) main=org.apache.kafka.tools.FeatureCommand ;;
    kafka-get-offsets) main=org.apache.kafka.tools.GetOffsetShell ;;
    kafka-groups) main=org.apache.kafka.tools.GroupsCommand ;;
    kafka-leader-election) main=org.apache.kafka.tools.LeaderElectionCommand ;;
    kafka-log-dirs) main=org.apache.kafka.tools.LogDirsCommand ;;
    kafka-metadata-quorum) main=org.apache.kafka.tools.MetadataQuorumCommand ;;
    kafka-producer-perf-test) main=org.apache.kafka.tools.ProducerPerformance ;;
    kafka-reassign-partitions) main=org.apache.kafka.tools.reassign.ReassignPartitionsCommand ;;
    kafka-share-groups) main=org.apache.kafka.tools.consumer.group.ShareGroupCommand ;;
    kafka-storage) main=kafka.tools.StorageTool ;;
    kafka-streams-groups) main=org.apache.kafka.tools.streams.StreamsGroupCommand ;;
    kafka-topics) main=org.apache.kafka.tools.TopicCommand ;;
    kafka-transactions) main=org.apache.kafka.tools.TransactionsCommand ;;
    *)
        sed -n 's/^    \(kafka-[a-z0-9-]*\)).*/\1/p' "${BASH_SOURCE[0]}" >&2
        echo "usage: console.sh TOOL ARGS… with a tool named above" >&2
        exit 2
        ;;
esac
shift
if [[ -n $only_class ]]; then
    echo "$main"
    exit
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$("$here/jars.sh")
# These processes live for a second or two: compile little, collect with one thread. JAVA_OPTS wins, for benches.
exec java -XX:SharedArchiveFile="${lib%/lib}/tools.jsa" -Xmx512M -XX:+UseSerialGC -XX:TieredStopAtLevel=1 ${JAVA_OPTS:-} \
    -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$lib/*" "$main" "$@"
