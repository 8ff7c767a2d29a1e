"""What is read of transactions, the same in every language. Each step has topics of its own."""

from model import Entry, Model
from steps import PATIENCE_S, T0, Mismatch, equal, next_millisecond, wait_until

PARTITIONS = (0, 1, 2)
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class Transactions:
    def __init__(self, scenario):
        self.scenario, self.client = scenario, scenario.client
        self.topic = f"{scenario.topic}-txn"

    def run(self):
        self.scenario.steps.step("h transaction-commit-and-abort", self.commit_and_abort)
        self.scenario.steps.step("h consume-transform-produce", self.consume_transform_produce)
        self.scenario.steps.step("h fencing", self.fencing)

    def commit_and_abort(self):
        topic = self.topic
        self.scenario.create(topic, len(PARTITIONS))
        with self.client.producer(topic) as producer, self.client.producer() as plain:
            before = send(plain, topic, "before")
            producer.begin()
            first = send(producer, topic, "first")
            self.assert_reads(topic, COMMITTED, before)
            producer.commit()

            producer.begin()
            aborted = send(producer, topic, "aborted")
            behind = send(plain, topic, "behind")
            committed = Model.union(before, first)
            self.assert_reads(topic, COMMITTED, committed)
            self.assert_reads(topic, UNCOMMITTED, Model.union(committed, aborted, behind))
            producer.abort()

            producer.begin()
            second = send(producer, topic, "second")
            producer.commit()
            committed = Model.union(committed, behind, second)
            self.assert_reads(topic, COMMITTED, committed)
            self.assert_reads(topic, UNCOMMITTED, Model.union(committed, aborted))
        self.scenario.delete(topic)

    def consume_transform_produce(self):
        source, target, group = f"{self.topic}-in", f"{self.topic}-out", f"g-{self.topic}"
        self.scenario.create(source, len(PARTITIONS))
        self.scenario.create(target, len(PARTITIONS))
        with self.client.producer() as plain:
            given = send(plain, source, "in")
        with (
            self.client.consumer(group, isolation=COMMITTED) as consumer,
            self.client.producer(group) as producer,
        ):
            consumer.subscribe(source, paused=False)
            self.transform(consumer, producer, source, target, given.count())
        seen = self.read(target, COMMITTED, given.count())
        equal("output", {p: [f"out of {e.value}" for e in entries.values()] for p, entries in given.partitions.items()},
              {p: [r.entry.value for r in seen if r.partition == p] for p in PARTITIONS})
        ends = given.ends()
        wait_until(f"committed offsets {ends}", lambda: self.client.group_offsets(group, source) == ends)
        self.scenario.delete(source)
        self.scenario.delete(target)

    def transform(self, consumer, producer, source, target, count):
        """In several transactions, of which the second is aborted and done again."""
        committed, done, transactions = dict.fromkeys(PARTITIONS, 0), 0, 0
        while done < count:
            polled = poll(consumer, 4)
            producer.begin()
            producer.send(target, [(r.partition, r.entry._replace(value=f"out of {r.entry.value}")) for r in polled])
            offsets = {r.partition: r.offset + 1 for r in polled}
            producer.send_offsets(source, offsets, consumer)
            transactions += 1
            if transactions == 2:
                producer.abort()
                wait_until(f"committed offsets {committed}", lambda: committed == {
                    p: max(offset or 0, 0) for p, offset in consumer.committed(source, PARTITIONS).items()})
                consumer.seek(source, {p: committed[p] for p in offsets})
            else:
                producer.commit()
                committed.update(offsets)
                done += len(polled)

    def fencing(self):
        topic = f"{self.topic}-fenced"
        self.scenario.create(topic, len(PARTITIONS))
        with self.client.producer(topic) as first:
            first.begin()
            send(first, topic, "fenced")
            with self.client.producer(topic) as second:
                second.begin()
                seen = send(second, topic, "second")
                self.assert_fenced(first)
                second.commit()
                self.assert_reads(topic, COMMITTED, seen)
        self.scenario.delete(topic)

    def assert_fenced(self, producer):
        try:
            producer.commit()
        except Exception as problem:
            if self.client.is_fenced(problem):
                return
            raise Mismatch(f"expected the first producer to be fenced, saw {problem!r}") from problem
        raise Mismatch("expected the first producer to be fenced, saw its commit succeed")

    def moment(self):
        """A moment while a transaction is open has nothing of it for ever; one after its commit has all."""
        topic = f"{self.topic}-moment"
        self.scenario.create(topic, len(PARTITIONS))
        with self.client.producer(topic) as producer, self.client.producer() as plain:
            before = send(plain, topic, "before")
            producer.begin()
            both = Model.union(before, send(producer, topic, "open"))
            m = next_millisecond()
            producer.commit()
        self.assert_reads(topic, COMMITTED, both)
        m2 = next_millisecond()
        self.assert_reads(f"{topic}.__at.s{m}", COMMITTED, before)
        self.assert_reads(f"{topic}.__at.s{m}", UNCOMMITTED, both)
        self.assert_reads(f"{topic}.__at.s{m2}", COMMITTED, both)
        self.scenario.delete(topic)

    def assert_reads(self, topic, isolation, expected):
        expected.assert_equals(self.read(topic, isolation, expected.count()))

    def read(self, topic, isolation, count):
        """Polls until it has as many records as that, and one time more."""
        with self.client.consumer(None, PATIENCE_S, isolation) as consumer:
            consumer.assign(topic, PARTITIONS)
            seen = []
            wait_until(f"{count} records of {topic}", lambda: seen.extend(consumer.poll()) or len(seen) >= count)
            return seen + consumer.poll()


def send(producer, topic, label):
    """Sends some to each partition, and gives where they went."""
    records = [(p, Entry(f"k-{i}", f"{label}-{i}", T0 + i * 1000, ())) for p in PARTITIONS for i in range(5)]
    sent = Model()
    for (partition, entry), offset in zip(records, producer.send(topic, records), strict=True):
        sent.put(partition, offset, entry)
    return sent


def poll(consumer, limit):
    polled = []
    wait_until("more of the input", lambda: polled.extend(consumer.poll(limit)) or polled)
    return polled
