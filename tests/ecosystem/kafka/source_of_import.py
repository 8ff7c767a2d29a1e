"""Topics and groups of Apache Kafka that an import has to copy, and the comparison of both.

    source_of_import.py KAFKA FREEZEFRAME fill|compare|grow|take-over
"""

import os
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S = int(os.environ.get("FREEZEFRAME_PATIENCE_S", 180))
# 2026-11-21 09:00 UTC, and a record a second.
FIRST_MS = 1_795_251_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Kafka compacts this one as soon as it can.
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "100",
}
TOPICS = ("orders", "transfers", "prices")
GROUP = "billing"


def ask(address, operation, *arguments):
    """The results of an operation of an administrator, who has to live until they are there."""
    admin = AdminClient({"bootstrap.servers": address})
    return [future.result(PATIENCE_S) for future in getattr(admin, operation)(*arguments).values()]


def write(producer, topic, first, count, partition=0, keys=None):
    for nth in range(first, first + count):
        producer.produce(
            topic,
            key=f"key-{nth % keys if keys else nth}",
            value=None if nth % 17 == 16 else f"{topic} {nth}",
            partition=partition,
            timestamp=FIRST_MS + 1000 * nth,
            headers=[("nth", str(nth).encode()), ("empty", b""), ("none", None)] if nth % 5 == 0 else None,
        )
    producer.flush()


def transact(address, name, first, commits):
    producer = Producer({"bootstrap.servers": address, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    write(producer, "transfers", first, 10, partition=first // 10 % 2)
    if commits:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)


def consumer(address, group):
    return Consumer({
        "bootstrap.servers": address, "group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False,
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    })


def read_to_the_end(reader):
    """The records up to the end of each assigned partition."""
    records, ended, deadline = [], set(), time.monotonic() + PATIENCE_S
    while not reader.assignment() or len(ended) < len(reader.assignment()):
        assert time.monotonic() < deadline, "the ends were not reached"
        message = reader.poll(1)
        if message is None:
            continue
        if message.error():
            ended.add((message.topic(), message.partition()))
            continue
        where = (message.partition(), message.offset(), message.timestamp())
        records.append((*where, message.key(), message.value(), message.headers()))
    return sorted(records, key=lambda record: record[:2])


def read(address, topic):
    reader = consumer(address, "reader")
    partitions = reader.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records = read_to_the_end(reader)
    reader.close()
    return records


def committed(address):
    (answer,) = ask(address, "list_consumer_group_offsets", [ConsumerGroupTopicPartitions(GROUP)])
    return sorted((place.topic, place.partition, place.offset) for place in answer.topic_partitions)


def commit(address, offset):
    reader = consumer(address, GROUP)
    reader.commit(offsets=[TopicPartition("orders", partition, offset) for partition in range(3)], asynchronous=False)
    reader.close()


def fill(kafka):
    # Records of 2026 are kept, whenever this runs.
    kept = {"retention.ms": "-1"}
    topics = [
        NewTopic("orders", 3, 1, config=kept), NewTopic("transfers", 2, 1, config=kept),
        NewTopic("prices", 1, 1, config=COMPACTED),
    ]
    ask(kafka, "create_topics", topics)
    for nth, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": kafka, "compression.type": codec, "linger.ms": 50})
        for partition in range(3):
            write(producer, "orders", 100 * nth, 100, partition)
    ask(kafka, "delete_records", [TopicPartition("orders", 1, 30)])
    for nth in range(8):
        transact(kafka, f"transfer-{nth % 3}", 10 * nth, commits=nth % 3 != 1)
    producer = Producer({"bootstrap.servers": kafka})
    # The newest segment is never compacted, so records go on until the first one is.
    first, deadline = 0, time.monotonic() + PATIENCE_S
    while not first or len(read(kafka, "prices")) == first:
        assert time.monotonic() < deadline, "Kafka compacted nothing"
        write(producer, "prices", first, 50, keys=7)
        first += 50
        time.sleep(0.2)
    commit(kafka, 42)


def compare(kafka, freezeframe):
    for topic in TOPICS:
        source, copy = read(kafka, topic), read(freezeframe, topic)
        if topic == "prices":
            # Kafka may have compacted more since then; what it still has is there.
            assert set(map(repr, source)) <= set(map(repr, copy)), topic
        else:
            assert source and source == copy, f"{topic}: {len(source)} records, {len(copy)} in the copy"
    assert committed(kafka) == committed(freezeframe), (committed(kafka), committed(freezeframe))


def grow(kafka):
    producer = Producer({"bootstrap.servers": kafka, "compression.type": "zstd"})
    for partition in range(3):
        write(producer, "orders", 500, 70, partition)
    transact(kafka, "transfer-0", 80, commits=True)
    transact(kafka, "transfer-1", 90, commits=False)
    commit(kafka, 333)


def take_over(kafka, freezeframe):
    rest = []
    for address in (kafka, freezeframe):
        reader = consumer(address, GROUP)
        reader.subscribe(["orders"])
        rest.append(read_to_the_end(reader))
        reader.close()
    assert rest[0] == rest[1] and min(record[1] for record in rest[1]) == 333


def main(kafka, freezeframe, step):
    if step == "fill":
        fill(kafka)
    elif step == "compare":
        compare(kafka, freezeframe)
    elif step == "grow":
        grow(kafka)
    elif step == "take-over":
        take_over(kafka, freezeframe)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
