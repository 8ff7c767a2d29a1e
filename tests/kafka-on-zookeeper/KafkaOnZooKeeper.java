package freezeframe.zookeeper;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.zookeeper.ZooKeeper;

/** KafkaOnZooKeeper FREEZEFRAME DIR: two brokers of Apache Kafka in ZooKeeper mode, and a server that is killed. */
public final class KafkaOnZooKeeper {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int RECORDS = 1000;
    private static final String REPLICATED = "replicated";

    private final String freezeframe;
    private final Path directory;
    private final int zookeeperPort;
    private final Map<Integer, Integer> ports;
    private final Process[] brokers = new Process[3];
    private Process server;
    private Admin admin;
    private int produced = 0;
    private long twoBrokersAt;
    private long oneBrokerAt;

    private KafkaOnZooKeeper(String freezeframe, Path directory) throws IOException {
        this.freezeframe = freezeframe;
        this.directory = directory;
        zookeeperPort = freePort();
        ports = Map.of(1, freePort(), 2, freePort());
    }

    public static void main(String[] arguments) throws Exception {
        Steps steps = new Steps();
        steps.haltAfterSeconds(240);
        KafkaOnZooKeeper test = new KafkaOnZooKeeper(arguments[0], Path.of(arguments[1]));
        Runtime.getRuntime().addShutdownHook(new Thread(test::killAll));
        test.run(steps);
        test.killAll();
        System.exit(steps.failures() == 0 ? 0 : 1);
    }

    private void run(Steps steps) throws Exception {
        startServer();
        startBroker(1);
        startBroker(2);
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap()));
        steps.step("two brokers register, and one of them is the controller", () -> {
            awaitBrokers(Set.of(1, 2));
            awaitController(Set.of(1, 2));
        });
        steps.step("a replicated topic takes records, and a group reads them", () -> {
            createTopic(REPLICATED, 4);
            produce(REPLICATED);
            consume(REPLICATED, "first", produced);
        });
        steps.step("settings, partitions, users and deletions take effect", this::administer);
        twoBrokersAt = momentNow();
        int survivor = awaitController(Set.of(1, 2));
        int killed = 3 - survivor;
        steps.step("a broker is killed, and the other one goes on", () -> {
            kill(brokers[killed]);
            awaitBrokers(Set.of(survivor));
            awaitLeaders(REPLICATED, Set.of(survivor));
            produce(REPLICATED);
            consume(REPLICATED, "second", produced);
            oneBrokerAt = momentNow();
        });
        steps.step("it comes back, and its replicas catch up", () -> {
            startBroker(killed);
            awaitBrokers(Set.of(1, 2));
            awaitReplicas(REPLICATED, 2);
        });
        steps.step("the server of the znodes is killed, and both brokers go on", () -> {
            kill(server);
            startServer();
            createTopic("after-the-kill", 2);
            produce(REPLICATED);
            consume(REPLICATED, "third", produced);
            awaitBrokers(Set.of(1, 2));
        });
        steps.step("the controller ends in order, and the other one takes over", () -> {
            int controller = awaitController(Set.of(1, 2));
            brokers[controller].destroy();
            Steps.holds("the broker to end", brokers[controller].waitFor(60, TimeUnit.SECONDS), "that it runs on");
            Steps.equal("controller", 3 - controller, awaitController(Set.of(3 - controller)));
            createTopic("after-the-controller", 1, (short) 1);
        });
        steps.step("the past shows who was registered when", () -> {
            Steps.equal("brokers before the kill", Set.of("1", "2"), brokersAt(twoBrokersAt));
            Steps.equal("brokers after the kill", Set.of(String.valueOf(survivor)), brokersAt(oneBrokerAt));
        });
    }

    private void administer() throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, REPLICATED);
        AlterConfigOp retention =
                new AlterConfigOp(new ConfigEntry("retention.ms", "123456789"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(topic, List.of(retention))).all().get();
        await("the setting", () -> admin.describeConfigs(List.of(topic))
                .all().get().get(topic).get("retention.ms").value().equals("123456789"));
        createTopic("short-lived", 1);
        admin.createPartitions(Map.of("short-lived", NewPartitions.increaseTo(3))).all().get();
        await("three partitions", () -> describe("short-lived").partitions().size() == 3);
        admin.deleteTopics(List.of("short-lived")).all().get();
        await("the deletion", () -> !admin.listTopics().names().get().contains("short-lived"));
        UserScramCredentialUpsertion user = new UserScramCredentialUpsertion(
                "alice", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret");
        admin.alterUserScramCredentials(List.of(user)).all().get();
        await("the user", () -> admin.describeUserScramCredentials().users().get().equals(List.of("alice")));
    }

    private void startServer() throws Exception {
        ProcessBuilder builder = new ProcessBuilder(freezeframe, "serve", "--data-dir", path("znodes"),
                "--kafka", "127.0.0.1:0", "--http", "off", "--zookeeper", "127.0.0.1:" + zookeeperPort);
        builder.redirectError(ProcessBuilder.Redirect.appendTo(new File(path("freezeframe.log"))));
        server = builder.start();
        BufferedReader output = new BufferedReader(new InputStreamReader(server.getInputStream()));
        String line = output.readLine();
        Steps.holds("the server to be ready", line != null && line.startsWith("ready "), line);
    }

    private void startBroker(int id) throws IOException {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "broker.id", String.valueOf(id),
                "listeners", "PLAINTEXT://127.0.0.1:" + ports.get(id),
                "log.dirs", path("broker-" + id),
                "zookeeper.connect", zookeeper() + "/kafka",
                "zookeeper.session.timeout.ms", "6000",
                "offsets.topic.replication.factor", "2",
                "offsets.topic.num.partitions", "4",
                "group.initial.rebalance.delay.ms", "0",
                "auto.create.topics.enable", "false",
                "controlled.shutdown.enable", "true"));
        Path file = directory.resolve("broker-" + id + ".properties");
        try (var out = Files.newOutputStream(file)) {
            settings.store(out, null);
        }
        ProcessBuilder builder = new ProcessBuilder("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-cp", System.getProperty("java.class.path"), "kafka.Kafka", file.toString());
        builder.redirectErrorStream(true);
        builder.redirectOutput(ProcessBuilder.Redirect.appendTo(new File(path("broker-" + id + ".log"))));
        brokers[id] = builder.start();
    }

    private void createTopic(String name, int partitions) throws Exception {
        createTopic(name, partitions, (short) 2);
    }

    private void createTopic(String name, int partitions, short replicas) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, partitions, replicas))).all().get();
        await("leaders of " + name, () -> describe(name).partitions().stream()
                .allMatch(partition -> partition.leader() != null && partition.isr().size() == replicas));
    }

    private void produce(String topic) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap(), "acks", "all", "linger.ms", 5);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (int i = 0; i < RECORDS; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "key-" + i, "value-" + (produced + i))));
            }
            for (Future<?> record : sent) {
                record.get();
            }
        }
        produced += RECORDS;
    }

    /** A new group reads all that was produced, each record at least once. */
    private void consume(String topic, String group, int expected) throws Exception {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", bootstrap(), "group.id", group, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Set<String> values = new HashSet<>();
            await(expected + " records", () -> {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
                return values.size() == expected;
            });
            consumer.commitSync();
        }
    }

    private TopicDescription describe(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private void awaitBrokers(Set<Integer> expected) throws Exception {
        await("brokers " + expected, () -> {
            Set<Integer> seen = new HashSet<>();
            for (Node node : admin.describeCluster().nodes().get()) {
                seen.add(node.id());
            }
            return seen.equals(expected);
        });
    }

    private int awaitController(Set<Integer> among) throws Exception {
        int[] found = new int[1];
        await("a controller among " + among, () -> {
            Node controller = admin.describeCluster().controller().get();
            found[0] = controller == null ? -1 : controller.id();
            return among.contains(found[0]);
        });
        return found[0];
    }

    private void awaitLeaders(String topic, Set<Integer> expected) throws Exception {
        await("leaders " + expected, () -> describe(topic).partitions().stream()
                .allMatch(partition -> partition.leader() != null && expected.contains(partition.leader().id())));
    }

    private void awaitReplicas(String topic, int inSync) throws Exception {
        await(inSync + " replicas in sync",
                () -> describe(topic).partitions().stream().allMatch(partition -> partition.isr().size() == inSync));
    }

    /** The brokers that were registered at a moment. */
    private Set<String> brokersAt(long ms) throws Exception {
        ZooKeeper past = new ZooKeeper(zookeeper() + "/.at/s" + ms, 10_000, event -> {});
        try {
            return new HashSet<>(past.getChildren("/kafka/brokers/ids", false));
        } finally {
            past.close();
        }
    }

    /** A moment behind everything that was acknowledged, and in front of everything that comes. */
    private static long momentNow() {
        long begun = System.currentTimeMillis();
        long now = begun;
        while (now <= begun + 1) {
            Thread.onSpinWait();
            now = System.currentTimeMillis();
        }
        return now;
    }

    /** Asks until it holds. A question that fails, since a broker is away, is asked again. */
    private static void await(String expected, Steps.Condition condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        String seen = "nothing";
        while (true) {
            try {
                if (condition.holds()) {
                    return;
                }
                seen = "another state";
            } catch (Exception failed) {
                seen = failed.toString();
            }
            Steps.holds(expected, System.nanoTime() < deadline, seen);
            Thread.sleep(50);
        }
    }

    private static void kill(Process process) throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    private void killAll() {
        for (Process process : new Process[] {brokers[1], brokers[2], server}) {
            if (process != null) {
                process.destroyForcibly();
            }
        }
    }

    private String bootstrap() {
        return "127.0.0.1:" + ports.get(1) + ",127.0.0.1:" + ports.get(2);
    }

    private String zookeeper() {
        return "127.0.0.1:" + zookeeperPort;
    }

    private String path(String name) {
        return directory.resolve(name).toString();
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
