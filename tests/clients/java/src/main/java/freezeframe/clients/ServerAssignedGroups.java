package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Cluster.on;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;

/**
 * Groups of group.protocol=consumer (KIP-848). Members hear of changes with their next heartbeat, which by default is
 * every five seconds, so these steps take longer than all others and are a program of their own.
 */
final class ServerAssignedGroups {
    private static final Duration PATIENCE = Duration.ofSeconds(40);

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;

    private ServerAssignedGroups(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-assigned-" + run;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i], arguments[i + 1]);
        }
        Steps steps = new Steps();
        steps.haltAfterSeconds(238);
        try (Cluster cluster = new Cluster(options.get("--bootstrap"))) {
            new ServerAssignedGroups(cluster, steps, options.get("--run")).run();
        }
        System.exit(steps.failures() == 0 ? 0 : 1);
    }

    private void run() {
        steps.step("s topic", () -> {
            cluster.createTopic(topic, 4, Cluster.KEEP);
            Model.Entry entry = new Model.Entry("k", "v", Scenario.T0, List.of());
            for (int partition = 0; partition < 4; partition++) {
                cluster.produce(new Model(), topic, partition, Map.of(), List.of(entry, entry));
            }
        });
        steps.step("s join-share-describe-and-leave", this::share);
        steps.step("s offsets-are-committed-and-continued", this::offsets);
        steps.step("s range-assignor", this::range);
        steps.step("s static-member-comes-back", this::staticMember);
        steps.step("s topics-by-regular-expression", this::regex);
        steps.step("s partitions-added-are-assigned", this::partitionsAdded);
        steps.step("s classic-group-is-upgraded-and-downgraded-live", this::migrate);
        steps.step("s offsets-altered-and-deleted", this::alter);
        steps.step("s delete-groups", this::delete);
        steps.step("s topics-deleted", () -> {
            cluster.deleteTopic(topic);
            cluster.deleteTopic(topic + "-more");
        });
    }

    private String group(String name) {
        return "g-" + name + "-" + topic;
    }

    private KafkaConsumer<String, String> member(String group, Map<String, Object> more) {
        Map<String, Object> config = Security.with(Map.of(
                "bootstrap.servers", cluster.bootstrap, "enable.auto.commit", false, "auto.offset.reset", "earliest",
                "group.protocol", "consumer", "group.id", group, "metadata.max.age.ms", 1000));
        config.putAll(more);
        var text = new org.apache.kafka.common.serialization.StringDeserializer();
        return new KafkaConsumer<>(config, text, text);
    }

    /** Polls these members until it holds. A condition that looks at records polls itself. */
    @SafeVarargs
    private static void await(String expected, Steps.Condition condition, KafkaConsumer<String, String>... members)
            throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.holds()) {
            String seen = Arrays.stream(members).map(member -> member.assignment().toString())
                    .collect(Collectors.joining(" and "));
            holds(expected, System.nanoTime() < deadline, seen);
            for (KafkaConsumer<String, String> member : members) {
                Cluster.poll(member);
            }
        }
    }

    @SafeVarargs
    private static boolean haveAll(int count, KafkaConsumer<String, String>... members) {
        Set<TopicPartition> all = new HashSet<>();
        int sum = 0;
        for (KafkaConsumer<String, String> member : members) {
            all.addAll(member.assignment());
            sum += member.assignment().size();
        }
        return all.size() == count && sum == count && Arrays.stream(members).noneMatch(m -> m.assignment().isEmpty());
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return get(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    private void share() throws Exception {
        String group = group("shared");
        try (var left = member(group, Map.of("client.id", "left"))) {
            left.subscribe(Set.of(topic));
            await("the first member to get all", () -> haveAll(4, left), left);
            try (var right = member(group, Map.of("client.id", "right"))) {
                right.subscribe(Set.of(topic));
                await("both to share", () -> haveAll(4, left, right), left, right);
                equal("share of each", 2, right.assignment().size());
                await("the group to be stable", () -> describe(group).groupState() == GroupState.STABLE, left, right);
                ConsumerGroupDescription seen = describe(group);
                equal("type", GroupType.CONSUMER, seen.type());
                equal("assignor", "uniform", seen.partitionAssignor());
                equal("clients", new TreeSet<>(Set.of("left", "right")), seen.members().stream()
                        .map(MemberDescription::clientId).collect(Collectors.toCollection(TreeSet::new)));
                for (MemberDescription one : seen.members()) {
                    var has = (one.clientId().equals("left") ? left : right).assignment();
                    equal("assignment", has, one.assignment().topicPartitions());
                    equal("target", has, one.targetAssignment().get().topicPartitions());
                    equal("epoch", seen.groupEpoch(), one.memberEpoch());
                    equal("speaks the new protocol", true, one.upgraded().get());
                }
                Throwable cause = Steps.refused("to delete a group that has members", () ->
                        get(cluster.admin.deleteConsumerGroups(List.of(group)).all()));
                equal("refusal", "GroupNotEmptyException", cause.getClass().getSimpleName());
                Map<String, GroupType> types = get(cluster.admin.listGroups(
                        new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all()).stream()
                        .filter(listed -> listed.groupId().equals(group))
                        .collect(Collectors.toMap(listed -> listed.groupId(), listed -> listed.type().get()));
                equal("listing by type", Map.of(group, GroupType.CONSUMER), types);
            }
            await("the one that stays to get all again", () -> haveAll(4, left), left);
        }
        equal("state once all have left", GroupState.EMPTY, describe(group).groupState());
    }

    private void offsets() throws Exception {
        String group = group("offsets");
        try (var first = member(group, Map.of())) {
            first.subscribe(Set.of(topic));
            Set<TopicPartition> read = new HashSet<>();
            await("a record of each partition", () -> {
                Cluster.poll(first).forEach(record -> read.add(new TopicPartition(record.topic(), record.partition())));
                return read.size() == 4;
            });
            Map<TopicPartition, OffsetAndMetadata> half = new HashMap<>();
            read.forEach(partition -> half.put(partition, new OffsetAndMetadata(1, "half")));
            first.commitSync(half);
            equal("committed", half, first.committed(read));
        }
        try (var second = member(group, Map.of())) {
            second.subscribe(Set.of(topic));
            Set<Long> offsets = new HashSet<>();
            int[] count = {0};
            await("the other half", () -> {
                Cluster.poll(second).forEach(record -> {
                    offsets.add(record.offset());
                    count[0]++;
                });
                return count[0] >= 4;
            });
            equal("offsets", Set.of(1L), offsets);
        }
    }

    private void range() throws Exception {
        String group = group("range");
        Map<String, Object> config = Map.of("group.remote.assignor", "range");
        try (var left = member(group, config); var right = member(group, config)) {
            left.subscribe(Set.of(topic));
            right.subscribe(Set.of(topic));
            await("both to share", () -> haveAll(4, left, right), left, right);
            Set<Set<TopicPartition>> ranges = Set.of(on(topic, Set.of(0, 1)), on(topic, Set.of(2, 3)));
            equal("ranges", ranges, Set.of(left.assignment(), right.assignment()));
            equal("assignor", "range", describe(group).partitionAssignor());
        }
    }

    private void staticMember() throws Exception {
        String group = group("static");
        try (var stays = member(group, Map.of("group.instance.id", "one"))) {
            stays.subscribe(Set.of(topic));
            Set<TopicPartition> share;
            try (var leaves = member(group, Map.of("group.instance.id", "two"))) {
                leaves.subscribe(Set.of(topic));
                await("both to share", () -> haveAll(4, stays, leaves), stays, leaves);
                share = leaves.assignment();
            }
            int epoch = describe(group).groupEpoch().get();
            try (var returns = member(group, Map.of("group.instance.id", "two"))) {
                returns.subscribe(Set.of(topic));
                await("the static member to come back", () -> !returns.assignment().isEmpty(), stays, returns);
                equal("share", share, returns.assignment());
                equal("epoch of the group", epoch, describe(group).groupEpoch().get());
            }
        }
    }

    private void regex() throws Exception {
        String group = group("regex");
        try (var member = member(group, Map.of())) {
            member.subscribe(new SubscriptionPattern(Pattern.quote(topic) + ".*"));
            await("the topic that there is", () -> haveAll(4, member), member);
            cluster.createTopic(topic + "-more", 2, Cluster.KEEP);
            await("the topic that comes", () -> haveAll(6, member), member);
        }
        try (var member = member(group("no-regex"), Map.of())) {
            member.subscribe(new SubscriptionPattern("("));
            String seen = "nothing";
            try {
                await("the expression to be refused", () -> false, member);
            } catch (org.apache.kafka.common.errors.InvalidRegularExpression refused) {
                seen = "refused";
            }
            equal("answer to an expression that is none", "refused", seen);
        }
    }

    private void partitionsAdded() throws Exception {
        try (var member = member(group("grown"), Map.of())) {
            member.subscribe(Set.of(topic + "-more"));
            await("all partitions", () -> haveAll(2, member), member);
            get(cluster.admin.createPartitions(Map.of(topic + "-more",
                    org.apache.kafka.clients.admin.NewPartitions.increaseTo(5))).all());
            await("the new partitions too", () -> haveAll(5, member), member);
        }
    }

    private void migrate() throws Exception {
        String group = group("migrated");
        Map<String, Object> classic = Map.of("group.id", group, "session.timeout.ms", 30000,
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        try (var old = cluster.consumer(classic)) {
            old.subscribe(Set.of(topic));
            await("the classic member to get all", () -> haveAll(4, old), old);
            equal("type", GroupType.CLASSIC, describe(group).type());
            try (var modern = member(group, Map.of())) {
                modern.subscribe(Set.of(topic));
                await("members of both protocols to share", () -> haveAll(4, old, modern), old, modern);
                equal("type", GroupType.CONSUMER, describe(group).type());
                equal("members by protocol", Set.of(true, false), describe(group).members().stream()
                        .map(one -> one.upgraded().get()).collect(Collectors.toSet()));
                old.commitSync(old.assignment().stream().collect(
                        Collectors.toMap(partition -> partition, partition -> new OffsetAndMetadata(1))));
                modern.commitSync(modern.assignment().stream().collect(
                        Collectors.toMap(partition -> partition, partition -> new OffsetAndMetadata(2))));
            }
            await("the classic member to get all again", () -> haveAll(4, old), old);
            equal("type", GroupType.CLASSIC, describe(group).type());
            equal("partitions with an offset", 4,
                    get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).size());
        }
    }

    private void alter() throws Exception {
        String group = group("offsets");
        Map<TopicPartition, OffsetAndMetadata> altered = new HashMap<>();
        on(topic, Set.of(0, 1)).forEach(partition -> altered.put(partition, new OffsetAndMetadata(2, "altered")));
        get(cluster.admin.alterConsumerGroupOffsets(group, altered).all());
        Set<TopicPartition> gone = on(topic, Set.of(2, 3));
        get(cluster.admin.deleteConsumerGroupOffsets(group, gone).all());
        equal("offsets", altered, get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()));
        try (var member = member(group, Map.of())) {
            member.subscribe(Set.of(topic));
            await("all partitions", () -> haveAll(4, member), member);
            Throwable cause = Steps.refused("to alter offsets of a group that has members", () ->
                    get(cluster.admin.alterConsumerGroupOffsets(group, altered).all()));
            equal("refusal", "UnknownMemberIdException", cause.getClass().getSimpleName());
        }
    }

    private void delete() throws Exception {
        List<String> groups = List.of(group("shared"), group("offsets"), group("range"), group("regex"));
        get(cluster.admin.deleteConsumerGroups(groups).all());
        Set<String> left = get(cluster.admin.listGroups(new ListGroupsOptions()).all()).stream()
                .map(listed -> listed.groupId()).filter(groups::contains).collect(Collectors.toSet());
        equal("groups left of those deleted", Set.of(), left);
    }
}
