package freezeframe.streams;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupMemberAssignment.TaskIds;
import org.apache.kafka.clients.admin.StreamsGroupMemberDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * What applications with group.protocol=streams and their administrators see: Groups BOOTSTRAP RUN. It prints a line a
 * step, and ends with 1 if one fails. Give the server group.streams.heartbeat.interval.ms=500 and
 * group.streams.session.timeout.ms=6000, so that it does not take long.
 */
public final class Groups {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int PARTITIONS = 4;
    /** Kafka 4.3.1 fails where a member with an endpoint waits for a source topic. */
    private static final String WITHOUT_ENDPOINT = "waiting";

    private final String bootstrap;
    private final String in;
    private final String id;
    private final Admin admin;
    private final List<KafkaStreams> started = new ArrayList<>();
    private int steps;

    private Groups(String bootstrap, String run) {
        this.bootstrap = bootstrap;
        in = "in-" + run;
        id = "app-" + run;
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        Groups groups = new Groups(arguments[0], arguments[1]);
        try {
            groups.run();
        } catch (Throwable problem) {
            problem.printStackTrace(System.out);
            System.out.println("FAILED after " + groups.steps + " steps");
            Runtime.getRuntime().halt(1);
        }
        System.out.println("all " + groups.steps + " steps");
        Runtime.getRuntime().halt(0);
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private void await(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!holds(condition)) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("expected: " + what + "; saw " + described());
            }
            Thread.sleep(100);
        }
        done(what);
    }

    /** A group that is not there yet is no failure. */
    private static boolean holds(Condition condition) throws Exception {
        try {
            return condition.holds();
        } catch (ExecutionException problem) {
            if (problem.getCause() instanceof GroupIdNotFoundException) {
                return false;
            }
            throw problem;
        }
    }

    private void equal(String what, Object expected, Object seen) {
        if (!expected.equals(seen)) {
            throw new AssertionError(what + ": expected " + expected + ", saw " + seen);
        }
        done(what);
    }

    private void done(String what) {
        System.out.println("ok " + ++steps + " " + what);
    }

    private String described() {
        try {
            return describe().toString();
        } catch (Exception problem) {
            return problem.toString();
        }
    }

    private StreamsGroupDescription describe() throws Exception {
        return admin.describeStreamsGroups(List.of(id)).describedGroups().get(id).get();
    }

    private KafkaStreams start(String name, String protocol, AtomicBoolean fails) throws Exception {
        Path state = Files.createTempDirectory("freezeframe-streams");
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.CLIENT_ID_CONFIG, name);
        config.put(StreamsConfig.STATE_DIR_CONFIG, state.toString());
        config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
        if (!name.equals(WITHOUT_ENDPOINT)) {
            config.put(StreamsConfig.APPLICATION_SERVER_CONFIG, name + ":80");
        }
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(in)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .peek((key, word) -> {
                    if (fails.get()) {
                        throw new IllegalStateException("as it was told");
                    }
                })
                .groupBy((key, word) -> word)
                .count(Materialized.as("counts"));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(problem -> StreamThreadExceptionResponse.SHUTDOWN_APPLICATION);
        streams.start();
        started.add(streams);
        return streams;
    }

    private KafkaStreams start(String name) throws Exception {
        return start(name, "streams", new AtomicBoolean());
    }

    private void produce(String line) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all");
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int key = 0; key < 8; key++) {
                producer.send(new ProducerRecord<>(in, key % PARTITIONS, "k" + key, line)).get();
            }
        }
    }

    private static int count(List<TaskIds> tasks) {
        return tasks.stream().mapToInt(some -> some.partitions().size()).sum();
    }

    private static int active(Collection<StreamsGroupMemberDescription> members) {
        return members.stream().mapToInt(one -> count(one.assignment().activeTasks())).sum();
    }

    private static int standby(Collection<StreamsGroupMemberDescription> members) {
        return members.stream().mapToInt(one -> count(one.assignment().standbyTasks())).sum();
    }

    private boolean isSettled(int members) throws Exception {
        StreamsGroupDescription group = describe();
        return group.groupState() == GroupState.STABLE && group.members().size() == members
                && active(group.members()) == 2 * PARTITIONS;
    }

    private static long counted(KafkaStreams streams, String word) {
        Long seen = streams.store(StoreQueryParameters.fromNameAndType("counts",
                QueryableStoreTypes.<String, Long>keyValueStore())).get(word);
        return seen == null ? 0 : seen;
    }

    /** The count of a word, of whichever instance has it. */
    private long countedAnywhere(String word) {
        long most = 0;
        for (KafkaStreams streams : started) {
            if (streams.state() == KafkaStreams.State.RUNNING) {
                try {
                    most = Math.max(most, counted(streams, word));
                } catch (RuntimeException notYet) {
                    // It is asked again.
                }
            }
        }
        return most;
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets() throws Exception {
        return admin.listStreamsGroupOffsets(Map.of(id, new ListStreamsGroupOffsetsSpec()))
                .partitionsToOffsetAndMetadata(id).get();
    }

    private String failure(org.apache.kafka.common.KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            return "none";
        } catch (ExecutionException problem) {
            return problem.getCause().getClass().getSimpleName();
        }
    }

    private void run() throws Exception {
        KafkaStreams waiting = start(WITHOUT_ENDPOINT);
        await("a group waits for its source topic", () -> describe().groupState() == GroupState.NOT_READY);
        admin.createTopics(List.of(new NewTopic(in, PARTITIONS, (short) 1))).all().get();
        await("and goes on once it is there", () -> isSettled(2));
        waiting.close(Duration.ofSeconds(20));
        await("nobody is left", () -> describe().groupState() == GroupState.EMPTY);
        KafkaStreams first = start("first");
        await("two threads have all tasks", () -> isSettled(2));
        Set<String> topics = admin.listTopics().names().get();
        equal("internal topics are made", true, topics.containsAll(
                List.of(id + "-counts-changelog", id + "-counts-repartition")));
        var changelog = new ConfigResource(ConfigResource.Type.TOPIC, id + "-counts-changelog");
        equal("with their settings", "compact", admin.describeConfigs(List.of(changelog)).all().get()
                .get(changelog).get("cleanup.policy").value());
        StreamsGroupDescription group = describe();
        equal("the topology is described", Set.of(id + "-counts-changelog"), group.subtopologies().stream()
                .flatMap(one -> one.stateChangelogTopics().keySet().stream()).collect(Collectors.toSet()));
        equal("members say where they are", Set.of("first"), group.members().stream()
                .map(one -> one.clientId().replaceAll("-StreamThread.*", "")).collect(Collectors.toSet()));
        equal("each thread has half", Set.of(PARTITIONS), group.members().stream()
                .map(one -> count(one.assignment().activeTasks())).collect(Collectors.toSet()));
        equal("it is listed by its type", Set.of(id), admin.listGroups(
                ListGroupsOptions.forStreamsGroups()).all().get().stream()
                .filter(one -> one.groupId().equals(id) && one.type().equals(java.util.Optional.of(GroupType.STREAMS)))
                .map(one -> one.groupId()).collect(Collectors.toSet()));
        produce("cut log cut");
        await("words are counted", () -> countedAnywhere("cut") == 16);

        KafkaStreams second = start("second");
        await("a second process takes its share", () -> isSettled(4) && describe().members().stream()
                .allMatch(one -> count(one.assignment().activeTasks()) == 2));
        await("queries find both processes", () -> Set.of(new HostInfo("first", 80), new HostInfo("second", 80)).equals(
                first.metadataForAllStreamsClients().stream().filter(one -> !one.topicPartitions().isEmpty())
                        .map(one -> one.hostInfo()).collect(Collectors.toSet())));
        var resource = new ConfigResource(ConfigResource.Type.GROUP, id);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("streams.num.standby.replicas", "1"), AlterConfigOp.OpType.SET)))).all().get();
        await("a setting of the group gives it standbys", () -> isSettled(4)
                && standby(describe().members()) == PARTITIONS);
        equal("a group with members is not deleted", "GroupNotEmptyException",
                failure(admin.deleteStreamsGroups(List.of(id)).all()));
        TopicPartition partition = new TopicPartition(in, 0);
        String refused = failure(admin.alterStreamsGroupOffsets(id, Map.of(partition, new OffsetAndMetadata(0))).all());
        equal("nor are its offsets set", true, !refused.equals("none"));
        second.close(Duration.ofSeconds(20));
        await("one process has all tasks again", () -> isSettled(2));
        produce("cut");
        await("and goes on with the counts", () -> countedAnywhere("cut") == 24);

        await("offsets are listed", () -> {
            Map<TopicPartition, OffsetAndMetadata> all = offsets();
            return all.entrySet().stream().filter(one -> one.getKey().topic().equals(in))
                    .mapToLong(one -> one.getValue().offset()).sum() == 16;
        });
        first.close(Duration.ofSeconds(20));
        await("nobody is left", () -> describe().groupState() == GroupState.EMPTY);
        admin.alterStreamsGroupOffsets(id, Map.of(partition, new OffsetAndMetadata(1))).all().get();
        equal("offsets are set without members", 1L, offsets().get(partition).offset());
        admin.deleteStreamsGroupOffsets(id, Set.of(partition)).all().get();
        equal("and deleted", false, offsets().containsKey(partition) && offsets().get(partition) != null);

        KafkaStreams third = start("third", "classic", new AtomicBoolean());
        await("the application goes over to a classic group", () -> third.state() == KafkaStreams.State.RUNNING
                && admin.listGroups().all().get().stream().anyMatch(one -> one.groupId().equals(id)
                        && one.type().equals(java.util.Optional.of(GroupType.CLASSIC))));
        // Without this its members stay until their sessions end.
        third.close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(20)));
        AtomicBoolean fails = new AtomicBoolean();
        KafkaStreams fourth = start("fourth", "streams", fails);
        KafkaStreams fifth = start("fifth", "streams", fails);
        await("and back", () -> isSettled(4));
        fails.set(true);
        produce("cut");
        await("one that fails ends all", () -> fourth.state().hasCompletedShutdown() && fifth.state().hasCompletedShutdown());
        fourth.close(Duration.ofSeconds(20));
        fifth.close(Duration.ofSeconds(20));
        await("nobody is left", () -> describe().groupState() == GroupState.EMPTY);
        admin.deleteStreamsGroups(List.of(id)).all().get();
        equal("the group is deleted", "GroupIdNotFoundException",
                failure(admin.describeStreamsGroups(List.of(id)).all()));
    }
}
