package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Cluster.on;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;

/** Groups as only the Java client asks for them: cooperative and static members, and the admin's view of groups. */
final class GroupSteps {
    private final Cluster cluster;
    private final Steps steps;
    private final String topic;

    GroupSteps(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-groups-" + run;
    }

    void run() {
        steps.step("h groups-topic", () -> {
            cluster.createTopic(topic, 3, Cluster.KEEP);
            Model.Entry entry = new Model.Entry("k", "v", Scenario.T0, List.of());
            for (int partition = 0; partition < 3; partition++) {
                cluster.produce(new Model(), topic, partition, Map.of(), List.of(entry, entry));
            }
        });
        steps.step("h cooperative-sticky-join-and-leave", this::cooperative);
        steps.step("h static-members-rejoin-without-rebalance", this::staticMembers);
        steps.step("h list-and-describe-groups", this::listAndDescribe);
        steps.step("h alter-group-offsets", this::alterOffsets);
        steps.step("h delete-group-offsets", this::deleteOffsets);
        steps.step("h delete-groups", this::deleteGroups);
        steps.step("h groups-topic-delete", () -> cluster.deleteTopic(topic));
    }

    private String group(String name) {
        return "g-" + name + "-" + topic;
    }

    /** Counts what a member is given and what is taken from it. */
    private static final class Counting implements ConsumerRebalanceListener {
        final Set<TopicPartition> revoked = new HashSet<>();
        final Set<TopicPartition> lost = new HashSet<>();
        int assignments = 0;

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAll(partitions);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost.addAll(partitions);
        }
    }

    private void cooperative() throws Exception {
        Map<String, Object> config = Map.of("group.id", group("coop"),
                "partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        Counting stays = new Counting();
        try (var first = cluster.consumer(config)) {
            first.subscribe(Set.of(topic), stays);
            Steps.await("the first member to get all 3 partitions", () -> {
                Cluster.poll(first);
                return first.assignment().size() == 3;
            });
            try (var second = cluster.consumer(config)) {
                second.subscribe(Set.of(topic), new Counting());
                Steps.await("the second member to get one partition and the first to keep two", () -> {
                    Cluster.poll(first);
                    Cluster.poll(second);
                    holds("the first member to keep at least 2", first.assignment().size() >= 2, first.assignment());
                    return first.assignment().size() == 2 && second.assignment().size() == 1;
                });
                equal("partitions taken from the first member", second.assignment(), stays.revoked);
            }
            Steps.await("the first member to get all 3 again", () -> {
                Cluster.poll(first);
                return first.assignment().size() == 3;
            });
            equal("count of partitions ever taken from it", 1, stays.revoked.size());
            equal("partitions it lost", Set.of(), stays.lost);
        }
    }

    private KafkaConsumer<String, String> staticMember(String instance) {
        KafkaConsumer<String, String> member = cluster.consumer(
                Map.of("group.id", group("static"), "group.instance.id", instance));
        return member;
    }

    private void staticMembers() throws Exception {
        Counting counting = new Counting();
        try (var stays = staticMember("one")) {
            stays.subscribe(Set.of(topic), counting);
            Set<TopicPartition> share;
            int generation;
            try (var leaves = staticMember("two")) {
                leaves.subscribe(Set.of(topic));
                Steps.await("both static members to have a share", () -> {
                    Cluster.poll(stays);
                    Cluster.poll(leaves);
                    return !stays.assignment().isEmpty() && !leaves.assignment().isEmpty()
                            && stays.assignment().size() + leaves.assignment().size() == 3;
                });
                share = leaves.assignment();
                generation = stays.groupMetadata().generationId();
                equal("generation of the other", generation, leaves.groupMetadata().generationId());
            }
            int assignments = counting.assignments;
            try (var returns = staticMember("two")) {
                returns.subscribe(Set.of(topic));
                Steps.await("the static member to get its share again", () -> {
                    Cluster.poll(returns);
                    Cluster.poll(stays);
                    return !returns.assignment().isEmpty();
                });
                equal("share of the member that came back", share, returns.assignment());
                equal("its generation", generation, returns.groupMetadata().generationId());
                // A commit is refused if the generation has moved on meanwhile.
                stays.commitSync();
                equal("assignments of the other meanwhile", assignments, counting.assignments);
            }
        }
    }

    private void listAndDescribe() throws Exception {
        String group = group("described");
        try (var left = cluster.consumer(Map.of("group.id", group, "client.id", "left"));
                var right = cluster.consumer(Map.of("group.id", group, "client.id", "right"))) {
            Scenario.consumeTogether(left, right, Set.of(topic));
            left.commitSync();
            right.commitSync();

            ConsumerGroupDescription seen = describe(group);
            equal("state", GroupState.STABLE, seen.groupState());
            equal("clients of its members", new TreeSet<>(Set.of("left", "right")), seen.members().stream()
                    .map(member -> member.clientId()).collect(Collectors.toCollection(TreeSet::new)));
            Set<TopicPartition> shares = new HashSet<>();
            seen.members().forEach(member -> shares.addAll(member.assignment().topicPartitions()));
            equal("shares of its members", on(topic, Set.of(0, 1, 2)), shares);
            equal("assignor", "range", seen.partitionAssignor());
            Map<String, String> states = get(cluster.admin.listGroups(ListGroupsOptions.forConsumerGroups()).all())
                    .stream().filter(listed -> listed.groupId().equals(group))
                    .collect(Collectors.toMap(listed -> listed.groupId(), listed -> listed.groupState().get().toString()));
            equal("listing", Map.of(group, GroupState.STABLE.toString()), states);
            Throwable cause = Steps.refused("to delete a group that has members", () ->
                    get(cluster.admin.deleteConsumerGroups(List.of(group)).all()));
            equal("refusal", "GroupNotEmptyException", cause.getClass().getSimpleName());
        }
        Steps.await("the group to be empty once its members left", () ->
                describe(group).groupState() == GroupState.EMPTY);
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return get(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    private void alterOffsets() throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        on(topic, Set.of(0, 1)).forEach(partition -> offsets.put(partition, new OffsetAndMetadata(1, "altered")));
        get(cluster.admin.alterConsumerGroupOffsets(group("altered"), offsets).all());
        equal("offsets", offsets, committed(group("altered")));
        try (var reader = cluster.consumer(Map.of("group.id", group("altered")))) {
            reader.assign(offsets.keySet());
            equal("records after offset 1", 2, Cluster.readToEnd(reader).size());
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> committed(String group) throws Exception {
        return get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    private void deleteOffsets() throws Exception {
        TopicPartition gone = new TopicPartition(topic, 0);
        get(cluster.admin.deleteConsumerGroupOffsets(group("altered"), Set.of(gone)).all());
        equal("partitions with an offset left", on(topic, Set.of(1)), committed(group("altered")).keySet());
    }

    private void deleteGroups() throws Exception {
        List<String> groups = List.of(group("described"), group("altered"));
        get(cluster.admin.deleteConsumerGroups(groups).all());
        Set<String> left = get(cluster.admin.listGroups(new ListGroupsOptions()).all()).stream()
                .map(listed -> listed.groupId()).filter(groups::contains).collect(Collectors.toSet());
        equal("groups left of those deleted", Set.of(), left);
        Throwable cause = Steps.refused("to delete a group that is not there", () ->
                get(cluster.admin.deleteConsumerGroups(List.of(group("never"))).all()));
        equal("refusal", GroupIdNotFoundException.class, cause.getClass());
    }
}
