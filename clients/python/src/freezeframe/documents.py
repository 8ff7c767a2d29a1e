"""The answers of the history API as objects. docs/HISTORY-API.md has their documents; unknown fields are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from .moments import Moment

__all__ = [
    "Change",
    "CommittedOffset",
    "Cut",
    "GroupAtMoment",
    "GroupMember",
    "PartitionCut",
    "Pin",
    "SeekResult",
    "SoughtOffset",
    "TopicAtMoment",
]

Document = Mapping[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def time_of(milliseconds: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


@dataclass(frozen=True)
class PartitionCut:
    """The part of a partition that is in a cut: offsets from `start`, the first that is kept, to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Cut:
    """The end of every partition at one moment.

    Two cuts with one `hash` have the same records. `is_durable` is true if all of them are on stable storage, and
    `is_closed` if the cut holds, with a record, everything that happened before it. `is_complete` is false if the answer
    leaves out what this client may not see.
    """

    at: Moment
    hash: str
    is_durable: bool
    is_closed: bool
    is_complete: bool
    frontier: Moment
    partitions: tuple[PartitionCut, ...]

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition of a topic: where a consumer goes on that has read the cut."""
        return {cut.partition: cut.end for cut in self.partitions if cut.topic == topic}

    @classmethod
    def of(cls, document: Document) -> Cut:
        """Reads the document."""
        return cls(
            at=Moment(document["at"]),
            hash=document["hash"],
            is_durable=document["durable"],
            is_closed=document["closed"],
            is_complete=document.get("complete", True),
            frontier=Moment(document["frontier"]),
            partitions=tuple(
                PartitionCut(part["topic"], part["partition"], part["start"], part["end"]) for part in document["partitions"]
            ),
        )


@dataclass(frozen=True)
class TopicAtMoment:
    """A topic as it was. `deleted` is None unless it was deleted since."""

    name: str
    id: str
    partitions: int
    created: Moment
    deleted: Optional[Moment]
    configs: dict[str, str]

    @classmethod
    def of(cls, document: Document) -> TopicAtMoment:
        """Reads the document."""
        return cls(
            name=document["name"],
            id=document["id"],
            partitions=document["partitions"],
            created=Moment(document["created"]),
            deleted=_moment_or_none(document["deleted"]),
            configs=dict(document.get("configs", {})),
        )


@dataclass(frozen=True)
class CommittedOffset:
    """The offset that a group had committed for a partition, and the moment of the commit."""

    topic: str
    partition: int
    offset: int
    metadata: str
    committed: Moment

    @classmethod
    def of(cls, document: Document) -> CommittedOffset:
        """Reads the document."""
        return cls(
            topic=document["topic"],
            partition=document["partition"],
            offset=document["offset"],
            metadata=document.get("metadata", ""),
            committed=Moment(document["committed"]),
        )


@dataclass(frozen=True)
class GroupMember:
    """A member of a group, and the partitions that it read; None if it was no consumer."""

    id: str
    instance: Optional[str]
    client_id: str
    host: str
    reads: Optional[dict[str, list[int]]]

    @classmethod
    def of(cls, document: Document) -> GroupMember:
        """Reads the document."""
        reads = document["reads"]
        return cls(
            id=document["id"],
            instance=document["instance"],
            client_id=document["client_id"],
            host=document["host"],
            reads=None if reads is None else dict(reads),
        )


@dataclass(frozen=True)
class GroupAtMoment:
    """A group as it was. `state` and `generation` are None if nobody had ever joined.

    `sought` has the topics in which the group was set to a moment, with that moment.
    """

    name: str
    state: Optional[str]
    generation: Optional[int]
    members: tuple[GroupMember, ...]
    offsets: tuple[CommittedOffset, ...]
    sought: dict[str, Moment]

    @classmethod
    def of(cls, document: Document) -> GroupAtMoment:
        """Reads the document."""
        membership = document["membership"] or {"state": None, "generation": None, "members": []}
        return cls(
            name=document["group"],
            state=membership["state"],
            generation=membership["generation"],
            members=tuple(GroupMember.of(member) for member in membership["members"]),
            offsets=tuple(CommittedOffset.of(offset) for offset in document["offsets"]),
            sought={topic: Moment(at) for topic, at in document["sought"].items()},
        )


@dataclass(frozen=True)
class SoughtOffset:
    """The committed offset of a partition before and after a group was set; None for none."""

    topic: str
    partition: int
    before: Optional[int]
    after: Optional[int]


@dataclass(frozen=True)
class SeekResult:
    """A group that was set to a moment. `committed` is None after a dry run."""

    group: str
    at: Moment
    offsets: tuple[SoughtOffset, ...]
    committed: Optional[Moment]

    @classmethod
    def of(cls, document: Document) -> SeekResult:
        """Reads the document."""
        return cls(
            group=document["group"],
            at=Moment(document["at"]),
            offsets=tuple(
                SoughtOffset(part["topic"], part["partition"], part["before"], part["after"]) for part in document["offsets"]
            ),
            committed=_moment_or_none(document["committed"]),
        )


@dataclass(frozen=True)
class Pin:
    """A named moment that retention keeps readable until it expires. `topics` is None for all."""

    name: str
    at: Moment
    expires: datetime
    topics: Optional[tuple[str, ...]]

    @classmethod
    def of(cls, document: Document) -> Pin:
        """Reads the document."""
        topics = document["topics"]
        return cls(
            name=document["name"],
            at=Moment(document["at"]),
            expires=time_of(document["expires_ms"]),
            topics=None if topics is None else tuple(topics),
        )


@dataclass(frozen=True)
class Change:
    """One difference between two moments. `kind` says what differs, and `fields` how: docs/HISTORY-API.md has the fields of each kind."""

    kind: str
    fields: Document

    @classmethod
    def of(cls, document: Document) -> Change:
        """Reads the document."""
        return cls(kind=document["kind"], fields={name: value for name, value in document.items() if name != "kind"})

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def _moment_or_none(text: Optional[str]) -> Optional[Moment]:
    return None if text is None else Moment(text)
