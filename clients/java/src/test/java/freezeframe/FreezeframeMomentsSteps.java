package freezeframe;

import com.sun.net.httpserver.HttpServer;
import freezeframe.FreezeframeMoments.Cut;
import freezeframe.FreezeframeMoments.PartitionCut;
import freezeframe.FreezeframeMoments.Pin;
import freezeframe.FreezeframeMoments.Refusal;
import freezeframe.FreezeframeMoments.SoughtOffset;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The steps of the library against a server, and against what is none: {@code --bootstrap HOST:PORT --http URL --run ID}. */
public final class FreezeframeMomentsSteps {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final String bootstrap;
    private final String topic;
    private final String group;
    private final FreezeframeMoments freezeframe;
    private int failures;

    private interface Step {
        void run() throws Exception;
    }

    private FreezeframeMomentsSteps(Map<String, String> options) {
        bootstrap = options.get("bootstrap");
        topic = "moments-java-" + options.get("run");
        group = "group-" + topic;
        freezeframe = FreezeframeMoments.connect(URI.create(options.get("http")));
    }

    public static void main(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i].replaceFirst("^--", ""), arguments[i + 1]);
        }
        FreezeframeMomentsSteps steps = new FreezeframeMomentsSteps(options);
        steps.run();
        System.exit(steps.failures == 0 ? 0 : 1);
    }

    private void run() {
        step("times-are-spelled-in-milliseconds-rounded-up", this::spellsTimes);
        step("moments-in-full-make-names-of-topics", this::namesTopics);
        step("what-is-no-answer-is-an-error", this::readsNoOtherAnswer);
        step("a-refusal-says-when-to-retry", this::saysWhenToRetry);
        step("a-login-is-in-the-header", this::logsIn);
        step("the-stock-consumer-reads-a-moment", this::consumesMoment);
        step("a-cut-has-the-ends-of-its-moment", this::cuts);
        step("a-group-goes-on-from-a-moment", this::seeksGroup);
        step("a-pin-keeps-its-moment-until-it-is-removed", this::pins);
        step("a-refusal-of-the-server-has-its-code", this::refuses);
    }

    private void step(String name, Step step) {
        try {
            step.run();
            System.out.println("ok " + name);
        } catch (Exception | AssertionError problem) {
            failures++;
            System.out.println("FAILED " + name + ": " + problem);
        }
    }

    private static void equal(Object expected, Object seen) {
        if (!Objects.equals(expected, seen)) {
            throw new AssertionError("expected " + expected + ", saw " + seen);
        }
    }

    private static <E extends Exception> E fails(Class<E> type, Callable<?> action) {
        Object seen;
        try {
            seen = action.call();
        } catch (Exception problem) {
            if (type.isInstance(problem)) {
                return type.cast(problem);
            }
            seen = problem;
        }
        throw new AssertionError("expected " + type.getSimpleName() + ", saw " + seen);
    }

    private void spellsTimes() {
        Instant nine = Instant.parse("2026-11-21T09:00:00.123Z");
        equal("s1795251600123", FreezeframeMoments.momentOf(nine));
        equal("s1795251600124", FreezeframeMoments.momentOf(nine.plusNanos(1)));
        equal("s19710102T030405.006Z", FreezeframeMoments.momentOf(Instant.parse("1971-01-02T03:04:05.006Z")));
        fails(IllegalArgumentException.class, () -> FreezeframeMoments.momentOf(Instant.ofEpochMilli(-1)));
        fails(IllegalArgumentException.class, () -> FreezeframeMoments.momentOf(Instant.ofEpochMilli(1L << 48)));
    }

    private void namesTopics() {
        Map.of(
                        "s5", "orders.__at.s5",
                        "sh01a1fe6d31e10000", "orders.__at.sh01a1fe6d31e10000",
                        "u5@s7", "orders.__at.u5.as.s7",
                        "s5..s7", "orders.__at.s5..s7",
                        "s20261121T090000.123Z", "orders.__at.s20261121T090000.123Z",
                        "pin:audit", "orders.__at.pin.audit")
                .forEach((moment, name) -> equal(name, FreezeframeMoments.momentTopic("orders", moment)));
        for (String moment : List.of("", "now", "-10m", "yesterday 14:00", "5", "s5@s7", "s5..", "pin:", "s5\n")) {
            fails(IllegalArgumentException.class, () -> FreezeframeMoments.momentTopic("orders", moment));
        }
        fails(IllegalArgumentException.class, () -> FreezeframeMoments.momentTopic("", "s5"));
        for (String address : List.of("ftp://a", "http:/a", "http://alice:secret@a", "http://a/?b=c")) {
            fails(IllegalArgumentException.class, () -> FreezeframeMoments.connect(URI.create(address)));
        }
    }

    private void readsNoOtherAnswer() throws IOException {
        for (String body : List.of("<html>", "[]", "7", "{}", "{\"at\":5}", "{\"at\":\"s5\"", "{\"at\":\"s5\"} x", "[".repeat(100_000), "{\"at\":\"\\u12\"}")) {
            equal("bad_answer", fails(Refusal.class, () -> answered(200, body, null)).code());
        }
        equal("bad_answer", fails(Refusal.class, () -> answered(404, "<html>", null)).code());
        // Half an answer.
        fails(IOException.class, () -> answered(200, "{\"at\":\"s5\"}", 100L));
        fails(IOException.class, () -> FreezeframeMoments.connect(URI.create("http://127.0.0.1:1")).now());
        equal("sé\"\n", fails(Refusal.class, () -> answered(400, "{\"error\":{\"code\":\"sé\\\"\\n\",\"message\":\"\\u0041\"}}", null)).code());
    }

    private void saysWhenToRetry() {
        String document = "{\"error\":{\"code\":\"not_yet\",\"message\":\"soon\",\"frontier\":null%s}}";
        Refusal refusal = fails(Refusal.class, () -> answered(425, document.formatted(",\"retry_ms\":1500"), null));
        equal(Optional.of(Duration.ofMillis(1500)), refusal.retryAfter());
        equal("soon (not_yet)", refusal.getMessage());
        refusal = fails(Refusal.class, () -> answered(425, document.formatted(""), null));
        equal(Optional.empty(), refusal.retryAfter());
    }

    /** The moment in the answer of a server that answers so, once. */
    private static String answered(int status, String body, Long length) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        server.createContext("/v1", exchange -> {
            exchange.sendResponseHeaders(status, length == null ? bytes.length : length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
        try {
            return FreezeframeMoments.connect(URI.create("http://127.0.0.1:" + server.getAddress().getPort())).now();
        } finally {
            server.stop(0);
        }
    }

    private void logsIn() throws Exception {
        List<String> seen = new ArrayList<>();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        byte[] answer = "{\"at\":\"s5\"}".getBytes(StandardCharsets.UTF_8);
        server.createContext("/v1", exchange -> {
            seen.add(exchange.getRequestHeaders().getFirst("Authorization"));
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
        try {
            FreezeframeMoments nobody = FreezeframeMoments.connect(URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/"));
            equal("s5", nobody.withLogin("alice", "secret").now());
            equal("s5", nobody.withToken("abc").now());
        } finally {
            server.stop(0);
        }
        equal(List.of("Basic YWxpY2U6c2VjcmV0", "Bearer abc"), seen);
    }

    private void consumesMoment() throws Exception {
        produce("one", "two");
        String before = freezeframe.now();
        produce("three");
        equal(List.of("one", "two"), consume(FreezeframeMoments.momentTopic(topic, before), 2));
        equal(List.of("three"), consume(freezeframe.momentTopicOf(topic, before + "..now"), 1));
    }

    private void cuts() throws Exception {
        String before = freezeframe.now();
        Cut cut = freezeframe.cut(before, topic);
        equal(List.of(new PartitionCut(topic, 0, 0, 3)), cut.partitions());
        produce("four");
        equal(cut, freezeframe.cut(before, topic));
        equal(List.of(new PartitionCut(topic, 0, 0, 4)), freezeframe.cut("now", topic).partitions());
    }

    private void seeksGroup() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(1)));
        }
        String before = freezeframe.now();
        produce("five");
        SoughtOffset expected = new SoughtOffset(topic, 0, OptionalLong.of(1), OptionalLong.of(4));
        equal(List.of(expected), freezeframe.seekGroup(group, before));
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(List.of(topic));
            equal(List.of("five"), poll(consumer, 1));
        }
    }

    private void pins() throws Exception {
        String before = freezeframe.now();
        Pin pin = freezeframe.pin("pin-" + topic, before, Duration.ofHours(1), topic);
        equal(before, pin.at());
        equal(before, freezeframe.moment("pin:" + pin.name()));
        if (!pin.expires().isAfter(Instant.now())) {
            throw new AssertionError("expected an expiry in an hour, saw " + pin.expires());
        }
        equal(5, consume(FreezeframeMoments.momentTopic(topic, "pin:" + pin.name()), 5).size());
        freezeframe.unpin(pin.name());
        equal("unknown_pin", fails(Refusal.class, () -> {
            freezeframe.unpin(pin.name());
            return null;
        }).code());
    }

    private void refuses() {
        equal("unknown_topic", fails(Refusal.class, () -> freezeframe.cut("now", "nowhere")).code());
        equal("bad_moment", fails(Refusal.class, () -> freezeframe.moment("the day before")).code());
        equal("far_future", fails(Refusal.class, () -> freezeframe.cut("s4102444800000", topic)).code());
        equal("unknown_group", fails(Refusal.class, () -> freezeframe.seekGroup("nobody", "now")).code());
    }

    private void produce(String... values) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (String value : values) {
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            }
        }
    }

    private KafkaConsumer<String, String> consumer() {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "group.id", group, "auto.offset.reset", "earliest");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private List<String> consume(String name, int count) {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            TopicPartition partition = new TopicPartition(name, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            equal(consumer.beginningOffsets(List.of(partition)).get(partition) + count, consumer.endOffsets(List.of(partition)).get(partition));
            return poll(consumer, count);
        }
    }

    private static List<String> poll(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        Instant deadline = Instant.now().plus(PATIENCE);
        while (values.size() < count && Instant.now().isBefore(deadline)) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                values.add(record.value());
            }
        }
        return values;
    }
}
