"""The records and the keys of a topic as of a moment."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, Union, overload
from urllib.parse import quote, urlencode

from .documents import time_of
from .errors import Error, RequestError
from .moments import Moment, MomentLike, moment_topic, spell

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from .server import Server

__all__ = ["Record", "TopicView"]

# A page ends at some MiB too, so these bound the number of small records.
_LINES_MAX = 20_000
_ROWS_MAX = 100_000


class Record(NamedTuple):
    """A record. `key`, `value` and the values of headers are bytes; None is not the same as empty.

    `timestamp` is what the record says of itself, in UTC, and None if it says nothing.
    """

    topic: str
    partition: int
    offset: int
    timestamp: Optional[datetime]
    key: Optional[bytes]
    value: Optional[bytes]
    headers: tuple[tuple[str, Optional[bytes]], ...]


@dataclass(frozen=True)
class _Page:
    body: bytes
    next: Optional[str]


@dataclass(frozen=True)
class _Selection:
    topic: str
    partition: Optional[int] = None
    at: Optional[str] = None


class TopicView:
    """A topic, as of a moment or between two.

    Without a moment each read shows the present. With one the view is of that moment: words are resolved at the first read,
    and later reads show the same. (Of user time, it shows what is known at each read, unless the moment says as of when.)
    """

    def __init__(self, server: Server, selection: _Selection) -> None:
        self._server = server
        self._selection = selection
        self._moment: Optional[Moment] = None

    def __repr__(self) -> str:
        partition = "" if self._selection.partition is None else f"/{self._selection.partition}"
        at = "" if self._selection.at is None else f" at {self._moment or self._selection.at}"
        return f"<TopicView {self._selection.topic}{partition}{at}>"

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._selection.topic

    @property
    def moment(self) -> Moment:
        """The moment or the window of the view, in full; of a view without one, the present."""
        if self._selection.at is None:
            return self._server.moment()
        if self._moment is None:
            self._moment = self._server.moment(self._selection.at)
        return self._moment

    @property
    def moment_topic(self) -> str:
        """The topic's name as of this moment: any Kafka client reads it."""
        return moment_topic(self._selection.topic, self.moment)

    def at(self, moment: MomentLike) -> TopicView:
        """The topic as of a moment: a text such as `yesterday 14:00` (in UTC), or a `datetime` with a zone."""
        return TopicView(self._server, replace(self._selection, at=spell(moment)))

    def between(self, first: MomentLike, second: MomentLike) -> TopicView:
        """The records that came from the first moment on and before the second."""
        return TopicView(self._server, replace(self._selection, at=f"{spell(first)}..{spell(second)}"))

    def partition(self, partition: int) -> TopicView:
        """One partition of it."""
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < 1 << 31:
            raise RequestError("bad_request", f"a partition is a number from 0 on, and {partition!r} is none")
        view = TopicView(self._server, replace(self._selection, partition=partition))
        view._moment = self._moment
        return view

    def records(self, limit: Optional[int] = None) -> Iterator[Record]:
        """The committed records, partition by partition, in the order of their offsets.

        The iterator holds two pages, of some MiB each. The first page is fetched before this returns, so an error shows here.
        """
        pages = self._pages("jsonl", _LINES_MAX, limit)
        return _records_of(self._selection.topic, _with_first(pages))

    def to_arrow(self, limit: Optional[int] = None, *, text: bool = False) -> pyarrow.Table:
        """The committed records as a table of Arrow, with the columns of `Record` except `topic`.

        Keys and values are binary. With `text` they are strings, and a record that is not UTF-8 is an error. Needs the extra
        `freezeframe[arrow]`.
        """
        arrow = _import("pyarrow", "arrow")
        arrow_ipc = _import("pyarrow.ipc", "arrow")
        tables = []
        for body in self._pages("arrow", _ROWS_MAX, limit):
            try:
                with arrow_ipc.open_stream(body) as stream:
                    tables.append(stream.read_all())
            except (OSError, arrow.ArrowInvalid) as problem:
                raise Error("bad_answer", f"the server's page of records is not in Arrow's format: {problem}") from problem
        table = arrow.concat_tables(tables)
        return _as_text(arrow, table) if text else table

    def to_pandas(self, limit: Optional[int] = None, *, text: bool = False) -> pandas.DataFrame:
        """`to_arrow` as a frame of pandas. Needs the extra `freezeframe[pandas]`."""
        _import("pandas", "pandas")
        frame: pandas.DataFrame = self.to_arrow(limit, text=text).to_pandas()
        return frame

    @overload
    def keys(self, at: Optional[MomentLike] = None, *, text: Literal[False] = False) -> dict[bytes, bytes]: ...

    @overload
    def keys(self, at: Optional[MomentLike] = None, *, text: Literal[True]) -> dict[str, str]: ...

    def keys(
        self, at: Optional[MomentLike] = None, *, text: bool = False
    ) -> Union[dict[bytes, bytes], dict[str, str]]:
        """The newest value of each key as of the moment: of `at`, or else of the view.

        Deleted keys and records without a key are left out. With `text` keys and values are strings, and one that is not UTF-8
        is an error. The view is of all partitions.
        """
        view = self if at is None else self.at(at)
        if view._selection.partition is not None:
            raise RequestError("bad_request", "the state by key is of a whole topic: leave the partition out")
        newest = {record.key: record.value for record in view._newest_records()}
        state = {key: value for key, value in newest.items() if key is not None and value is not None}
        if not text:
            return state
        return {_decode(key): _decode(value) for key, value in state.items()}

    def _newest_records(self) -> Iterator[Record]:
        at: str = self.moment
        after: Optional[str] = None
        while True:
            document = {"op": "tree", "do": "keys", "topic": self.name, "at": at, "format": "jsonl", "after": after}
            page = self._server.ask(document)
            try:
                lines, at, after = base64.b64decode(page["base64"], validate=True), page["at"], page["next"]
            except (KeyError, TypeError, ValueError) as problem:
                raise Error("bad_answer", f"the server's page of keys is not one: {problem!r}") from problem
            yield from _parse_lines(self.name, lines)
            if after is None:
                return

    def _pages(self, form: str, page_max: int, limit: Optional[int]) -> Generator[bytes, None, None]:
        """The bodies of the pages. The next page is fetched while one is used.

        It is read to its end at once: a server ends a connection whose reader is slow.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise RequestError("bad_request", f"a limit is a number from 1 on, and {limit!r} is none")
        query = {"format": form, **self._bounds()}
        left = limit
        with ThreadPoolExecutor(1, "freezeframe-pages") as ahead:
            page = self._page(query, page_max, left)
            while True:
                following = None if page.next is None else {**query, "after": page.next}
                waiting: Optional[Future[_Page]] = None
                if left is not None:
                    # A page may be shorter than asked for, so the rest is known only once the page is here.
                    left -= _count(form, page.body)
                elif following is not None:
                    waiting = ahead.submit(self._page, following, page_max, None)
                yield page.body
                if following is None or left == 0:
                    return
                page = self._page(following, page_max, left) if waiting is None else waiting.result()

    def _page(self, query: dict[str, str], page_max: int, left: Optional[int]) -> _Page:
        limit = page_max if left is None else min(page_max, left)
        answer = self._server.get(f"{self._path()}?{urlencode({**query, 'limit': limit}, quote_via=quote)}")
        return _Page(answer.read(), answer.headers.get("Freezeframe-Next"))

    def _path(self) -> str:
        topic, partition = quote(self._selection.topic, safe=""), self._selection.partition
        return f"/v1/records/{topic}" if partition is None else f"/v1/records/{topic}/{partition}"

    def _bounds(self) -> dict[str, str]:
        moment = self.moment
        if not moment.is_window:
            return {"at": moment}
        first, _, second = moment.partition("..")
        return {"from": first, "until": second}


def view_of(server: Server, topic: str) -> TopicView:
    """The view of a topic in the present."""
    if not isinstance(topic, str) or not topic:
        raise RequestError("bad_request", f"a topic has a name, and {topic!r} is none")
    return TopicView(server, _Selection(topic))


def _with_first(pages: Generator[bytes, None, None]) -> Iterator[bytes]:
    """Fetches the first page at once."""
    first = next(pages, None)

    def rest() -> Iterator[bytes]:
        try:
            if first is not None:
                yield first
            yield from pages
        finally:
            pages.close()

    return rest()


def _records_of(topic: str, pages: Iterator[bytes]) -> Iterator[Record]:
    for page in pages:
        yield from _parse_lines(topic, page)


def _parse_lines(topic: str, lines: bytes) -> Iterator[Record]:
    try:
        text = lines.decode()
    except UnicodeDecodeError as problem:
        raise Error("bad_answer", f"the server's page of records is not text: {problem}") from problem
    # Only \n ends a line: text in a record may have what Python takes for other ends.
    for line in text.split("\n"):
        if line:
            yield _parse_record(topic, line)


def _parse_record(topic: str, line: str) -> Record:
    try:
        fields = json.loads(line)
        timestamp, headers = fields["timestamp"], fields["headers"]
        return Record(
            topic,
            fields["partition"],
            fields["offset"],
            None if timestamp < 0 else time_of(timestamp),
            _bytes_of(fields["key"]),
            _bytes_of(fields["value"]),
            tuple((name, _bytes_of(value)) for name, value in headers) if headers else (),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as problem:
        raise Error("bad_answer", f"the server's line is not a record: {problem!r} in {line[:200]!r}") from problem


def _bytes_of(value: Any) -> Optional[bytes]:
    """Text is UTF-8, other bytes come in base64."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return base64.b64decode(value["base64"], validate=True)


def _count(form: str, body: bytes) -> int:
    if form == "jsonl":
        return body.count(b"\n")
    with _import("pyarrow.ipc", "arrow").open_stream(body) as stream:
        return sum(batch.num_rows for batch in stream)


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise _not_text(problem) from problem


def _as_text(arrow: Any, table: Any) -> Any:
    for name in ("key", "value"):
        index = table.schema.get_field_index(name)
        try:
            column = table.column(index).cast(arrow.string())
        except arrow.ArrowInvalid as problem:
            raise _not_text(problem) from problem
        table = table.set_column(index, name, column)
    return table


def _not_text(problem: Exception) -> RequestError:
    return RequestError("bad_request", f"a key or value is not text in UTF-8: read it without text=True ({problem})")


def _import(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ImportError(f"this needs {module}: pip install 'freezeframe[{extra}]'") from problem
