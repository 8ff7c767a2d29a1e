package freezeframe.flink;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What is copied, and whether it was copied exactly once.
 *
 * <pre>
 * Check create BOOTSTRAP TOPIC…                  topics of four partitions
 * Check produce BOOTSTRAP IN LINES PER-SECOND    lines, each with its number
 * Check verify BOOTSTRAP OUT LINES SECONDS       waits for all lines, then for one too many
 * </pre>
 */
public final class Check {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        switch (arguments[0]) {
            case "create" -> create(bootstrap, List.of(arguments).subList(2, arguments.length));
            case "produce" -> produce(bootstrap, arguments[2], number(arguments[3]), number(arguments[4]));
            default -> verify(bootstrap, arguments[2], number(arguments[3]), number(arguments[4]));
        }
    }

    private static int number(String text) {
        return Integer.parseInt(text);
    }

    private static void create(String bootstrap, List<String> topics) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Stream<NewTopic> wanted = topics.stream().map(topic -> new NewTopic(topic, 4, (short) 1));
            admin.createTopics(wanted.toList()).all().get();
        }
    }

    private static void produce(String bootstrap, String topic, int lines, int perSecond) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all",
                "delivery.timeout.ms", 120000, "linger.ms", 5);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            long began = System.nanoTime();
            for (int number = 0; number < lines; number++) {
                producer.send(new ProducerRecord<>(topic, number % 4, null, "line " + number), (written, problem) -> {
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

    private static void verify(String bootstrap, String topic, int lines, int seconds) {
        Map<String, Integer> seen = new HashMap<>();
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed",
                "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + seconds * 1_000_000_000L;
            // After the last line, a while in which one too many would come.
            long quiet = Long.MAX_VALUE;
            while (System.nanoTime() < Math.min(deadline, quiet)) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> {
                    if (seen.merge(record.value(), 1, Integer::sum) > 1) {
                        System.out.println("FAILED: expected each line once, saw \"" + record.value() + "\" again at "
                                + record.partition() + "/" + record.offset());
                        Runtime.getRuntime().halt(1);
                    }
                });
                if (quiet == Long.MAX_VALUE && seen.size() == lines) {
                    quiet = System.nanoTime() + 5_000_000_000L;
                }
            }
        }
        if (seen.size() != lines) {
            System.out.println("FAILED: expected " + lines + " lines, saw " + seen.size());
            System.exit(1);
        }
        System.out.println("ok: " + lines + " lines, each exactly once");
    }
}
