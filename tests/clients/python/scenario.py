"""Steps a to h, the same in every language, for any client that `Client` below can be written for."""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from model import Entry, Model
from steps import MOMENT_S, PATIENCE_S, T0, Mismatch, equal, next_millisecond, wait_until
from transactions import Transactions

PER_PASS = 300
LEFT_UNREAD = 10
# The records say 2023: by default Kafka deletes them at its next look, every five minutes.
KEEP = {"retention.ms": "-1"}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Consumer(ABC):
    """One consumer. Partitions are numbers, since each reads one topic."""

    @abstractmethod
    def subscribe(self, topic, paused): ...

    @abstractmethod
    def assign(self, topic, partitions):
        """From the beginning."""

    @abstractmethod
    def assignment(self): ...

    @abstractmethod
    def resume(self): ...

    @abstractmethod
    def poll(self, limit=500):
        """Waits for a part of a second; gives a list of Seen."""

    @abstractmethod
    def seek(self, topic, offsets): ...

    @abstractmethod
    def commit(self, offsets): ...

    @abstractmethod
    def committed(self, topic, partitions): ...

    @abstractmethod
    def start_offsets(self, topic, partitions): ...

    @abstractmethod
    def end_offsets(self, topic, partitions): ...

    @abstractmethod
    def offsets_for_time(self, topic, partitions, t):
        """For each partition an offset or None."""

    @abstractmethod
    def close(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Producer(ABC):
    """One that stays. With an id, what it sends is in transactions."""

    @abstractmethod
    def begin(self): ...

    @abstractmethod
    def send(self, topic, records):
        """Sends pairs of a partition and an entry, and gives their offsets once all are answered."""

    @abstractmethod
    def send_offsets(self, topic, offsets, consumer): ...

    @abstractmethod
    def commit(self): ...

    @abstractmethod
    def abort(self): ...

    @abstractmethod
    def close(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Client(ABC):
    name = ""
    accepts_at_sign = True

    @abstractmethod
    def create(self, topic, partitions, configs): ...

    @abstractmethod
    def delete(self, topic): ...

    @abstractmethod
    def topics(self):
        """The count of partitions of each topic."""

    @abstractmethod
    def produce(self, topic, entries, codec, limit_s=PATIENCE_S):
        """Sends, in one batch a partition, and gives for each entry its partition and offset. Raises what was refused."""

    @abstractmethod
    def producer(self, transactional_id=None): ...

    @abstractmethod
    def consumer(self, group, limit_s=PATIENCE_S, isolation="read_uncommitted"): ...

    @abstractmethod
    def group_offsets(self, group, topic): ...

    @abstractmethod
    def is_refusal(self, problem):
        """Whether it is the broker's word that it will not, rather than a wait that ended or a topic not there."""

    @abstractmethod
    def is_fenced(self, problem):
        """Whether it says that another producer has taken over."""

    @abstractmethod
    def error_code(self, problem):
        """The broker's."""

    def raise_logged(self, topic):
        """Raises an error about a topic that the client wrote to its log and told nobody."""

    @staticmethod
    @abstractmethod
    def login_error(bootstrap, credentials):
        """Logs in, and says which error the client reports: SASL or TLS."""


class Scenario:
    def __init__(self, client, steps, topic):
        self.client, self.steps, self.topic = client, steps, topic
        self.model = Model()

    def run(self, moments):
        self.steps.step("a create-topic", lambda: self.create(self.topic, 3))
        for codec in CODECS:
            self.steps.step(f"b produce-{codec}", lambda codec=codec: self.produce_pass(codec, PER_PASS, codec))
        self.group_steps()
        self.steps.step("e seek-by-time", self.seek_by_time)
        self.steps.step("e seek-by-time-out-of-order", self.seek_out_of_order)
        transactions = Transactions(self)
        transactions.run()
        if moments:
            self.moment_steps()
            self.steps.step("f moment-transaction", transactions.moment)
        self.steps.step("g delete-topic", lambda: self.delete(self.topic))

    # a, g

    def create(self, topic, partitions):
        self.client.create(topic, partitions, KEEP)
        wait_until(f"{topic} to have {partitions} partitions", lambda: self.client.topics().get(topic) == partitions)

    def delete(self, topic):
        self.client.delete(topic)
        wait_until(f"{topic} to be gone", lambda: topic not in self.client.topics())

    # b

    def produce_pass(self, label, count, codec="none"):
        entries = []
        for i in range(count):
            value = None if i % 50 == 7 else f"{label}-{i}-{'x' * (i % 40)}"
            headers = (("h", "1"), ("h", "2"), ("codec", label))
            entries.append(Entry(f"k-{i}", value, T0 + i * 1000, headers))
        self.produce(self.model, self.topic, entries, codec)
        self.model.assert_dense()

    def produce(self, model, topic, entries, codec="none"):
        for entry, (partition, offset) in zip(entries, self.client.produce(topic, entries, codec), strict=True):
            model.put(partition, offset, entry)

    # c, d

    def group_steps(self):
        group = f"g-{self.topic}"
        committed = {}

        def consume():
            equal("count of records produced", len(CODECS) * PER_PASS, self.model.count())
            with self.client.consumer(group) as left, self.client.consumer(group) as right:
                self.model.assert_equals(self.consume_together(left, right))
                for member in (left, right):
                    offsets = {p: self.model.ends()[p] - LEFT_UNREAD for p in member.assignment()}
                    member.commit(offsets)
                    committed.update(offsets)

        def read_back():
            equal("count of partitions committed", 3, len(committed))
            equal("offsets by admin", committed, self.client.group_offsets(group, self.topic))
            with self.client.consumer(group) as reader:
                equal("offsets by consumer", committed, reader.committed(self.topic, list(committed)))

        def resume():
            with self.client.consumer(group) as member:
                member.subscribe(self.topic, paused=False)
                self.model.slice(committed, self.model.ends()).assert_equals(read_to(member, self.model.ends()))

        self.steps.step("c group-consume", consume)
        self.steps.step("d committed-offsets-read-back", read_back)
        self.steps.step("d group-resumes", resume)

    def consume_together(self, left, right):
        """Neither reads before both have their share, so that no record is read twice for a rebalance.

        The second joins when the first has joined: kafka-python 3.0.12 hangs now and then when both do at once.
        """

        def all_left():
            equal("records read while paused", [], left.poll())
            return len(left.assignment()) == 3

        def shared():
            for seen in polls.map(lambda member: member.poll(), (left, right)):
                equal("records read while paused", [], seen)
            shares = [left.assignment(), right.assignment()]
            return all(shares) and len(shares[0] | shares[1]) == 3 and sum(map(len, shares)) == 3

        left.subscribe(self.topic, paused=True)
        wait_until("one member to get 3 partitions", all_left)
        right.subscribe(self.topic, paused=True)
        # Side by side, as two programs would: a member that joins waits for the other inside its poll.
        with ThreadPoolExecutor(2) as polls:
            wait_until("two members to share 3 partitions", shared)
        seen = []
        for member in (left, right):
            member.resume()
            seen += read_to(member, {p: self.model.ends()[p] for p in member.assignment()})
        return seen

    # e

    def seek_by_time(self):
        last = T0 + (PER_PASS - 1) * 1000
        times = [T0 - 1, T0, T0 + 149_999, T0 + 150_000, T0 + 150_001, last, last + 1]
        self.assert_found(self.topic, self.model, times)

    def seek_out_of_order(self):
        late, model = f"{self.topic}-late", Model()
        self.create(late, 1)
        for batch in ([5, 1, 9, 3], [2, 12, 4, 8], [7, 20, 6], [0, 15, 20, 10]):
            self.produce(model, late, [Entry("k", f"s{second}", T0 + second * 1000, ()) for second in batch])
        seconds = range(-1, 22)
        self.assert_found(late, model, [T0 + s * 1000 + d for s in seconds for d in (-1, 0, 1)])
        self.delete(late)

    def assert_found(self, topic, model, times, limit_s=PATIENCE_S):
        with self.client.consumer(None, limit_s) as consumer:
            for t in times:
                expected = {p: model.first_at_or_after(p, t) for p in sorted(model.partitions)}
                seen = consumer.offsets_for_time(topic, sorted(model.partitions), t)
                equal(f"offsets at T0+{t - T0} in {topic}", expected, seen)

    # f

    def moment_steps(self):
        def step(name, body, *args):
            self.steps.step(f"f {name}", lambda: body(*args))

        first = self.model.ends()
        starts = dict.fromkeys(first, 0)
        m = next_millisecond()
        step("moments-produce", self.produce_pass, "after", 50)
        second = self.model.ends()
        m2 = next_millisecond()
        step("moments-produce-later", self.produce_pass, "later", 5)

        at = f"{self.topic}.__at.s{m}"
        window = f"{at}..s{m2}"
        step("moment-assigned", self.assert_slice, at, starts, first)
        step("moment-second", self.assert_slice, f"{self.topic}.__at.s{m2}", starts, second)
        step("window-assigned", self.assert_slice, window, first, second)
        if self.client.accepts_at_sign:
            step("moment-with-at-sign", self.assert_slice, f"{self.topic}@s{m}", starts, first)
            step("window-with-at-sign", self.assert_slice, f"{self.topic}@s{m}..s{m2}", first, second)
        else:
            step("moment-with-at-sign (not tried: this client refuses '@' in a topic's name)", lambda: None)
        step("moment-subscribed", self.assert_subscribed, at, starts, first)
        times = [T0, T0 + 150_000, T0 + PER_PASS * 1000]
        step("moment-seek-by-time", self.assert_found, at, self.model.slice(starts, first), times, MOMENT_S)
        step(f"produce-refused {at[len(self.topic):]}", self.assert_refused, at)
        step(f"produce-refused {window[len(self.topic):]}", self.assert_refused, window)
        step("moment-unchanged", self.assert_slice, at, starts, first)

    def assert_slice(self, topic, starts, ends):
        with self.client.consumer(None, MOMENT_S) as consumer:
            equal("start offsets", starts, consumer.start_offsets(topic, list(ends)))
            equal("end offsets", ends, consumer.end_offsets(topic, list(ends)))
            consumer.assign(topic, list(ends))
            unread = {p: end for p, end in ends.items() if starts[p] < end}
            self.model.slice(starts, ends).assert_equals(read_to(consumer, unread, MOMENT_S))

    def assert_subscribed(self, topic, starts, ends):
        with self.client.consumer(f"g-at-{self.topic}", MOMENT_S) as member:
            member.subscribe(topic, paused=False)
            self.model.slice(starts, ends).assert_equals(read_to(member, ends, MOMENT_S))

    def assert_refused(self, topic):
        entry = Entry("k", "v", T0, ())
        try:
            self.client.produce(topic, [entry], "none", MOMENT_S)
        except Exception as problem:
            if self.client.is_refusal(problem):
                return
            raise Mismatch(f"expected a record for {topic} to be refused, saw {problem!r}") from problem
        raise Mismatch(f"expected a record for {topic} to be refused, saw it succeed")


def read_to(consumer, ends, limit_s=PATIENCE_S):
    """Polls until each partition was read up to its end, and one time more: what comes too much is seen as well."""
    seen, left = [], dict(ends)

    def done():
        for record in consumer.poll():
            seen.append(record)
            if record.offset + 1 >= left.get(record.partition, record.offset + 2):
                del left[record.partition]
        return not left

    wait_until(f"to read to {ends}", done, limit_s)
    return seen + consumer.poll()
