package freezeframe.flink;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A Flink job that copies a topic exactly once: Copy BOOTSTRAP IN OUT DIR. It goes on until it is killed; started again, it
 * goes on from its last checkpoint in DIR.
 */
public final class Copy {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Path checkpoints = Path.of(arguments[3]);
        Files.createDirectories(checkpoints);
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        config.set(CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        last(checkpoints).ifPresent(last -> {
            System.err.println("goes on from " + last);
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, last.toUri().toString());
        });
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(config);
        environment.setParallelism(2);
        environment.enableCheckpointing(500);

        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap).setTopics(arguments[1]).setGroupId(arguments[1] + "-copy")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema()).build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(arguments[1] + "-copy")
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(arguments[2]).setValueSerializationSchema(new SimpleStringSchema()).build())
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in").uid("in").sinkTo(sink).uid("out");
        environment.execute("copy");
    }

    /** The newest checkpoint that is complete, of any run. */
    private static Optional<Path> last(Path checkpoints) throws Exception {
        try (var files = Files.walk(checkpoints, 3)) {
            return files.filter(file -> file.endsWith("_metadata"))
                    .max(Comparator.comparingLong(file -> file.toFile().lastModified())).map(Path::getParent);
        }
    }
}
