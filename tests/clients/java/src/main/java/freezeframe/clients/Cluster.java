package freezeframe.clients;

import static freezeframe.clients.Steps.PATIENCE;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Clients of one broker, and the few things each step does with them. */
final class Cluster implements AutoCloseable {
    /** The records say 2023: by default Kafka deletes them at its next look, every five minutes. */
    static final Map<String, String> KEEP = Map.of("retention.ms", "-1");
    private static final Duration POLL = Duration.ofMillis(100);

    final Admin admin;
    final String bootstrap;
    private final Map<String, Object> security;

    Cluster(String bootstrap) {
        this(bootstrap, Security.config());
    }

    Cluster(String bootstrap, Map<String, Object> security) {
        this.bootstrap = bootstrap;
        this.security = security;
        this.admin = Admin.create(with(Map.of(
                "bootstrap.servers", bootstrap, "request.timeout.ms", 10000, "default.api.timeout.ms", 15000)));
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(1));
    }

    private Map<String, Object> with(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(security);
        config.putAll(more);
        return config;
    }

    static <T> T get(KafkaFuture<T> answer) throws Exception {
        return answer.get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
    }

    // Topics

    void createTopic(String topic, int partitions, Map<String, String> configs) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all());
        awaitPartitions(topic, partitions);
    }

    void awaitPartitions(String topic, int count) throws Exception {
        Steps.await(topic + " to have " + count + " partitions", () -> {
            try {
                return describe(topic).partitions().size() == count;
            } catch (java.util.concurrent.ExecutionException notYet) {
                if (notYet.getCause() instanceof UnknownTopicOrPartitionException) {
                    return false;
                }
                throw notYet;
            }
        });
    }

    TopicDescription describe(String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
    }

    void deleteTopic(String topic) throws Exception {
        get(admin.deleteTopics(List.of(topic)).all());
        Steps.await(topic + " to be gone", () -> !get(admin.listTopics().names()).contains(topic));
    }

    // Producers

    KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> config = with(Map.of(
                "bootstrap.servers", bootstrap, "acks", "all", "enable.idempotence", true,
                "max.block.ms", 15000, "request.timeout.ms", 10000, "delivery.timeout.ms", 15000));
        config.putAll(more);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    /** Its transactions are those of that id, which it has taken over from any producer before it. */
    KafkaProducer<String, String> transactional(String id) {
        KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id));
        producer.initTransactions();
        return producer;
    }

    void produce(Model model, String topic, Integer partition, Map<String, Object> config, List<Model.Entry> entries)
            throws Exception {
        try (KafkaProducer<String, String> producer = producer(config)) {
            send(producer, model, topic, partition, entries);
        }
    }

    /** Sends, waits for each answer, and notes in the model where each record went. Partition null: the client's choice. */
    static void send(KafkaProducer<String, String> producer, Model model, String topic, Integer partition,
            List<Model.Entry> entries) throws Exception {
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        for (Model.Entry entry : entries) {
            answers.add(producer.send(wire(topic, partition, entry)));
        }
        producer.flush();
        for (int i = 0; i < entries.size(); i++) {
            RecordMetadata answer = answers.get(i).get(15, TimeUnit.SECONDS);
            model.put(answer.partition(), answer.offset(), entries.get(i));
        }
    }

    private static ProducerRecord<String, String> wire(String topic, Integer partition, Model.Entry entry) {
        ProducerRecord<String, String> record =
                new ProducerRecord<>(topic, partition, entry.timestamp(), entry.key(), entry.value());
        for (String header : entry.headers()) {
            String[] parts = header.split("=", 2);
            record.headers().add(parts[0], parts[1].getBytes(StandardCharsets.UTF_8));
        }
        return record;
    }

    // Consumers

    KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> config = with(Map.of(
                "bootstrap.servers", bootstrap, "enable.auto.commit", false, "auto.offset.reset", "earliest",
                "heartbeat.interval.ms", 300, "session.timeout.ms", 10000,
                "request.timeout.ms", 10000, "default.api.timeout.ms", 15000,
                "allow.auto.create.topics", false));
        config.putAll(more);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    KafkaConsumer<String, String> assigned(String topic, Set<Integer> partitions, Map<String, Object> config) {
        KafkaConsumer<String, String> consumer = consumer(config);
        consumer.assign(on(topic, partitions));
        return consumer;
    }

    /** Reads until each partition is at its end, so a record too many is seen as well as one too few. */
    static List<ConsumerRecord<String, String>> readToEnd(KafkaConsumer<String, String> consumer) throws Exception {
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        Steps.await("to reach " + ends, () -> {
            consumer.poll(POLL).forEach(seen::add);
            for (TopicPartition partition : ends.keySet()) {
                if (consumer.position(partition) < ends.get(partition)) {
                    return false;
                }
            }
            return true;
        });
        return seen;
    }

    static List<ConsumerRecord<String, String>> poll(KafkaConsumer<String, String> consumer) {
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        consumer.poll(POLL).forEach(seen::add);
        return seen;
    }

    static Set<TopicPartition> on(String topic, Set<Integer> partitions) {
        return partitions.stream().map(p -> new TopicPartition(topic, p)).collect(Collectors.toSet());
    }

    static <T> Map<Integer, T> byPartition(Map<TopicPartition, T> map) {
        Map<Integer, T> result = new TreeMap<>();
        map.forEach((partition, value) -> result.put(partition.partition(), value));
        return result;
    }
}
