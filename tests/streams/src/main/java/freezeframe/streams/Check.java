package freezeframe.streams;

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What is counted, and whether it was counted exactly once.
 *
 * <pre>
 * Check create BOOTSTRAP TOPIC…                  topics of four partitions
 * Check produce BOOTSTRAP IN LINES PER-SECOND    lines of words, each line to be counted once
 * Check verify BOOTSTRAP OUT LINES SECONDS       waits for the last count, then checks all of them
 * </pre>
 */
public final class Check {
    private static final String[] WORDS = {"the", "cut", "is", "a", "moment", "of", "all", "logs"};

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("create")) {
            create(arguments[1], Arrays.asList(arguments).subList(2, arguments.length));
        } else if (arguments[0].equals("produce")) {
            produce(arguments[1], arguments[2], Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
        } else {
            verify(arguments[1], arguments[2], Integer.parseInt(arguments[3]), Long.parseLong(arguments[4]));
        }
    }

    private static void create(String bootstrap, List<String> topics) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(topics.stream().map(topic -> new NewTopic(topic, 4, (short) 1)).toList()).all().get();
        }
    }

    private static String line(int number) {
        return WORDS[number % 8] + " " + WORDS[number * 3 % 8] + " w" + number % 100;
    }

    private static void produce(String bootstrap, String topic, int lines, int perSecond) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all",
                "delivery.timeout.ms", 120000, "linger.ms", 5);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            long began = System.nanoTime();
            for (int number = 0; number < lines; number++) {
                producer.send(new ProducerRecord<>(topic, "k" + number % 16, line(number)), (written, problem) -> {
                    if (problem != null) {
                        System.err.println("FAILED: expected each line to be written, saw " + problem);
                        Runtime.getRuntime().halt(1);
                    }
                });
                long due = began + number * 1_000_000_000L / perSecond;
                while (System.nanoTime() < due) {
                    Thread.sleep(1);
                }
            }
        }
    }

    private static Map<String, Long> expected(int lines) {
        Map<String, Long> counts = new TreeMap<>();
        for (int number = 0; number < lines; number++) {
            for (String word : line(number).split(" ")) {
                counts.merge(word, 1L, Long::sum);
            }
        }
        return counts;
    }

    private static void verify(String bootstrap, String topic, int lines, long seconds) {
        Map<String, Long> expected = expected(lines);
        Map<String, Long> seen = new TreeMap<>();
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
                "isolation.level", "read_committed", "auto.offset.reset", "earliest"));
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + seconds * 1_000_000_000L;
            // After the last count, a while in which one too many would come.
            long quiet = Long.MAX_VALUE;
            while (System.nanoTime() < Math.min(deadline, quiet)) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> {
                    long before = seen.getOrDefault(record.key(), 0L);
                    if (record.value() != before + 1) {
                        System.out.println("FAILED: expected count " + (before + 1) + " of " + record.key()
                                + ", saw " + record.value() + " at " + record.partition() + "/" + record.offset());
                        Runtime.getRuntime().halt(1);
                    }
                    seen.put(record.key(), record.value());
                });
                if (quiet == Long.MAX_VALUE && seen.equals(expected)) {
                    quiet = System.nanoTime() + 5_000_000_000L;
                }
            }
        }
        if (!seen.equals(expected)) {
            System.out.println("FAILED: expected " + expected + ", saw " + seen);
            System.exit(1);
        }
        long counts = seen.values().stream().mapToLong(Long::longValue).sum();
        System.out.println("ok: " + counts + " counts of " + seen.size() + " words, each exactly once");
    }
}
