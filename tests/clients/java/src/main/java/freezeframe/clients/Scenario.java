package freezeframe.clients;

import static freezeframe.clients.Cluster.byPartition;
import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Cluster.on;
import static freezeframe.clients.Cluster.readToEnd;
import static freezeframe.clients.Steps.equal;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Steps a to h, the same in every language. */
final class Scenario {
    static final long T0 = 1_700_000_000_000L;
    private static final int PER_PASS = 300;
    /** A fetch at the end waits; one that comes back at once is sent thousands of times in a second. */
    private static final int FETCHES_MAX = 20;
    private static final int LEFT_UNREAD = 10;
    /** A broker that has no moments lets each of step f run into this, and the other steps still have their time. */
    static final Map<String, Object> BRIEFLY =
            Map.of("default.api.timeout.ms", 3000, "request.timeout.ms", 2500);
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;
    private final Model model = new Model();

    Scenario(Cluster cluster, Steps steps, String topic) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = topic;
    }

    void run(boolean moments) {
        steps.step("a create-topic", () -> cluster.createTopic(topic, 3, Cluster.KEEP));
        for (String codec : CODECS) {
            steps.step("b produce-" + codec, () -> produce(codec, PER_PASS));
        }
        groupSteps();
        steps.step("e seek-by-time", this::seekByTime);
        steps.step("e seek-by-time-out-of-order", this::seekOutOfOrder);
        TransactionSteps transactions = new TransactionSteps(cluster, steps, topic);
        transactions.run();
        if (moments) {
            momentSteps();
            steps.step("f moment-transaction", transactions::moment);
        }
        steps.step("g delete-topic", () -> cluster.deleteTopic(topic));
    }

    private static List<Model.Entry> pass(String codec, int count) {
        List<Model.Entry> entries = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String value = i % 50 == 7 ? null : codec + "-" + i + "-" + "x".repeat(i % 40);
            entries.add(new Model.Entry("k-" + i, value, T0 + i * 1000L, List.of("h=1", "h=2", "codec=" + codec)));
        }
        return entries;
    }

    private void produce(String codec, int count) throws Exception {
        String compression = CODECS.contains(codec) ? codec : "none";
        cluster.produce(model, topic, null, Map.of("compression.type", compression), pass(codec, count));
        model.assertDense();
    }

    // c, d

    private void groupSteps() {
        String group = "g-" + topic;
        Map<Integer, OffsetAndMetadata> committed = new TreeMap<>();
        steps.step("c group-consume", () -> {
            equal("count of records produced", CODECS.size() * PER_PASS, model.count());
            Map<String, Object> config = Map.of("group.id", group);
            try (var left = cluster.consumer(config); var right = cluster.consumer(config)) {
                model.assertEquals(consumeTogether(left, right, Set.of(topic)));
                commitShortOfEnd(left, committed);
                commitShortOfEnd(right, committed);
            }
        });
        steps.step("d committed-offsets-read-back", () -> {
            equal("partitions committed", model.partitionIds(), committed.keySet());
            equal("offsets by admin", committed, byPartition(get(
                    cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())));
            try (var reader = cluster.consumer(Map.of("group.id", group))) {
                equal("offsets by consumer", committed,
                        byPartition(reader.committed(on(topic, model.partitionIds()))));
            }
        });
        steps.step("d group-resumes", () -> {
            Map<Integer, Long> starts = new TreeMap<>();
            committed.forEach((partition, offset) -> starts.put(partition, offset.offset()));
            try (var member = cluster.consumer(Map.of("group.id", group))) {
                model.from(starts).assertEquals(subscribeAndRead(member, topic, 3));
            }
        });
    }

    /** Two members; neither reads before both have their share, so that no record is read twice for a rebalance. */
    static List<ConsumerRecord<String, String>> consumeTogether(
            KafkaConsumer<String, String> left, KafkaConsumer<String, String> right, Set<String> topics)
            throws Exception {
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        left.subscribe(topics, pauseWhenAssigned(left));
        right.subscribe(topics, pauseWhenAssigned(right));
        Steps.await("two members to share 3 partitions", () -> {
            equal("records read while paused", 0, Cluster.poll(left).size() + Cluster.poll(right).size());
            Set<TopicPartition> all = new HashSet<>(left.assignment());
            all.addAll(right.assignment());
            return !left.assignment().isEmpty() && !right.assignment().isEmpty()
                    && all.size() == 3 && left.assignment().size() + right.assignment().size() == 3;
        });
        left.resume(left.assignment());
        right.resume(right.assignment());
        seen.addAll(readToEnd(left));
        seen.addAll(readToEnd(right));
        return seen;
    }

    private static ConsumerRebalanceListener pauseWhenAssigned(KafkaConsumer<String, String> consumer) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                consumer.pause(partitions);
            }
        };
    }

    private void commitShortOfEnd(KafkaConsumer<String, String> member, Map<Integer, OffsetAndMetadata> committed) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : member.assignment()) {
            long offset = model.end(partition.partition()) - LEFT_UNREAD;
            offsets.put(partition, new OffsetAndMetadata(offset, "left " + LEFT_UNREAD));
        }
        member.commitSync(offsets);
        committed.putAll(byPartition(offsets));
    }

    private static List<ConsumerRecord<String, String>> subscribeAndRead(
            KafkaConsumer<String, String> member, String topic, int partitions) throws Exception {
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        member.subscribe(Set.of(topic));
        Steps.await("one member to get " + partitions + " partitions of " + topic, () -> {
            seen.addAll(Cluster.poll(member));
            return member.assignment().size() == partitions;
        });
        seen.addAll(readToEnd(member));
        return seen;
    }

    // e

    private void seekByTime() throws Exception {
        assertFound(topic, model, List.of(T0 - 1, T0, T0 + 149_999, T0 + 150_000, T0 + 150_001,
                T0 + (PER_PASS - 1) * 1000L, T0 + (PER_PASS - 1) * 1000L + 1));
    }

    private void seekOutOfOrder() throws Exception {
        String late = topic + "-late";
        Model lateModel = new Model();
        cluster.createTopic(late, 1, Cluster.KEEP);
        // One batch per line: nothing is sent before flush, and then all at once.
        List<List<Integer>> batches = List.of(
                List.of(5, 1, 9, 3), List.of(2, 12, 4, 8), List.of(7, 20, 6), List.of(0, 15, 20, 10));
        for (List<Integer> batch : batches) {
            List<Model.Entry> entries = new ArrayList<>();
            batch.forEach(second -> entries.add(
                    new Model.Entry("k", "s" + second, T0 + second * 1000L, List.of())));
            cluster.produce(lateModel, late, 0, Map.of("linger.ms", 5000), entries);
        }
        List<Long> times = new ArrayList<>();
        for (long second = -1; second <= 21; second++) {
            times.addAll(List.of(T0 + second * 1000 - 1, T0 + second * 1000, T0 + second * 1000 + 1));
        }
        assertFound(late, lateModel, times);
        cluster.deleteTopic(late);
    }

    /** The consumer and the admin client both find the first offset whose time is at or after each of `times`. */
    private void assertFound(String topic, Model model, List<Long> times) throws Exception {
        try (var consumer = cluster.consumer(BRIEFLY)) {
            for (long time : times) {
                Map<TopicPartition, Long> asked = new HashMap<>();
                Map<TopicPartition, OffsetSpec> specs = new HashMap<>();
                for (TopicPartition partition : on(topic, model.partitionIds())) {
                    asked.put(partition, time);
                    specs.put(partition, OffsetSpec.forTimestamp(time));
                }
                Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(asked);
                Map<TopicPartition, ListOffsetsResultInfo> listed = get(cluster.admin.listOffsets(specs).all());
                for (TopicPartition partition : asked.keySet()) {
                    Long offset = model.firstAtOrAfter(partition.partition(), time);
                    Long timestamp = offset == null ? null : model.of(partition.partition()).get(offset).timestamp();
                    String what = " at T0+" + (time - T0) + " in " + partition;
                    OffsetAndTimestamp byConsumer = found.get(partition);
                    equal("offset" + what, offset, byConsumer == null ? null : (Long) byConsumer.offset());
                    equal("time" + what, timestamp, byConsumer == null ? null : (Long) byConsumer.timestamp());
                    ListOffsetsResultInfo byAdmin = listed.get(partition);
                    equal("admin's offset" + what, offset == null ? -1L : offset, byAdmin.offset());
                    equal("admin's time" + what, timestamp == null ? -1L : timestamp, byAdmin.timestamp());
                }
            }
        }
    }

    // f

    private void momentSteps() {
        Map<Integer, Long> first = model.ends();
        int before = model.count();
        long m = nextMillisecond();
        steps.step("f moments-produce", () -> produce("after", 50));
        Map<Integer, Long> second = model.ends();
        int between = model.count() - before;
        long m2 = nextMillisecond();
        steps.step("f moments-produce-later", () -> produce("later", 5));

        String at = topic + ".__at.s" + m;
        String window = at + "..s" + m2;
        Map<Integer, Long> starts = new TreeMap<>();
        first.keySet().forEach(partition -> starts.put(partition, 0L));
        steps.step("f moment-assigned", () -> assertSlice(at, starts, first, before));
        steps.step("f moment-second", () -> assertSlice(topic + ".__at.s" + m2, starts, second, before + between));
        steps.step("f window-assigned", () -> assertSlice(window, first, second, between));
        steps.step("f moment-with-at-sign", () -> assertSlice(topic + "@s" + m, starts, first, before));
        steps.step("f window-with-at-sign", () -> assertSlice(topic + "@s" + m + "..s" + m2, first, second, between));
        steps.step("f moment-subscribed", () -> {
            Map<String, Object> config = new HashMap<>(BRIEFLY);
            config.put("group.id", "g-at-" + topic);
            try (var member = cluster.consumer(config)) {
                slice(starts, first).assertEquals(subscribeAndRead(member, at, first.size()));
            }
        });
        steps.step("f moment-seek-by-time", () -> assertFound(at, slice(starts, first),
                List.of(T0, T0 + 150_000, T0 + PER_PASS * 1000L)));
        steps.step("f moment-inside-a-batch", this::assertWaitsInsideBatch);
        for (String readOnly : List.of(at, window)) {
            steps.step("f produce-refused " + readOnly.substring(topic.length()), () -> {
                try (KafkaProducer<String, String> producer = cluster.producer(Map.of())) {
                    Steps.refused("a record for " + readOnly, () ->
                            producer.send(new ProducerRecord<>(readOnly, "k", "v")).get());
                }
                equal("end offsets after it", first, ends(at));
            });
        }
    }

    /**
     * A moment that lies inside of a batch, and a window that holds nothing of it: at their ends the consumer waits,
     * and does not ask again and again.
     */
    private void assertWaitsInsideBatch() throws Exception {
        String inside = topic + "-inside";
        cluster.createTopic(inside, 1, Cluster.KEEP);
        List<Model.Entry> entries = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            entries.add(new Model.Entry("k", "v", T0 + i * 1000L, List.of()));
        }
        // They go into one batch.
        cluster.produce(new Model(), inside, 0, Map.of("linger.ms", 1000), entries);
        assertWaitsAtEnd(inside + ".__at.u" + (T0 + 1500), 2);
        assertWaitsAtEnd(inside + ".__at.u" + (T0 + 500) + "..u" + (T0 + 700), 0);
        cluster.deleteTopic(inside);
    }

    private void assertWaitsAtEnd(String name, int count) throws Exception {
        Map<String, Object> config = new HashMap<>(BRIEFLY);
        config.put("fetch.max.wait.ms", 500);
        try (var consumer = cluster.assigned(name, Set.of(0), config)) {
            consumer.seekToBeginning(consumer.assignment());
            equal("count of records of " + name, count, readToEnd(consumer).size());
            double before = fetches(consumer);
            long until = System.currentTimeMillis() + 1000;
            while (System.currentTimeMillis() < until) {
                equal("records behind the end of " + name, 0, Cluster.poll(consumer).size());
            }
            double sent = fetches(consumer) - before;
            Steps.holds("up to " + FETCHES_MAX + " fetches at the end of " + name, sent <= FETCHES_MAX, sent);
        }
    }

    private static double fetches(KafkaConsumer<String, String> consumer) {
        return consumer.metrics().values().stream()
                .filter(metric -> metric.metricName().name().equals("fetch-total"))
                .mapToDouble(metric -> (Double) metric.metricValue())
                .sum();
    }

    /** A moment that no record produced so far lies after, and every later one does. The clock is this machine's. */
    static long nextMillisecond() {
        long m = System.currentTimeMillis() + 1;
        while (System.currentTimeMillis() <= m) {
            Thread.onSpinWait();
        }
        return m;
    }

    private Map<Integer, Long> ends(String name) {
        try (var consumer = cluster.consumer(BRIEFLY)) {
            return byPartition(consumer.endOffsets(on(name, model.partitionIds())));
        }
    }

    private Model slice(Map<Integer, Long> starts, Map<Integer, Long> ends) {
        Model slice = new Model();
        for (int partition : ends.keySet()) {
            model.of(partition).subMap(starts.get(partition), ends.get(partition))
                    .forEach((offset, entry) -> slice.put(partition, offset, entry));
        }
        return slice;
    }

    private void assertSlice(String name, Map<Integer, Long> starts, Map<Integer, Long> ends, int count)
            throws Exception {
        try (var consumer = cluster.assigned(name, ends.keySet(), BRIEFLY)) {
            equal("start offsets", starts, byPartition(consumer.beginningOffsets(consumer.assignment())));
            equal("end offsets", ends, byPartition(consumer.endOffsets(consumer.assignment())));
            consumer.seekToBeginning(consumer.assignment());
            List<ConsumerRecord<String, String>> seen = readToEnd(consumer);
            equal("count of records", count, seen.size());
            slice(starts, ends).assertEquals(seen);
        }
    }
}
