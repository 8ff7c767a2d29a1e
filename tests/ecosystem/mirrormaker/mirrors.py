"""Topics, groups and rules of Apache Kafka and Freezeframe, which MirrorMaker 2 has to copy, and checks of the copies.

    mirrors.py KAFKA FREEZEFRAME STEP…

KAFKA and FREEZEFRAME are addresses. Steps that begin with `both-` are about copies in both directions, which have the source's alias
before the names of topics; steps that begin with `move-` are about a copy to Freezeframe, with names kept.
"""

import os
import sys
import time
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

PATIENCE_S = int(os.environ.get("FREEZEFRAME_PATIENCE_S", 180))
# 2026-11-21 09:00 UTC: the first record's time, with one record a minute.
FIRST_MS = 1_795_251_600_000
MINUTE_MS = 60_000
# Records of 2026 are kept, whenever this runs.
KEPT = {"retention.ms": "-1"}
ORDERS = {**KEPT, "max.message.bytes": "2000000"}
TOPICS = ("orders", "transfers", "accounts", "returns")
# The offset of a group that is behind, in each partition.
LATE = 40
HEADERS = [("trace", b"\xff\x00"), ("trace", b"again"), ("empty", b""), ("none", None)]


class Record(NamedTuple):
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list


class Cluster:
    def __init__(self, alias, address):
        self.alias = alias
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})

    def producer(self, **config):
        return Producer({"bootstrap.servers": self.address, "log_level": 3, **config})

    def consumer(self, group):
        """One that reads committed records, and says where partitions end."""
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "isolation.level": "read_committed",
            }
        )

    def topics(self):
        return self.admin.list_topics(timeout=PATIENCE_S).topics

    def create_topic(self, name, partitions, config):
        settle(self.admin.create_topics([NewTopic(name, partitions, 1, config=config)]))

    def settings(self, topic):
        """The settings that are set on the topic itself."""
        (entries,) = settle(self.admin.describe_configs([ConfigResource("topic", topic)]))
        return {entry.name: entry.value for entry in entries.values() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}

    def set_setting(self, topic, name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        settle(self.admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]))

    def committed(self, group, topic):
        """The group's offset in each partition of the topic that it has committed one for."""
        (answer,) = settle(self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {place.partition: place.offset for place in answer.topic_partitions if place.topic == topic}

    def commit(self, group, topic, offset):
        """Commits that offset for the first three partitions, as a group without members."""
        places = [TopicPartition(topic, partition, offset) for partition in range(3)]
        consumer = self.consumer(group)
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def allow(self, principal, operation, topic, permission=AclPermissionType.ALLOW, pattern=ResourcePatternType.LITERAL):
        rule = AclBinding(ResourceType.TOPIC, topic, pattern, principal, "*", operation, permission)
        settle(self.admin.create_acls([rule]))

    def rules(self, topic):
        anything = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        rules = self.admin.describe_acls(anything).result()
        return {(rule.principal, rule.permission_type.name, rule.operation.name) for rule in rules}

    def read(self, topic):
        """Its records by partition, as pairs of offset and record."""
        partitions = self.topics()[topic].partitions
        consumer = self.consumer("reader")
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        records = read_to_the_end(consumer)
        consumer.close()
        return records

    def read_in_group(self, group, topic):
        """The same from where the group is, which is at the end then."""
        consumer = self.consumer(group)
        consumer.subscribe([topic])
        records = read_to_the_end(consumer)
        consumer.commit(asynchronous=False)
        consumer.close()
        return records

    def read_before(self, group, topic):
        """The records that the group has behind it, by the offsets that it has committed."""
        records, committed = self.read(topic), self.committed(group, topic)
        return {
            partition: [record for offset, record in records[partition] if offset < limit]
            for partition, limit in sorted(committed.items())
        }


def read_to_the_end(consumer):
    records, ended = {}, set()
    deadline = time.monotonic() + PATIENCE_S
    while not (assigned := {place.partition for place in consumer.assignment()}) or not assigned <= ended:
        for message in consumer.consume(1000, timeout=0.1):
            if message.error() is None:
                records.setdefault(message.partition(), []).append((message.offset(), record_of(message)))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(message.error())
        if time.monotonic() > deadline:
            sys.exit(f"expected ends of {assigned}, saw those of {ended}")
    return {partition: records.get(partition, []) for partition in assigned}


def record_of(message):
    return Record(message.partition(), message.timestamp()[1], message.key(), message.value(), message.headers() or [])


def settle(futures):
    return [future.result(timeout=PATIENCE_S) for future in futures.values()]


def without_offsets(records):
    return {partition: [record for _, record in entries] for partition, entries in records.items()}


def newest_by_key(records):
    """What no compaction removes."""
    return {record.key: record for entries in records.values() for _, record in entries}


def expect(what, expected, seen):
    if seen != expected:
        sys.exit(f"expected {what}: {str(difference(expected, seen))[:1000]}\nsaw {str(difference(seen, expected))[:1000]}")


def difference(shown, other):
    """What is shown, without the entries that the other has too, and without records before the first different one."""
    if isinstance(shown, dict):
        return {key: difference(value, other.get(key)) for key, value in shown.items() if value != other.get(key)}
    if isinstance(shown, list) and isinstance(other, list):
        common = next((place for place, (one, two) in enumerate(zip(shown, other)) if one != two), min(len(shown), len(other)))
        return shown[common:]
    return shown


def wait_until(what, expected, look):
    """Looks until it sees what is expected. Copies come when MirrorMaker has made them; no event announces that."""
    started = time.monotonic()
    while (seen := look()) != expected:
        if time.monotonic() > started + PATIENCE_S:
            expect(what, expected, seen)
        time.sleep(0.5)
    print(f"{time.monotonic() - started:5.1f} s for {what}", flush=True)


def produce(cluster, topic, numbers, partitions):
    """Records with each number as key, one a minute. Every tenth is without headers."""
    producer = cluster.producer()
    for number in numbers:
        producer.produce(
            topic,
            f"{cluster.alias} {number}",
            str(number),
            number % partitions,
            timestamp=FIRST_MS + number * MINUTE_MS,
            headers=[] if number % 10 == 0 else HEADERS,
        )
        producer.poll(0)
    producer.flush()


def transfer(cluster, numbers):
    """A transaction for each number; every third aborts."""
    producer = cluster.producer(**{"transactional.id": "transfers"})
    producer.init_transactions()
    for number in numbers:
        producer.begin_transaction()
        for account in ("from", "to"):
            producer.produce("transfers", str(number), account, number % 2, timestamp=FIRST_MS + number)
        producer.flush()
        if number % 3 == 0:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def balances(cluster, values):
    """A compacted topic: newer values of the same keys, and tombstones."""
    producer = cluster.producer()
    for number, value in enumerate(values):
        producer.produce("accounts", value, str(number), timestamp=FIRST_MS + number)
    producer.flush()


def both_fill(source):
    own = {"freezeframe.user.time.order": "strict"} if source.alias == "freezeframe" else {}
    source.create_topic("orders", 3, {**ORDERS, **own})
    source.create_topic("transfers", 2, KEPT)
    source.create_topic("accounts", 1, {**KEPT, "cleanup.policy": "compact"})
    produce(source, "orders", range(300), 3)
    transfer(source, range(9))
    balances(source, ["1"] * 20)
    balances(source, [None if number % 4 == 0 else "2" for number in range(10)])
    source.read_in_group("billing", "orders")
    source.read_in_group("audit", "transfers")
    source.commit("late", "orders", LATE)

    source.allow("User:reader", AclOperation.READ, "orders")
    source.allow("User:owner", AclOperation.ALL, "orders")
    source.allow("User:writer", AclOperation.WRITE, "orders")
    source.allow("User:guest", AclOperation.DESCRIBE, "orders", permission=AclPermissionType.DENY)
    source.allow("User:clerk", AclOperation.READ, "ord", pattern=ResourcePatternType.PREFIXED)


def both_grow(sources):
    """What changes while MirrorMaker runs, over some seconds."""
    for source in sources:
        source.create_topic("returns", 1, KEPT)
        settle(source.admin.create_partitions([NewPartitions("orders", 4)]))
        source.set_setting("orders", "max.message.bytes", "3000000")
    for first in range(300, 12_300, 300):
        for source in sources:
            produce(source, "orders", range(first, first + 300), 4)
        # Not all at once, so that MirrorMaker is killed while it copies.
        time.sleep(0.1)
    for source in sources:
        produce(source, "returns", range(10), 1)
        transfer(source, range(9, 30))
        balances(source, ["3"] * 5)


def both_wait_for_growth(source, target):
    """Until some of it has been copied."""
    copy = f"{source.alias}.orders"
    wait_until(f"more in {copy}", True, lambda: sum(map(len, target.read(copy).values())) > 300)


def both_compare(source, target):
    originals = set(TOPICS) & set(source.topics())
    for topic in sorted(originals):
        copy = f"{source.alias}.{topic}"
        wait_until(f"{copy} at {target.alias}", True, lambda: copy in target.topics())
        seen = newest_by_key if topic == "accounts" else without_offsets
        wait_until(f"the records of {topic} in {copy}", seen(source.read(topic)), lambda: seen(target.read(copy)))
        settings = {name: value for name, value in source.settings(topic).items() if not name.startswith("freezeframe.")}
        wait_until(f"the settings of {topic} at {copy}", settings, lambda: target.settings(copy))

    def copies():
        return {topic for topic in target.topics() if topic.startswith(f"{source.alias}.")}

    expected = originals | {"heartbeats", "checkpoints.internal"}
    wait_until(f"no other copies at {target.alias}", {f"{source.alias}.{topic}" for topic in expected}, copies)

    expect_same_place("billing", source, "orders", target, f"{source.alias}.orders")
    expect_same_place("audit", source, "transfers", target, f"{source.alias}.transfers")
    # A group that is not at the end is set to an earlier record that MirrorMaker knows the offset of.
    copy = f"{source.alias}.orders"
    wait_until(f"offsets of late in {copy}", {0, 1, 2}, lambda: set(target.committed("late", copy)))
    for partition, records in target.read_before("late", copy).items():
        expect("late not to miss records", source.read_before("late", "orders")[partition][: len(records)], records)

    # Without what lets write, and literal rules alone.
    rules = {("User:reader", "ALLOW", "READ"), ("User:owner", "ALLOW", "READ"), ("User:guest", "DENY", "DESCRIBE")}
    wait_until(f"rules of {source.alias}.orders", rules, lambda: target.rules(f"{source.alias}.orders"))

    def heartbeats():
        return sum(map(len, target.read(f"{source.alias}.heartbeats").values()))

    before = heartbeats()
    wait_until(f"heartbeats of {source.alias} at {target.alias}", True, lambda: heartbeats() > before)


def expect_same_place(group, source, topic, target, copy):
    """Waits until the group has the same records behind it in both places."""
    wait_until(
        f"{group} in {copy} where it is in {topic}",
        source.read_before(group, topic),
        lambda: target.read_before(group, copy),
    )


def both_take_over(source, target):
    """Groups read the copy, from where they were in the original."""
    copy = f"{source.alias}.orders"
    rest = {
        partition: [record for record in records if int(record.key) >= 300]
        for partition, records in without_offsets(source.read("orders")).items()
    }
    expect(f"billing to go on in {copy}", rest, without_offsets(target.read_in_group("billing", copy)))

    everything = without_offsets(source.read("orders"))
    for partition, records in without_offsets(target.read_in_group("late", copy)).items():
        unread = everything[partition][LATE if partition < 3 else 0 :]
        expect(f"late to read what it has not read of {copy}", unread, records[-len(unread) :])
        print(f"late has read {len(records) - len(unread)} records of {copy} again", flush=True)


def move_fill(kafka):
    kafka.create_topic("shipments", 3, ORDERS)
    produce(kafka, "shipments", range(300), 3)
    kafka.read_in_group("carriers", "shipments")
    kafka.allow("User:reader", AclOperation.READ, "shipments")


def move_compare(kafka, freezeframe):
    wait_until("shipments", True, lambda: "shipments" in freezeframe.topics())
    records = without_offsets(kafka.read("shipments"))
    wait_until("the records of shipments", records, lambda: without_offsets(freezeframe.read("shipments")))
    expect("the settings of shipments", kafka.settings("shipments"), freezeframe.settings("shipments"))
    expect_same_place("carriers", kafka, "shipments", freezeframe, "shipments")
    expect("no rules", set(), freezeframe.rules("shipments"))


def move_take_over(freezeframe):
    """Producers and the group have moved."""
    produce(freezeframe, "shipments", range(300, 330), 3)
    records = without_offsets(freezeframe.read_in_group("carriers", "shipments"))
    keys = sorted(int(record.key) for entries in records.values() for record in entries)
    expect("carriers to read what is new", list(range(300, 330)), keys)


def main():
    kafka, freezeframe = Cluster("kafka", sys.argv[1]), Cluster("freezeframe", sys.argv[2])
    steps = {
        "both-fill": lambda: [both_fill(source) for source in (kafka, freezeframe)],
        "both-grow": lambda: both_grow((kafka, freezeframe)),
        "both-wait-for-growth": lambda: [both_wait_for_growth(kafka, freezeframe), both_wait_for_growth(freezeframe, kafka)],
        "both-compare": lambda: [both_compare(kafka, freezeframe), both_compare(freezeframe, kafka)],
        "both-take-over": lambda: [both_take_over(kafka, freezeframe), both_take_over(freezeframe, kafka)],
        "move-fill": lambda: move_fill(kafka),
        "move-compare": lambda: move_compare(kafka, freezeframe),
        "move-take-over": lambda: move_take_over(freezeframe),
    }
    for step in sys.argv[3:]:
        started = time.monotonic()
        steps[step]()
        print(f"{step} ({time.monotonic() - started:.1f} s)", flush=True)


main()
