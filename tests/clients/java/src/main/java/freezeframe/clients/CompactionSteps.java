package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.config.ConfigResource;

/**
 * A compacted topic, read from its beginning once superseded records are gone. That takes a broker that compacts soon
 * after a few megabytes: one whose cleaner rests for a second at most, and whose segments are small.
 */
final class CompactionSteps {
    private static final int KEYS = 10;
    private static final int COUNT = 400;
    private static final String PADDING = "x".repeat(10_000);

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;
    private final Model model = new Model();
    private List<ConsumerRecord<String, String>> seen;

    CompactionSteps(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-compacted-" + run;
    }

    void run() throws Exception {
        if (!isCompactedSoon()) {
            return;
        }
        steps.step("k compacted-topic-write", this::write);
        steps.step("k superseded-records-gone", this::awaitCompaction);
        steps.step("k newest-of-each-key", this::newest);
        steps.step("k offsets-with-gaps", this::offsets);
        steps.step("k compacted-topic-delete", () -> cluster.deleteTopic(topic));
    }

    private boolean isCompactedSoon() throws Exception {
        String id = get(cluster.admin.describeCluster().nodes()).iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        var backoff = get(cluster.admin.describeConfigs(List.of(broker)).all()).get(broker).get("log.cleaner.backoff.ms");
        return backoff != null && Long.parseLong(backoff.value()) <= 1000;
    }

    private void write() throws Exception {
        cluster.createTopic(topic, 1, Map.of("cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01",
                "delete.retention.ms", "86400000"));
        List<Model.Entry> entries = new ArrayList<>();
        for (int i = 0; i < COUNT; i++) {
            // The last of key 9 is a tombstone, long before the end; key 8 has one that is superseded.
            int key = i < COUNT / 2 ? i % KEYS : i % (KEYS - 2);
            boolean isTombstone = i == COUNT / 2 - 1 || i == KEYS + 8;
            String value = isTombstone ? null : i + PADDING;
            entries.add(new Model.Entry("k" + key, value, Scenario.T0 + i, List.of()));
        }
        // Small batches: some go as a whole.
        cluster.produce(model, topic, 0, Map.of("batch.size", 30_000), entries);
    }

    private void awaitCompaction() throws Exception {
        Steps.await("less than half of " + COUNT + " records to be left", () -> {
            try (KafkaConsumer<String, String> consumer = cluster.assigned(topic, Set.of(0), Map.of())) {
                seen = Cluster.readToEnd(consumer);
                equal("position at the end", model.end(0), consumer.position(consumer.assignment().iterator().next()));
            }
            return seen.size() < COUNT / 2;
        });
    }

    private void newest() {
        Map<String, String> expected = new TreeMap<>();
        model.of(0).values().forEach(entry -> expected.put(entry.key(), entry.value()));
        Map<String, String> found = new TreeMap<>();
        seen.forEach(record -> found.put(record.key(), record.value()));
        equal("keys", expected.keySet(), found.keySet());
        expected.forEach((key, value) -> holds("the newest value of " + key,
                java.util.Objects.equals(value, found.get(key)), head(found.get(key))));
        holds("a tombstone as the last of k9", found.get("k9") == null, head(found.get("k9")));
    }

    private void offsets() {
        long last = -1;
        boolean hasGap = false;
        for (ConsumerRecord<String, String> record : seen) {
            holds("offsets that rise above " + last, record.offset() > last, record.offset());
            hasGap |= record.offset() > last + 1;
            last = record.offset();
            Model.Entry entry = model.of(0).get(record.offset());
            equal("key at " + last, entry.key(), record.key());
            equal("time at " + last, entry.timestamp(), record.timestamp());
            holds("the value at " + last, java.util.Objects.equals(entry.value(), record.value()), head(record.value()));
        }
        holds("gaps between the offsets", hasGap, "none");
    }

    private static String head(String value) {
        return value == null ? "null" : value.substring(0, Math.min(value.length(), 8));
    }
}
