package freezeframe.clients;

import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records as fast as the default producer takes them, and says how fast that was and what it cost the client. */
final class ProducerLoad {
    static void run(Map<String, String> options) throws Exception {
        long records = Long.parseLong(options.getOrDefault("records", "1000000"));
        int size = Integer.parseInt(options.getOrDefault("size", "100"));
        String acks = options.getOrDefault("acks", "all");
        String batch = options.getOrDefault("batch", "16384");
        String topic = options.getOrDefault("topic", "load-" + options.get("run"));
        int partitions = Integer.parseInt(options.getOrDefault("partitions", "1"));
        String bootstrap = options.get("bootstrap");
        createTopic(bootstrap, topic, partitions);

        byte[] value = new byte[size];
        ThreadLocalRandom.current().nextBytes(value);
        AtomicLong failed = new AtomicLong();
        AtomicReference<Exception> first = new AtomicReference<>();
        Map<String, Object> config = Security.with(Map.of("bootstrap.servers", bootstrap, "acks", acks, "batch.size", batch));
        double seconds;
        double cpuSeconds;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            double cpuBefore = cpuSeconds();
            long start = System.nanoTime();
            for (long i = 0; i < records; i++) {
                producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                        first.compareAndSet(null, error);
                    }
                });
            }
            producer.flush();
            seconds = (System.nanoTime() - start) / 1e9;
            cpuSeconds = cpuSeconds() - cpuBefore;
        }
        System.out.printf("records=%d size=%d acks=%s batch=%s partitions=%d seconds=%.3f records/s=%.0f MB/s=%.2f "
                        + "client_cpu_s=%.2f failed=%d%n",
                records, size, acks, batch, partitions, seconds, records / seconds, records * size / seconds / 1e6,
                cpuSeconds, failed.get());
        if (failed.get() > 0) {
            System.err.println("first error: " + first.get());
            System.exit(1);
        }
    }

    private static void createTopic(String bootstrap, String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(Security.with(Map.of("bootstrap.servers", bootstrap)))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        } catch (ExecutionException failed) {
            if (!(failed.getCause() instanceof TopicExistsException)) {
                throw failed;
            }
        }
    }

    private static double cpuSeconds() {
        var os = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return os.getProcessCpuTime() / 1e9;
    }
}
