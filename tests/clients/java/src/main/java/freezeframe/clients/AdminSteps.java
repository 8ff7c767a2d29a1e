package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.record.TimestampType;

/** The cluster, topics, their configs and offsets through the admin client, and the configs that change what is stored. */
final class AdminSteps {
    private static final int COUNT = 20;

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;
    private final TopicPartition zero;
    private final ConfigResource resource;
    private final Model model = new Model();

    AdminSteps(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-admin-" + run;
        this.zero = new TopicPartition(topic, 0);
        this.resource = new ConfigResource(ConfigResource.Type.TOPIC, topic + "-configs");
    }

    void run() {
        steps.step("i admin-topic", () -> {
            cluster.createTopic(topic, 1, Cluster.KEEP);
            List<Model.Entry> entries = new ArrayList<>();
            for (int i = 0; i < COUNT; i++) {
                // The largest time is in the middle, at offset 12.
                long time = Scenario.T0 + (i == 12 ? 1_000_000 : i * 1000L);
                entries.add(new Model.Entry("k", "v" + i, time, List.of()));
            }
            cluster.produce(model, topic, 0, Map.of(), entries);
        });
        steps.step("i create-topic-twice-refused", () -> equal("refusal", TopicExistsException.class,
                Steps.refused("a topic of that name", () -> cluster.createTopic(topic, 1, Map.of())).getClass()));
        steps.step("i describe-cluster", this::describeCluster);
        steps.step("i describe-topics", this::describeTopics);
        steps.step("i list-offsets", this::listOffsets);
        steps.step("i read-committed-consumer", this::readCommitted);
        steps.step("i delete-records", this::deleteRecords);
        steps.step("i create-partitions", this::createPartitions);
        steps.step("i describe-and-alter-configs", this::alterConfigs);
        steps.step("i log-append-time", this::logAppendTime);
        steps.step("i max-message-bytes", this::maxMessageBytes);
        steps.step("i admin-topic-delete", () -> cluster.deleteTopic(topic));
    }

    private void describeCluster() throws Exception {
        DescribeClusterResult described = cluster.admin.describeCluster();
        Set<String> nodes = get(described.nodes()).stream().map(AdminSteps::address).collect(Collectors.toSet());
        holds(cluster.bootstrap + " among the nodes", nodes.contains(cluster.bootstrap), nodes);
        holds("a cluster id", !get(described.clusterId()).isEmpty(), "none");
        holds("a controller among the nodes", nodes.contains(address(get(described.controller()))), nodes);
    }

    private static String address(Node node) {
        return node.host() + ":" + node.port();
    }

    private void describeTopics() throws Exception {
        TopicDescription seen = cluster.describe(topic);
        equal("name", topic, seen.name());
        holds("a topic id", !seen.topicId().equals(Uuid.ZERO_UUID), seen.topicId());
        holds("not internal", !seen.isInternal(), seen);
        equal("partitions", 1, seen.partitions().size());
        holds("a leader", seen.partitions().get(0).leader() != null, seen);
        equal("replicas", 1, seen.partitions().get(0).replicas().size());
        equal("in-sync replicas", seen.partitions().get(0).replicas(), seen.partitions().get(0).isr());
        equal("the topic of that id", topic, get(cluster.admin.describeTopics(
                org.apache.kafka.common.TopicCollection.ofTopicIds(Set.of(seen.topicId()))).allTopicIds())
                .get(seen.topicId()).name());
    }

    private ListOffsetsResultInfo offset(OffsetSpec spec) throws Exception {
        return get(cluster.admin.listOffsets(Map.of(zero, spec)).partitionResult(zero));
    }

    private void listOffsets() throws Exception {
        equal("earliest", 0L, offset(OffsetSpec.earliest()).offset());
        equal("latest", (long) COUNT, offset(OffsetSpec.latest()).offset());
        equal("offset of the largest time", 12L, offset(OffsetSpec.maxTimestamp()).offset());
        equal("largest time", Scenario.T0 + 1_000_000, offset(OffsetSpec.maxTimestamp()).timestamp());
        equal("offset for a time", 5L, offset(OffsetSpec.forTimestamp(Scenario.T0 + 4001)).offset());
    }

    private void readCommitted() throws Exception {
        try (var consumer = cluster.assigned(topic, Set.of(0), Map.of("isolation.level", "read_committed"))) {
            model.assertEquals(Cluster.readToEnd(consumer));
        }
    }

    private void deleteRecords() throws Exception {
        long low = get(cluster.admin.deleteRecords(Map.of(zero, RecordsToDelete.beforeOffset(10)))
                .lowWatermarks().get(zero)).lowWatermark();
        equal("low watermark", 10L, low);
        equal("earliest", 10L, offset(OffsetSpec.earliest()).offset());
        equal("offset for a time before it", 10L, offset(OffsetSpec.forTimestamp(Scenario.T0)).offset());
        try (var consumer = cluster.assigned(topic, Set.of(0), Map.of())) {
            model.from(Map.of(0, 10L)).assertEquals(Cluster.readToEnd(consumer));
        }
        equal("refusal", OffsetOutOfRangeException.class, Steps.refused("an offset after the end", () ->
                get(cluster.admin.deleteRecords(Map.of(zero, RecordsToDelete.beforeOffset(1000))).all())).getClass());
    }

    private void createPartitions() throws Exception {
        get(cluster.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all());
        cluster.awaitPartitions(topic, 4);
        Model fresh = new Model();
        cluster.produce(fresh, topic, 3, Map.of(), List.of(new Model.Entry("k", "v", Scenario.T0, List.of())));
        equal("end of the new partition", 1L, fresh.end(3));
        Throwable cause = Steps.refused("fewer partitions", () ->
                get(cluster.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all()));
        equal("refusal", "InvalidPartitionsException", cause.getClass().getSimpleName());
    }

    private Config configs() throws Exception {
        return get(cluster.admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    private void alter(String name, String value, AlterConfigOp.OpType type) throws Exception {
        get(cluster.admin.incrementalAlterConfigs(
                Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), type)))).all());
    }

    private void alterConfigs() throws Exception {
        cluster.createTopic(resource.name(), 1, Map.of());
        ConfigEntry before = configs().get("retention.ms");
        equal("retention.ms at first", "604800000", before.value());
        holds("it to be a default", before.isDefault(), before.source());
        for (String name : List.of("cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type",
                "min.insync.replicas", "retention.bytes", "segment.bytes")) {
            holds("a config " + name, configs().get(name) != null, null);
        }

        alter("retention.ms", "123456789", AlterConfigOp.OpType.SET);
        Steps.await("retention.ms to be altered", () -> configs().get("retention.ms").value().equals("123456789"));
        equal("source", ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, configs().get("retention.ms").source());
        alter("retention.ms", null, AlterConfigOp.OpType.DELETE);
        Steps.await("retention.ms to be the default again", () -> configs().get("retention.ms").isDefault());
        equal("retention.ms at last", before.value(), configs().get("retention.ms").value());

        Throwable cause = Steps.refused("a value that is no number", () ->
                alter("retention.ms", "soon", AlterConfigOp.OpType.SET));
        equal("refusal", "InvalidConfigurationException", cause.getClass().getSimpleName());
        cluster.deleteTopic(resource.name());
    }

    private void logAppendTime() throws Exception {
        String stamped = topic + "-append";
        cluster.createTopic(stamped, 1, Map.of("message.timestamp.type", "LogAppendTime"));
        long before = System.currentTimeMillis();
        RecordMetadata answer;
        try (var producer = cluster.producer(Map.of())) {
            answer = producer.send(new ProducerRecord<>(stamped, 0, Scenario.T0, "k", "v")).get(15, TimeUnit.SECONDS);
        }
        long after = System.currentTimeMillis();
        holds("an append time in the answer between " + before + " and " + after,
                before <= answer.timestamp() && answer.timestamp() <= after, answer.timestamp());
        try (var consumer = cluster.assigned(stamped, Set.of(0), Map.of())) {
            ConsumerRecord<String, String> seen = Cluster.readToEnd(consumer).get(0);
            equal("type of time", TimestampType.LOG_APPEND_TIME, seen.timestampType());
            equal("time", answer.timestamp(), seen.timestamp());
        }
        cluster.deleteTopic(stamped);
    }

    private void maxMessageBytes() throws Exception {
        String small = topic + "-small";
        cluster.createTopic(small, 1, Map.of("max.message.bytes", "1000"));
        Map<Integer, Class<?>> seen = new TreeMap<>();
        try (var producer = cluster.producer(Map.of())) {
            for (int size : List.of(500, 5000, 501)) {
                try {
                    producer.send(new ProducerRecord<>(small, "k", "x".repeat(size))).get(15, TimeUnit.SECONDS);
                } catch (ExecutionException refused) {
                    seen.put(size, refused.getCause().getClass());
                }
            }
        }
        equal("records refused, by size", Map.of(5000, RecordTooLargeException.class), seen);
        cluster.deleteTopic(small);
    }
}
