"""What a topic must hold, kept beside it: for each partition, the entries by offset."""

from typing import NamedTuple, Optional

from steps import Mismatch, equal


class Entry(NamedTuple):
    """What must come back of a record. Headers are pairs, since a key may be there twice."""

    key: Optional[str]
    value: Optional[str]
    timestamp: int
    headers: tuple

    @staticmethod
    def of(key, value, timestamp, headers):
        """From a client's bytes."""

        def text(data):
            return None if data is None else data.decode()

        return Entry(text(key), text(value), timestamp, tuple((k, text(v)) for k, v in headers or ()))


class Seen(NamedTuple):
    partition: int
    offset: int
    entry: Entry


class Model:
    def __init__(self):
        self.partitions = {}

    def put(self, partition, offset, entry):
        entries = self.partitions.setdefault(partition, {})
        if offset in entries:
            raise Mismatch(f"expected offset {offset} of partition {partition} to be given once, saw it given twice")
        entries[offset] = entry

    @staticmethod
    def union(*parts):
        union = Model()
        for part in parts:
            for partition, entries in part.partitions.items():
                union.partitions.setdefault(partition, {}).update(entries)
        return union

    def ends(self):
        return {partition: max(entries) + 1 for partition, entries in sorted(self.partitions.items())}

    def count(self):
        return sum(len(entries) for entries in self.partitions.values())

    def slice(self, starts, ends):
        """The part in [start, end) of each partition that `ends` names."""
        part = Model()
        for partition, end in ends.items():
            entries = self.partitions[partition].items()
            part.partitions[partition] = {o: e for o, e in entries if starts[partition] <= o < end}
        return part

    def first_at_or_after(self, partition, t):
        """The first offset whose timestamp is at or after `t`, or None."""
        return min((o for o, e in self.partitions[partition].items() if e.timestamp >= t), default=None)

    def assert_dense(self):
        for partition, end in self.ends().items():
            equal(f"count of records in partition {partition}, that ends at {end}", end, len(self.partitions[partition]))

    def assert_equals(self, seen):
        """`seen`, in the order it was read, is exactly this: each record once, in offset order within its partition."""
        offsets = {partition: [] for partition in self.partitions}
        for record in seen:
            offsets.setdefault(record.partition, []).append(record.offset)
            expected = self.partitions.get(record.partition, {}).get(record.offset)
            equal(f"record {record.partition}/{record.offset}", expected, record.entry)
        equal("offsets read", {partition: sorted(entries) for partition, entries in self.partitions.items()}, offsets)
