// Writes the batches in this directory with the stock Java client; see README.md.
// `java Golden read DIR` prints what the client reads from every .bin in DIR.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.BufferSupplier;

public class Golden {
    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static MemoryRecordsBuilder builder(CompressionType type, TimestampType time, long base, long pid, boolean tx) {
        return new MemoryRecordsBuilder(ByteBuffer.allocate(1 << 20), (byte) 2, Compression.of(type).build(),
            time, base, 1700000009999L, pid, (short) (pid < 0 ? -1 : 5), pid < 0 ? -1 : 40, tx, false, 7, 1 << 20);
    }

    /** Nulls, empties, duplicate headers, non-ASCII keys, timestamps that step back. */
    static void small(MemoryRecordsBuilder out) {
        out.append(1700000000000L, utf8("key"), utf8("value"), new Header[] {
            new RecordHeader("h", utf8("1")), new RecordHeader("g", (byte[]) null),
            new RecordHeader("h", utf8("2")), new RecordHeader("ключ", new byte[0])});
        out.append(1699999999000L, (byte[]) null, new byte[0]);
        out.append(1700000005000L, new byte[0], (byte[]) null);
    }

    /** 200 KB before packing: several blocks of each codec. */
    static void large(MemoryRecordsBuilder out) {
        byte[] value = utf8("all work and no play makes jack a dull boy. ".repeat(23).substring(0, 1000));
        for (int i = 0; i < 200; i++) out.append(1700000000000L + i, utf8("k" + i), value);
    }

    static void write(Path dir, String name, MemoryRecords records) throws Exception {
        ByteBuffer bytes = records.buffer().duplicate();
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        Files.write(dir.resolve(name + ".bin"), copy);
    }

    /** What the log cleaner makes of a batch when it keeps the records with these offsets. */
    static MemoryRecords cleaned(MemoryRecords records, java.util.function.LongPredicate keep) {
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(1700000020000L, 86400000L) {
            @Override protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, false);
            }
            @Override protected boolean shouldRetainRecord(RecordBatch batch, org.apache.kafka.common.record.internal.Record record) {
                return keep.test(record.offset());
            }
        };
        MemoryRecords.FilterResult result = records.filterTo(filter, ByteBuffer.allocate(1 << 20), BufferSupplier.NO_CACHING);
        ByteBuffer out = result.outputBuffer();
        out.flip();
        return MemoryRecords.readableRecords(out);
    }

    static String show(ByteBuffer bytes) {
        if (bytes == null) return "null";
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return "'" + new String(copy, StandardCharsets.UTF_8) + "'";
    }

    static void read(Path file) throws Exception {
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file))).batches()) {
            batch.ensureValid();
            System.out.println(file.getFileName() + " " + batch.compressionType() + " count=" + batch.countOrNull()
                + " producer=" + batch.producerId() + "/" + batch.producerEpoch() + "/" + batch.baseSequence()
                + " tx=" + batch.isTransactional() + " control=" + batch.isControlBatch());
            int shown = 0;
            long bytes = 0;
            for (org.apache.kafka.common.record.internal.Record record : batch) {
                bytes += record.sizeInBytes();
                record.ensureValid();
                if (shown++ < 3) {
                    System.out.print("  " + record.offset() + " " + record.timestamp() + " " + show(record.key()) + " "
                        + show(record.value()).replaceAll("(.{40}).*", "$1..") + " [");
                    for (Header h : record.headers()) System.out.print(h.key() + "=" + (h.value() == null ? "null" : new String(h.value())) + " ");
                    System.out.println("]");
                }
            }
            System.out.println("  records=" + shown + " bytes=" + bytes);
        }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("read")) {
            try (DirectoryStream<Path> files = Files.newDirectoryStream(Paths.get(args[1]), "*.bin")) {
                List<Path> sorted = new ArrayList<>();
                files.forEach(sorted::add);
                Collections.sort(sorted);
                for (Path file : sorted) read(file);
            }
            return;
        }
        Path dir = Paths.get(args[0]);
        for (CompressionType type : CompressionType.values()) {
            MemoryRecordsBuilder out = builder(type, TimestampType.CREATE_TIME, 0, -1, false);
            small(out);
            write(dir, "small-" + type.name, out.build());
            if (type != CompressionType.NONE) {
                out = builder(type, TimestampType.CREATE_TIME, 0, -1, false);
                large(out);
                write(dir, "large-" + type.name, out.build());
            }
        }
        for (CompressionType type : CompressionType.values()) {
            MemoryRecordsBuilder out = builder(type, TimestampType.CREATE_TIME, 1000, 77, false);
            small(out);
            MemoryRecords small = out.build();
            write(dir, "cleaned-first-gone-" + type.name, cleaned(small, offset -> offset == 1001));
            MemoryRecords horizon = cleaned(small, offset -> offset != 1001);
            write(dir, "cleaned-horizon-" + type.name, horizon);
            write(dir, "cleaned-tombstone-gone-" + type.name, cleaned(horizon, offset -> offset != 1002));
            write(dir, "cleaned-empty-" + type.name, cleaned(horizon, offset -> false));
        }
        MemoryRecordsBuilder out = builder(CompressionType.GZIP, TimestampType.CREATE_TIME, 1000, 77, true);
        small(out);
        write(dir, "transactional", out.build());
        out = builder(CompressionType.NONE, TimestampType.LOG_APPEND_TIME, 1000, -1, false);
        small(out);
        MemoryRecords appended = out.build();
        write(dir, "log-append-time", appended);
        write(dir, "cleaned-log-append-time", cleaned(appended, offset -> offset != 1000));
        write(dir, "commit-marker", MemoryRecords.withEndTransactionMarker(1003, 1700000000123L, 7, 77, (short) 5,
            new EndTransactionMarker(ControlRecordType.COMMIT, 9)));
    }
}
