package freezeframe.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/** What a topic must hold, kept beside it: for each partition, the records by offset. */
final class Model {
    record Entry(String key, String value, long timestamp, List<String> headers) {}

    private final Map<Integer, TreeMap<Long, Entry>> partitions = new TreeMap<>();

    void put(int partition, long offset, Entry entry) {
        Entry before = partitions.computeIfAbsent(partition, p -> new TreeMap<>()).put(offset, entry);
        Steps.equal("records given offset " + offset + " of partition " + partition + " before", null, before);
    }

    static Model union(Model... parts) {
        Model union = new Model();
        for (Model part : parts) {
            part.partitions.forEach((partition, entries) ->
                    entries.forEach((offset, entry) -> union.put(partition, offset, entry)));
        }
        return union;
    }

    Set<Integer> partitionIds() {
        return partitions.keySet();
    }

    NavigableMap<Long, Entry> of(int partition) {
        return partitions.get(partition);
    }

    long end(int partition) {
        return partitions.get(partition).lastKey() + 1;
    }

    Map<Integer, Long> ends() {
        Map<Integer, Long> ends = new TreeMap<>();
        partitions.keySet().forEach(partition -> ends.put(partition, end(partition)));
        return ends;
    }

    int count() {
        return partitions.values().stream().mapToInt(Map::size).sum();
    }

    /** The records from `starts` on, and all of a partition that is not named there. */
    Model from(Map<Integer, Long> starts) {
        Model tail = new Model();
        partitions.forEach((partition, entries) ->
                tail.partitions.put(partition, new TreeMap<>(entries.tailMap(starts.getOrDefault(partition, 0L)))));
        return tail;
    }

    /** The first offset whose timestamp is at or after `t`, or null. */
    Long firstAtOrAfter(int partition, long t) {
        return of(partition).entrySet().stream()
                .filter(entry -> entry.getValue().timestamp() >= t)
                .map(Map.Entry::getKey)
                .findFirst()
                .orElse(null);
    }

    void assertDense() {
        partitions.forEach((partition, entries) -> Steps.equal("count of records in partition " + partition
                + ", whose offsets are 0 to " + entries.lastKey(), entries.lastKey() + 1, (long) entries.size()));
    }

    /** `seen`, in the order it was read, is exactly this: each record once, in offset order within its partition. */
    void assertEquals(Collection<ConsumerRecord<String, String>> seen) {
        Map<Integer, List<Long>> offsets = new TreeMap<>();
        for (ConsumerRecord<String, String> record : seen) {
            offsets.computeIfAbsent(record.partition(), p -> new ArrayList<>()).add(record.offset());
            NavigableMap<Long, Entry> entries = of(record.partition());
            String where = "record " + record.partition() + "/" + record.offset();
            Steps.holds(where + " to be none", entries != null && entries.containsKey(record.offset()), record);
            Steps.equal(where, entries.get(record.offset()), entry(record));
        }
        partitions.forEach((partition, entries) -> Steps.equal("offsets read from partition " + partition,
                List.copyOf(entries.keySet()), offsets.getOrDefault(partition, List.of())));
    }

    private static Entry entry(ConsumerRecord<String, String> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(header.key() + "=" + new String(header.value(), StandardCharsets.UTF_8));
        }
        return new Entry(record.key(), record.value(), record.timestamp(), headers);
    }
}
