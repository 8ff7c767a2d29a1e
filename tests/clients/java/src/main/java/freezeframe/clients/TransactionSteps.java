package freezeframe.clients;

import static freezeframe.clients.Cluster.byPartition;
import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Cluster.on;
import static freezeframe.clients.Cluster.readToEnd;
import static freezeframe.clients.Steps.equal;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/** What is read of transactions, the same in every language. Each step has topics of its own. */
final class TransactionSteps {
    private static final Set<Integer> PARTITIONS = Set.of(0, 1, 2);
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");
    private static final Map<String, Object> UNCOMMITTED = Map.of("isolation.level", "read_uncommitted");

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;

    TransactionSteps(Cluster cluster, Steps steps, String topic) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = topic + "-txn";
    }

    void run() {
        steps.step("h transaction-commit-and-abort", this::commitAndAbort);
        steps.step("h consume-transform-produce", this::consumeTransformProduce);
        steps.step("h fencing", this::fencing);
    }

    private void commitAndAbort() throws Exception {
        cluster.createTopic(topic, PARTITIONS.size(), Cluster.KEEP);
        try (var producer = cluster.transactional(topic); var plain = cluster.producer(Map.of())) {
            Model before = send(plain, topic, "before");
            producer.beginTransaction();
            Model first = send(producer, topic, "first");
            assertReads(topic, COMMITTED, before);
            equal("last stable offsets", before.ends(), ends(topic));
            producer.commitTransaction();

            producer.beginTransaction();
            Model aborted = send(producer, topic, "aborted");
            Model behind = send(plain, topic, "behind");
            Model committed = Model.union(before, first);
            assertReads(topic, COMMITTED, committed);
            assertReads(topic, UNCOMMITTED, Model.union(committed, aborted, behind));
            producer.abortTransaction();

            producer.beginTransaction();
            Model second = send(producer, topic, "second");
            producer.commitTransaction();
            committed = Model.union(committed, behind, second);
            assertReads(topic, COMMITTED, committed);
            assertReads(topic, UNCOMMITTED, Model.union(committed, aborted));
        }
        cluster.deleteTopic(topic);
    }

    private void consumeTransformProduce() throws Exception {
        String in = topic + "-in";
        String out = topic + "-out";
        String group = "g-" + topic;
        cluster.createTopic(in, PARTITIONS.size(), Cluster.KEEP);
        cluster.createTopic(out, PARTITIONS.size(), Cluster.KEEP);
        Model input;
        try (var plain = cluster.producer(Map.of())) {
            input = send(plain, in, "in");
        }
        Map<String, Object> config = new HashMap<>(COMMITTED);
        config.putAll(Map.of("group.id", group, "max.poll.records", 4));
        try (var consumer = cluster.consumer(config); var producer = cluster.transactional(group)) {
            consumer.subscribe(Set.of(in));
            int transactions = 0;
            for (int done = 0; done < input.count(); transactions++) {
                List<ConsumerRecord<String, String>> polled = new ArrayList<>();
                Steps.await("more of the input", () -> polled.addAll(Cluster.poll(consumer)));
                producer.beginTransaction();
                polled.forEach(record -> producer.send(transformed(out, record)));
                producer.sendOffsetsToTransaction(positions(consumer), consumer.groupMetadata());
                if (transactions == 1) {
                    producer.abortTransaction();
                    rewind(consumer);
                } else {
                    producer.commitTransaction();
                    done += polled.size();
                }
            }
        }
        Map<Integer, List<String>> expected = new TreeMap<>();
        input.partitionIds().forEach(partition -> expected.put(partition,
                input.of(partition).values().stream().map(entry -> "out of " + entry.value()).toList()));
        equal("output", expected, values(read(out, COMMITTED, input.count())));
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        input.ends().forEach((partition, end) -> ends.put(new TopicPartition(in, partition), new OffsetAndMetadata(end)));
        Steps.await("committed offsets " + ends, () ->
                get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).equals(ends));
        cluster.deleteTopic(in);
        cluster.deleteTopic(out);
    }

    private static ProducerRecord<String, String> transformed(String out, ConsumerRecord<String, String> record) {
        return new ProducerRecord<>(out, record.partition(), record.timestamp(), record.key(), "out of " + record.value());
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (TopicPartition partition : consumer.assignment()) {
            positions.put(partition, new OffsetAndMetadata(consumer.position(partition)));
        }
        return positions;
    }

    private static void rewind(KafkaConsumer<String, String> consumer) {
        consumer.committed(consumer.assignment()).forEach((partition, at) ->
                consumer.seek(partition, at == null ? 0 : at.offset()));
    }

    private void fencing() throws Exception {
        String topic = this.topic + "-fenced";
        cluster.createTopic(topic, PARTITIONS.size(), Cluster.KEEP);
        try (var first = cluster.transactional(topic)) {
            first.beginTransaction();
            send(first, topic, "fenced");
            try (var second = cluster.transactional(topic)) {
                second.beginTransaction();
                Model seen = send(second, topic, "second");
                assertFenced(first);
                second.commitTransaction();
                assertReads(topic, COMMITTED, seen);
            }
        }
        cluster.deleteTopic(topic);
    }

    static void assertFenced(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (ProducerFencedException fenced) {
            return;
        }
        throw new Steps.Mismatch("expected the commit of a fenced producer to be refused, saw it succeed");
    }

    /**
     * A moment while a transaction is open has nothing of it for ever, and holds nobody back; one after its commit has
     * all.
     */
    void moment() throws Exception {
        String topic = this.topic + "-moment";
        cluster.createTopic(topic, PARTITIONS.size(), Cluster.KEEP);
        try (var producer = cluster.transactional(topic); var plain = cluster.producer(Map.of())) {
            Model before = send(plain, topic, "before");
            producer.beginTransaction();
            Model open = send(producer, topic, "open");
            long m = Scenario.nextMillisecond();
            producer.commitTransaction();
            Model all = Model.union(before, open);
            assertReads(topic, COMMITTED, all);
            long m2 = Scenario.nextMillisecond();

            equal("end offsets while open", open.ends(), ends(topic + ".__at.s" + m));
            assertReads(topic + ".__at.s" + m, COMMITTED, before);
            assertReads(topic + ".__at.s" + m, UNCOMMITTED, all);
            assertReads(topic + ".__at.s" + m2, COMMITTED, all);
        }
        cluster.deleteTopic(topic);
    }

    private Map<Integer, Long> ends(String topic) {
        Map<String, Object> config = new HashMap<>(Scenario.BRIEFLY);
        config.putAll(COMMITTED);
        try (var consumer = cluster.consumer(config)) {
            return byPartition(consumer.endOffsets(on(topic, PARTITIONS)));
        }
    }

    /** Sends some to each partition, and gives where they went. */
    private static Model send(KafkaProducer<String, String> producer, String topic, String label) throws Exception {
        Model sent = new Model();
        for (int partition : PARTITIONS) {
            Cluster.send(producer, sent, topic, partition, entries(label));
        }
        return sent;
    }

    private static List<Model.Entry> entries(String label) {
        List<Model.Entry> entries = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            entries.add(new Model.Entry("k-" + i, label + "-" + i, Scenario.T0 + i * 1000L, List.of()));
        }
        return entries;
    }

    private void assertReads(String topic, Map<String, Object> isolation, Model expected) throws Exception {
        expected.assertEquals(read(topic, isolation, expected.count()));
    }

    /** Reads as many records as that, and what is there beyond them: a commit may be answered before it is seen. */
    private List<ConsumerRecord<String, String>> read(String topic, Map<String, Object> isolation, int count)
            throws Exception {
        try (var consumer = cluster.assigned(topic, PARTITIONS, isolation)) {
            List<ConsumerRecord<String, String>> seen = new ArrayList<>();
            Steps.await(count + " records of " + topic, () -> {
                seen.addAll(Cluster.poll(consumer));
                return seen.size() >= count;
            });
            seen.addAll(readToEnd(consumer));
            return seen;
        }
    }

    private static Map<Integer, List<String>> values(List<ConsumerRecord<String, String>> records) {
        Map<Integer, List<String>> values = new TreeMap<>();
        records.forEach(record ->
                values.computeIfAbsent(record.partition(), p -> new ArrayList<>()).add(record.value()));
        return values;
    }
}
