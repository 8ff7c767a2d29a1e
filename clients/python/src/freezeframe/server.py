"""A server, its groups and its pins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Optional, TypeVar, Union

from .documents import Change, CommittedOffset, Cut, GroupAtMoment, Pin, SeekResult, TopicAtMoment
from .errors import Error, NotFoundError, RequestError
from .moments import Moment, MomentLike, moment_topic, spell
from .records import TopicView, view_of
from .transport import Answer, Login, Transport

__all__ = ["Diff", "Group", "Server", "connect"]

__version__ = "0.1.0"

Answered = TypeVar("Answered")
PathLike = Union[str, "os.PathLike[str]"]
Pending = Literal["wait", "refuse", "frontier"]
"""The policy for a moment that is not past yet: wait for it, refuse, or answer as of the frontier."""
Category = Literal["topics", "records", "pins", "offsets", "groups", "znodes"]

# The longest that a server waits for a moment if it is not told how long.
_PATIENCE_S = 60.0
_PIN_KEPT_FOR = timedelta(days=30)


def connect(
    url: str,
    *,
    user: Optional[str] = None,
    password: Optional[str] = None,
    token: Optional[str] = None,
    ca: Optional[PathLike] = None,
    cert: Optional[PathLike] = None,
    key: Optional[PathLike] = None,
    timeout: float = 30.0,
) -> Server:
    """Connects to the HTTP port of a server, as `http://127.0.0.1:8080` or `https://kafka.example:8443`.

    Log in by `user` and `password`, by a `token` of OAuth, or by a certificate: `cert` is a PEM file, with the key in it or in
    `key`. `ca` is a PEM file with the authorities that the server's certificate may come from, in place of the system's. Over
    `http` a password or a token is sent in the clear. `timeout` is the longest silence of the server, in seconds.
    """
    login = Login(user, password, token, _path_of(ca), _path_of(cert), _path_of(key))
    transport = Transport(url, login, timeout, f"freezeframe-python/{__version__}")
    transport.connect()
    return Server(transport)


class Server:
    """A server, as of any moment. Threads may share it. `connect` makes one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self._transport.address}>"

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def topic(self, name: str) -> TopicView:
        """A topic; `.at(…)` and `.between(…, …)` say as of when."""
        return view_of(self, name)

    def group(self, name: str) -> Group:
        """A consumer group."""
        if not isinstance(name, str):
            raise RequestError("bad_request", f"a group has a name, and {name!r} is none")
        return Group(self, name)

    def moment(self, at: Optional[MomentLike] = None) -> Moment:
        """The moment that a text means, in full; without one the present, with all that was acknowledged.

        Words are taken by the server's clock, and dates without a zone are in UTC.
        """
        document: dict[str, Any] = {"op": "moment"}
        if at is not None:
            document["at"] = spell(at)
        return self._answer(document, lambda answer: Moment(answer["at"]))

    def moment_topic(self, topic: str, at: MomentLike, until: Optional[MomentLike] = None) -> str:
        """The name under which any Kafka client reads a topic as of a moment, or what came between two."""
        return moment_topic(topic, self.moment(spell(at) if until is None else f"{spell(at)}..{spell(until)}"))

    def cut(
        self,
        at: Optional[MomentLike] = None,
        *,
        topics: Optional[Iterable[str]] = None,
        isolation: Literal["committed", "uncommitted"] = "committed",
        when: Pending = "wait",
        patience: Optional[float] = None,
    ) -> Cut:
        """The end of every partition at one moment, and a hash of the records before it. Without `at`, now."""
        document = {"op": "cut", "at": _or_now(at), "topics": _names(topics), "isolation": isolation}
        return self._answer(_pending(document, when, patience), Cut.of)

    def diff(
        self,
        first: MomentLike,
        second: Optional[MomentLike] = None,
        *,
        topics: Optional[Iterable[str]] = None,
        only: Optional[Iterable[Category]] = None,
        isolation: Literal["committed", "uncommitted"] = "committed",
        when: Pending = "wait",
        patience: Optional[float] = None,
    ) -> Diff:
        """The differences between two moments; without `second`, until now. `only` leaves out other categories."""
        window = self.moment(f"{spell(first)}..{_or_now(second)}")
        start, _, end = window.partition("..")
        document = {"op": "diff", "from": start, "until": end, "topics": _names(topics), "only": _names(only)}
        return Diff(self, _pending({**document, "isolation": isolation}, when, patience))

    def topics(
        self, at: Optional[MomentLike] = None, *, when: Pending = "wait", patience: Optional[float] = None
    ) -> list[TopicAtMoment]:
        """The topics that existed at a moment, with their settings; without one, those of the present."""
        document = {"op": "topics", "at": _or_none(at)}
        return self._answer(
            _pending(document, when, patience), lambda answer: [TopicAtMoment.of(topic) for topic in answer["topics"]]
        )

    def groups(
        self, at: Optional[MomentLike] = None, *, when: Pending = "wait", patience: Optional[float] = None
    ) -> list[GroupAtMoment]:
        """The groups of a moment, with their members and what they had committed; without one, those of the present."""
        document = {"op": "groups", "at": _or_none(at)}
        return self._answer(
            _pending(document, when, patience), lambda answer: [GroupAtMoment.of(group) for group in answer["groups"]]
        )

    def pin(
        self,
        name: str,
        at: Optional[MomentLike] = None,
        *,
        keep_for: timedelta = _PIN_KEPT_FOR,
        topics: Optional[Iterable[str]] = None,
    ) -> Pin:
        """Keeps a moment readable for a while, whatever retention says; without `at`, the present. The default is 30 days.

        The same pin set again keeps the later expiry. Without `topics` all topics are kept, and the disk fills accordingly.
        """
        milliseconds = keep_for // timedelta(milliseconds=1)
        if milliseconds <= 0:
            raise RequestError("bad_pin", f"a pin is kept for some time, and {keep_for} is none")
        moment = self.moment(at)
        document = {"op": "pin", "name": name, "at": moment, "for_ms": milliseconds, "topics": _names(topics)}
        return self._answer(document, lambda answer: Pin.of(answer["pin"]), is_safe=False)

    def unpin(self, name: str) -> None:
        """Removes a pin before it expires."""
        self._answer({"op": "unpin", "name": name}, lambda answer: None, is_safe=False)

    def pins(self) -> list[Pin]:
        """The pins in force, by name."""
        return self._answer({"op": "pins"}, lambda answer: [Pin.of(pin) for pin in answer["pins"]])

    def _answer(
        self, document: dict[str, Any], read: Callable[[Any], Answered], *, is_safe: bool = True
    ) -> Answered:
        """Sends a document of the history API, and reads the answer. It is safe if it changes nothing."""
        answer = self.ask(document, is_safe=is_safe)
        try:
            return read(answer)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as problem:
            if isinstance(problem, Error):
                raise
            raise Error("bad_answer", f"the server's answer to {document['op']} is not one: {problem!r}") from problem

    def ask(self, document: dict[str, Any], *, is_safe: bool = True) -> Any:
        """Sends a document of the history API, and returns the document of the answer: for operations without a method."""
        wait = document.get("patience_ms") or 0
        body = self._transport.send("POST", "/v1", document, is_safe=is_safe, wait=wait / 1000).read()
        try:
            return json.loads(body)
        except ValueError as problem:
            raise Error("bad_answer", f"the server's answer is not JSON: {body[:200]!r}") from problem

    def get(self, path: str) -> Answer:
        """The head of the answer to a path of the HTTP API."""
        return self._transport.send("GET", path)


class Group:
    """A consumer group, as of any moment. `Server.group` makes one."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.name = name

    def __repr__(self) -> str:
        return f"<Group {self.name}>"

    def seek(
        self,
        at: MomentLike,
        *,
        topics: Optional[Iterable[str]] = None,
        dry_run: bool = False,
        isolation: Literal["committed", "uncommitted"] = "committed",
        when: Pending = "wait",
        patience: Optional[float] = None,
    ) -> SeekResult:
        """Sets the group to a moment: it goes on with what came after it. The group must have no members.

        Without `topics` this is for all topics that it has committed an offset for. With `dry_run` nothing changes.
        """
        document = {"op": "seek_group", "group": self.name, "at": spell(at), "topics": _names(topics), "dry_run": dry_run}
        return self._server._answer(
            _pending({**document, "isolation": isolation}, when, patience), SeekResult.of, is_safe=dry_run
        )

    def restore(
        self, at: MomentLike, *, dry_run: bool = False, when: Pending = "wait", patience: Optional[float] = None
    ) -> SeekResult:
        """Commits again what the group had committed at a moment. The group must have no members."""
        document = {"op": "restore_group", "group": self.name, "at": spell(at), "dry_run": dry_run}
        return self._server._answer(_pending(document, when, patience), SeekResult.of, is_safe=dry_run)

    def describe(
        self, at: Optional[MomentLike] = None, *, when: Pending = "wait", patience: Optional[float] = None
    ) -> GroupAtMoment:
        """The group as it was, with its members and what it had committed."""
        document = {"op": "groups", "at": _or_none(at), "group": self.name}
        groups = self._server._answer(
            _pending(document, when, patience), lambda answer: [GroupAtMoment.of(group) for group in answer["groups"]]
        )
        for group in groups:
            if group.name == self.name:
                return group
        raise NotFoundError("unknown_group", f"there was no group {self.name!r} at that moment, or it may not be seen")

    def offsets(
        self, at: Optional[MomentLike] = None, *, when: Pending = "wait", patience: Optional[float] = None
    ) -> list[CommittedOffset]:
        """The offsets that the group had committed at a moment."""
        document = {"op": "offsets", "at": _or_none(at), "group": self.name}
        return self._server._answer(
            _pending(document, when, patience),
            lambda answer: [CommittedOffset.of(offset) for group in answer["groups"] for offset in group["offsets"]],
        )


class Diff:
    """The differences between two moments. Iterate over it for the changes: it fetches a page at a time."""

    def __init__(self, server: Server, document: dict[str, Any]) -> None:
        self._server = server
        self._document = document
        # The first page is fetched here, so an error shows where the diff is asked for.
        self._first = server._answer(document, _DiffPage)
        self.first = self._first.start
        self.second = self._first.end

    def __repr__(self) -> str:
        return f"<Diff from {self.first} until {self.second}>"

    def __iter__(self) -> Iterator[Change]:
        page = self._first
        while True:
            yield from page.changes
            if page.next is None:
                return
            following = {**self._document, "from": self.first, "until": self.second, "after": page.next}
            page = self._server._answer(following, _DiffPage)


class _DiffPage:
    def __init__(self, answer: Any) -> None:
        self.start = Moment(answer["from"])
        self.end = Moment(answer["until"])
        self.next: Optional[str] = answer["next"]
        self.changes = [Change.of(change) for change in answer["changes"]]


def _pending(document: dict[str, Any], when: Pending, patience: Optional[float]) -> dict[str, Any]:
    """Adds what the server does about a moment that is not past yet."""
    if patience is not None:
        if not 0 <= patience <= _PATIENCE_S:
            raise RequestError("bad_request", f"patience is from 0 to {_PATIENCE_S:.0f} s, and not {patience}")
        document = {**document, "patience_ms": round(patience * 1000)}
    return {**document, "when": when}


def _or_now(at: Optional[MomentLike]) -> str:
    return "now" if at is None else spell(at)


def _or_none(at: Optional[MomentLike]) -> Optional[str]:
    return None if at is None else spell(at)


def _names(names: Optional[Iterable[str]]) -> Optional[list[str]]:
    if names is None:
        return None
    # A text is a sequence of texts too, and its letters are no topics.
    if isinstance(names, str):
        raise RequestError("bad_request", f"give a list of names, as in [{names!r}]")
    return list(names)


def _path_of(path: Optional[PathLike]) -> Optional[str]:
    return None if path is None else os.fspath(path)
