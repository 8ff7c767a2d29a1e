package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Share groups (KIP-932): each record is delivered to one member, and again until one has processed it. */
final class SharedRecords {
    private static final Duration PATIENCE = Duration.ofSeconds(40);
    private static final int RECORDS = 20;

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;

    private SharedRecords(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-shared-" + run;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i], arguments[i + 1]);
        }
        Steps steps = new Steps();
        steps.haltAfterSeconds(238);
        try (Cluster cluster = new Cluster(options.get("--bootstrap"))) {
            new SharedRecords(cluster, steps, options.get("--run")).run();
        }
        System.exit(steps.failures() == 0 ? 0 : 1);
    }

    private void run() {
        steps.step("h topics", () -> {
            cluster.createTopic(topic, 2, Cluster.KEEP);
            cluster.createTopic(single(), 1, Cluster.KEEP);
            var entries = Collections.nCopies(RECORDS, new Model.Entry("k", "v", Scenario.T0, List.of()));
            cluster.produce(new Model(), topic, 0, Map.of(), entries);
            cluster.produce(new Model(), topic, 1, Map.of(), entries);
            cluster.produce(new Model(), single(), 0, Map.of(), entries);
        });
        steps.step("h settings-of-a-group", this::settings);
        steps.step("h implicit-acknowledgement-and-offsets", this::implicit);
        steps.step("h each-record-to-one-member", this::share);
        steps.step("h release-and-reject", this::release);
        steps.step("h as-often-as-allowed", this::deliverToTheLimit);
        steps.step("h records-of-a-silent-member-go-to-another", this::silent);
        steps.step("h renew", this::renew);
        steps.step("h only-what-is-committed", this::committed);
        steps.step("h describe-and-list", this::describe);
        steps.step("h offsets-altered-and-deleted", this::alter);
        steps.step("h other-kinds-of-groups", this::otherKinds);
        steps.step("h groups-deleted", this::delete);
        steps.step("h topics-deleted", () -> {
            cluster.deleteTopic(topic);
            cluster.deleteTopic(single());
        });
    }

    /** A topic of one partition: members of a group that read it share that. */
    private String single() {
        return topic + "-single";
    }

    private String group(String name) {
        return "h-" + name + "-" + topic;
    }

    private void configure(String group, Map<String, String> config) throws Exception {
        Collection<AlterConfigOp> set = config.entrySet().stream()
                .map(one -> new AlterConfigOp(new ConfigEntry(one.getKey(), one.getValue()), AlterConfigOp.OpType.SET))
                .toList();
        get(cluster.admin.incrementalAlterConfigs(
                Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), set)).all());
    }

    private KafkaShareConsumer<String, String> member(String group, String mode) {
        return member(group, mode, Map.of());
    }

    private KafkaShareConsumer<String, String> member(String group, String mode, Map<String, Object> more) {
        Map<String, Object> config = Security.with(Map.of(
                "bootstrap.servers", cluster.bootstrap, "group.id", group, "share.acknowledgement.mode", mode,
                "metadata.max.age.ms", 1000));
        config.putAll(more);
        var text = new StringDeserializer();
        var member = new KafkaShareConsumer<>(config, text, text);
        member.subscribe(Set.of(topic));
        return member;
    }

    private static String place(ConsumerRecord<String, String> record) {
        return record.partition() + ":" + record.offset();
    }

    /** Polls a member until it has had so many records, some perhaps more than once; says of each what is given. */
    private List<ConsumerRecord<String, String>> take(
            KafkaShareConsumer<String, String> member, int count, AcknowledgeType type) throws Exception {
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (taken.stream().map(SharedRecords::place).distinct().count() < count) {
            holds(count + " records", System.nanoTime() < deadline, taken.size());
            for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(200))) {
                taken.add(record);
                if (type != null) {
                    member.acknowledge(record, type);
                }
            }
            if (type != null) {
                commit(member);
            }
        }
        return taken;
    }

    private static void commit(KafkaShareConsumer<String, String> member) {
        for (var result : member.commitSync().entrySet()) {
            equal("result for " + result.getKey(), Optional.empty(), result.getValue());
        }
    }

    private Map<TopicPartition, SharePartitionOffsetInfo> offsets(String group) throws Exception {
        var all = get(cluster.admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).all());
        return all.get(group);
    }

    private TopicPartition on(int partition) {
        return new TopicPartition(topic, partition);
    }

    private void settings() throws Exception {
        for (String name : List.of("implicit", "shared", "released", "limited", "silent", "renewed",
                "committed")) {
            configure(group(name), Map.of("share.auto.offset.reset", "earliest"));
        }
        configure(group("silent"), Map.of("share.record.lock.duration.ms", "15000"));
        configure(group("committed"), Map.of("share.isolation.level", "read_committed"));
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group("silent"));
        var config = get(cluster.admin.describeConfigs(Set.of(resource)).all()).get(resource);
        equal("lock", "15000", config.get("share.record.lock.duration.ms").value());
        equal("source", ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG,
                config.get("share.record.lock.duration.ms").source());
        equal("limit", "5", config.get("share.delivery.count.limit").value());
        Throwable cause = Steps.refused("a value that cannot be", () ->
                configure(group("silent"), Map.of("share.auto.offset.reset", "middle")));
        equal("refusal", "InvalidConfigurationException", cause.getClass().getSimpleName());
    }

    private void implicit() throws Exception {
        String group = group("implicit");
        try (var member = member(group, "implicit")) {
            var taken = take(member, 2 * RECORDS, null);
            equal("deliveries", Set.of((short) 1), taken.stream().map(record -> record.deliveryCount().get())
                    .collect(Collectors.toSet()));
            commit(member);
            Steps.await("the group to be done", () -> {
                var seen = offsets(group);
                // Kafka stores where the group stood before the last acknowledgement, and how many records are done.
                return seen.size() == 2 && seen.values().stream().allMatch(one -> one.lag().equals(Optional.of(0L)));
            });
        }
        try (var member = member(group, "implicit")) {
            equal("records that were processed", 0, member.poll(Duration.ofSeconds(3)).count());
        }
    }

    /** Polls until each member has its partitions. What comes meanwhile is delivered again. */
    @SafeVarargs
    private void awaitAssignments(String group, KafkaShareConsumer<String, String>... members) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        do {
            holds("assignments", System.nanoTime() < deadline, "none");
            for (KafkaShareConsumer<String, String> member : members) {
                for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(100))) {
                    member.acknowledge(record, AcknowledgeType.RELEASE);
                }
            }
        } while (describe(group).members().size() < members.length
                || describe(group).members().stream().anyMatch(one -> one.assignment().topicPartitions().isEmpty()));
    }

    private void share() throws Exception {
        String group = group("shared");
        Map<String, Integer> times = new TreeMap<>();
        Map<String, Object> few = Map.of("max.poll.records", 3, "share.acquire.mode", "record_limit");
        try (var left = member(group, "explicit", few); var right = member(group, "explicit", few)) {
            left.subscribe(Set.of(single()));
            right.subscribe(Set.of(single()));
            awaitAssignments(group, left, right);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            int fromLeft = 0;
            while (times.size() < RECORDS) {
                holds("all records", System.nanoTime() < deadline, times.keySet());
                for (var member : List.of(left, right)) {
                    var records = member.poll(Duration.ofMillis(500));
                    holds("no more than three records", records.count() <= 3, records.count());
                    for (ConsumerRecord<String, String> record : records) {
                        times.merge(place(record), 1, Integer::sum);
                        member.acknowledge(record, AcknowledgeType.ACCEPT);
                        fromLeft += member == left ? 1 : 0;
                    }
                    commit(member);
                }
            }
            equal("deliveries", Set.of(1), Set.copyOf(times.values()));
            holds("both to have had records", fromLeft > 0 && fromLeft < RECORDS, fromLeft);
        }
    }

    private void release() throws Exception {
        String group = group("released");
        try (var member = member(group, "explicit")) {
            take(member, 2 * RECORDS, AcknowledgeType.RELEASE);
            var again = take(member, 2 * RECORDS, AcknowledgeType.REJECT);
            holds("no first deliveries", again.stream().noneMatch(record -> record.deliveryCount().get() == 1),
                    again.size());
            equal("records that were rejected", 0, member.poll(Duration.ofSeconds(2)).count());
            equal("records left", Optional.of(0L), offsets(group).get(on(0)).lag());
        }
    }

    private void deliverToTheLimit() throws Exception {
        String group = group("limited");
        Map<String, Integer> times = new TreeMap<>();
        try (var member = member(group, "explicit")) {
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            long quietSince = System.nanoTime();
            while (System.nanoTime() - quietSince < Duration.ofSeconds(3).toNanos() || times.isEmpty()) {
                holds("an end of deliveries", System.nanoTime() < deadline, times);
                for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(300))) {
                    times.merge(place(record), 1, Integer::sum);
                    member.acknowledge(record, AcknowledgeType.RELEASE);
                    quietSince = System.nanoTime();
                }
                commit(member);
            }
        }
        equal("records", 2 * RECORDS, times.size());
        equal("deliveries of each", Set.of(5), Set.copyOf(times.values()));
    }

    private void silent() throws Exception {
        String group = group("silent");
        Map<String, Object> few = Map.of("max.poll.records", 5, "share.acquire.mode", "record_limit");
        try (var silent = member(group, "explicit", few); var other = member(group, "explicit")) {
            silent.subscribe(Set.of(single()));
            other.subscribe(Set.of(single()));
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            var held = silent.poll(Duration.ofMillis(500));
            while (held.isEmpty()) {
                holds("records", System.nanoTime() < deadline, 0);
                held = silent.poll(Duration.ofMillis(500));
            }
            var all = take(other, RECORDS, AcknowledgeType.ACCEPT);
            equal("records", RECORDS, all.stream().map(SharedRecords::place).collect(Collectors.toSet()).size());
            holds("some to come a second time", all.stream().anyMatch(record -> record.deliveryCount().get() == 2),
                    all.size());
        }
    }

    private void renew() throws Exception {
        String group = group("renewed");
        try (var member = member(group, "explicit", Map.of("max.poll.records", 2))) {
            var taken = new ArrayList<ConsumerRecord<String, String>>();
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (taken.isEmpty()) {
                holds("records", System.nanoTime() < deadline, 0);
                member.poll(Duration.ofMillis(500)).forEach(taken::add);
            }
            for (ConsumerRecord<String, String> record : taken) {
                member.acknowledge(record, AcknowledgeType.RENEW);
            }
            commit(member);
            holds("a time limit", member.acquisitionLockTimeoutMs().get() == 30_000, member.acquisitionLockTimeoutMs());
            var renewed = member.poll(Duration.ofMillis(500));
            equal("records", taken.stream().map(SharedRecords::place).toList(),
                    java.util.stream.StreamSupport.stream(renewed.spliterator(), false)
                            .map(SharedRecords::place).toList());
            for (ConsumerRecord<String, String> record : renewed) {
                member.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            commit(member);
        }
    }

    private void committed() throws Exception {
        String group = group("committed");
        try (var member = member(group, "explicit")) {
            take(member, 2 * RECORDS, AcknowledgeType.ACCEPT);
            Map<String, Object> config =
                    Security.with(Map.of("bootstrap.servers", cluster.bootstrap, "transactional.id", group));
            var text = new StringSerializer();
            try (var producer = new KafkaProducer<>(config, text, text)) {
                producer.initTransactions();
                for (String value : List.of("aborted", "committed")) {
                    producer.beginTransaction();
                    for (int nth = 0; nth < 3; nth++) {
                        producer.send(new ProducerRecord<>(topic, 0, "k", value)).get();
                    }
                    if (value.equals("aborted")) {
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
            var taken = take(member, 3, AcknowledgeType.ACCEPT);
            equal("records", List.of("committed", "committed", "committed"),
                    taken.stream().map(ConsumerRecord::value).toList());
            equal("further records", 0, member.poll(Duration.ofSeconds(1)).count());
        }
    }

    private ShareGroupDescription describe(String group) throws Exception {
        return get(cluster.admin.describeShareGroups(List.of(group)).all()).get(group);
    }

    private void describe() throws Exception {
        String group = group("described");
        try (var member = member(group, "explicit", Map.of("client.id", "one"))) {
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            do {
                holds("an assignment", System.nanoTime() < deadline, "none");
                member.poll(Duration.ofMillis(200));
            } while (describe(group).members().stream().noneMatch(
                    one -> one.assignment().topicPartitions().size() == 2));
            ShareGroupDescription seen = describe(group);
            equal("state", GroupState.STABLE, seen.groupState());
            equal("client", List.of("one"), seen.members().stream().map(one -> one.clientId()).toList());
            equal("assignment", Set.of(on(0), on(1)), seen.members().iterator().next().assignment().topicPartitions());
            Map<String, GroupType> types = get(cluster.admin.listGroups(
                    new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE))).all()).stream()
                    .collect(Collectors.toMap(one -> one.groupId(), one -> one.type().get()));
            equal("type", GroupType.SHARE, types.get(group));
            Throwable cause = Steps.refused("to delete a group that has members", () ->
                    get(cluster.admin.deleteShareGroups(List.of(group)).all()));
            equal("refusal", "GroupNotEmptyException", cause.getClass().getSimpleName());
            cause = Steps.refused("to set offsets of a group that has members", () ->
                    get(cluster.admin.alterShareGroupOffsets(group, Map.of(on(0), 0L)).all()));
            equal("refusal", "GroupNotEmptyException", cause.getClass().getSimpleName());
        }
        Steps.await("the group to be empty", () -> describe(group).groupState() == GroupState.EMPTY);
    }

    private void alter() throws Exception {
        String group = group("implicit");
        Steps.await("the group to be empty", () -> describe(group).groupState() == GroupState.EMPTY);
        get(cluster.admin.alterShareGroupOffsets(group, Map.of(on(0), 5L)).all());
        equal("start", 5L, offsets(group).get(on(0)).startOffset());
        try (var member = member(group, "explicit")) {
            var taken = take(member, RECORDS - 5, AcknowledgeType.ACCEPT);
            equal("first", 5L, taken.stream().filter(record -> record.partition() == 0)
                    .mapToLong(ConsumerRecord::offset).min().getAsLong());
        }
        Steps.await("the group to be empty", () -> describe(group).groupState() == GroupState.EMPTY);
        get(cluster.admin.deleteShareGroupOffsets(group, Set.of(topic)).all());
        var left = offsets(group);
        holds("no offsets", left.isEmpty() || left.values().stream().allMatch(one -> one == null), left);
    }

    private void otherKinds() throws Exception {
        String group = group("described");
        Map<String, Object> config = Security.with(Map.of("bootstrap.servers", cluster.bootstrap, "group.id", group,
                "group.protocol", "classic", "enable.auto.commit", false));
        var text = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(config, text, text)) {
            consumer.subscribe(Set.of(topic));
            try {
                consumer.poll(Duration.ofSeconds(10));
                throw new Steps.Mismatch("expected a refusal, saw none");
            } catch (org.apache.kafka.common.errors.InconsistentGroupProtocolException refused) {
                // A share group stays one, also without members.
            }
        }
        Throwable cause = Steps.refused("to describe it as another kind", () ->
                get(cluster.admin.describeConsumerGroups(List.of(group)).all()));
        equal("refusal", "GroupIdNotFoundException", cause.getClass().getSimpleName());
    }

    private void delete() throws Exception {
        List<String> groups = List.of("implicit", "shared", "released", "limited", "silent", "renewed", "committed",
                "described").stream().map(this::group).toList();
        for (String group : groups) {
            Steps.await("the group to be empty", () -> describe(group).groupState() == GroupState.EMPTY);
        }
        get(cluster.admin.deleteShareGroups(groups).all());
        Throwable cause = Steps.refused("to describe a group that is gone", () -> describe(groups.get(0)));
        equal("refusal", "GroupIdNotFoundException", cause.getClass().getSimpleName());
    }
}
