"""Records and keys of a real server."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pytest
from conftest import Topics

import freezeframe as ff

NINE_MS = 1_795_251_600_123
NINE = datetime(2026, 11, 21, 9, 0, 0, 123_000, tzinfo=timezone.utc)
COLUMNS = {
    "partition": "int32",
    "offset": "int64",
    "timestamp": "timestamp[ms, tz=UTC]",
    "key": "binary",
    "value": "binary",
    "headers": "list<item: struct<key: string, value: binary>>",
}


def columns(table: Any) -> dict[str, str]:
    """The columns and their types, whatever may be null."""
    return {field.name: str(field.type).replace(" not null", "") for field in table.schema}


@pytest.fixture
def orders(topics: Topics, name: str) -> str:
    """Two partitions with what bytes can be."""
    topics.create(name, 2)
    topics.produce(name, [(b"k", b"v")], partition=0, timestamp=NINE_MS, headers=[("h", b"1"), ("h", None), ("\u00e9", b"\xff")])
    topics.produce(name, [(None, b""), (b"", None), (b"\xff\x00", "é\u2028\x85\n".encode())], partition=0, timestamp=NINE_MS + 1)
    topics.produce(name, [(b"k", b"w"), (b"gone", b"x"), (b"gone", None)], partition=1, timestamp=NINE_MS + 2)
    return name


def test_records_come_back_byte_for_byte(server: ff.Server, orders: str) -> None:
    records = list(server.topic(orders).records())
    assert records[0] == ff.Record(orders, 0, 0, NINE, b"k", b"v", (("h", b"1"), ("h", None), ("\u00e9", b"\xff")))
    assert [(record.partition, record.offset, record.key, record.value) for record in records[1:]] == [
        (0, 1, None, b""),
        (0, 2, b"", None),
        (0, 3, b"\xff\x00", "é\u2028\x85\n".encode()),
        (1, 0, b"k", b"w"),
        (1, 1, b"gone", b"x"),
        (1, 2, b"gone", None),
    ]


def test_a_table_has_the_same_as_the_records(server: ff.Server, orders: str) -> None:
    view = server.topic(orders).at("now")
    table = view.to_arrow()
    assert columns(table) == COLUMNS
    assert table.schema.metadata[b"freezeframe.moment"].decode() == view.moment
    rows = [
        {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in view.records()
    ]
    assert table.to_pylist() == rows
    frame = view.to_pandas()
    assert isinstance(frame, pd.DataFrame) and frame["value"].tolist() == [row["value"] for row in rows]
    assert frame["timestamp"].iloc[0] == pd.Timestamp(NINE)


def test_text_is_for_keys_and_values_in_utf_8(server: ff.Server, orders: str) -> None:
    view = server.topic(orders).partition(1)
    assert view.to_pandas(text=True)["value"].tolist()[:2] == ["w", "x"]
    with pytest.raises(ff.RequestError, match="without text=True"):
        server.topic(orders).to_arrow(text=True)


def test_a_view_shows_its_moment_and_later_records_are_not_in_it(server: ff.Server, topics: Topics, orders: str) -> None:
    fixed, present = server.topic(orders).at("now"), server.topic(orders)
    assert len(list(fixed.records())) == len(list(present.records())) == 7
    topics.produce(orders, [(b"k", b"late")], partition=1)
    assert len(list(fixed.records())) == 7 and len(list(present.records())) == 8
    assert fixed.to_arrow().num_rows == 7
    assert [record.value for record in present.between(fixed.moment, "now").records()] == [b"late"]
    assert [record.value for record in present.at(fixed.moment).partition(1).records()] == [b"w", b"x", None]
    assert fixed.moment_topic == f"{orders}.__at.{fixed.moment}"


def test_user_time_goes_by_what_records_say(server: ff.Server, orders: str) -> None:
    view = server.topic(orders).at(f"u{NINE_MS + 1}")
    assert [record.offset for record in view.partition(0).records()] == [0]


def test_a_limit_is_the_most_that_comes(server: ff.Server, orders: str) -> None:
    topic = server.topic(orders)
    for limit in range(1, 9):
        expected = min(limit, 7)
        assert len(list(topic.records(limit=limit))) == expected
        assert topic.to_arrow(limit=limit).num_rows == expected


def test_an_empty_topic_has_no_records_and_a_table_with_columns(server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name)
    assert list(server.topic(name).records()) == []
    assert columns(server.topic(name).to_arrow()) == COLUMNS
    assert server.topic(name).keys() == {}


def test_keys_have_the_newest_value_as_of_the_moment(server: ff.Server, topics: Topics, orders: str) -> None:
    then = server.moment()
    topics.produce(orders, [(b"k", b"later")], partition=1)
    topic = server.topic(orders)
    assert topic.keys(at=then) == {b"k": b"w", b"\xff\x00": "é\u2028\x85\n".encode()}
    assert topic.keys()[b"k"] == b"later"
    assert topic.at(then).keys() == topic.keys(then)
    with pytest.raises(ff.RequestError, match="without text=True"):
        topic.keys(text=True)


def test_many_keys_come_in_pages(server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name, 2)
    expected = {f"key-{number}": f"{number}-" + "v" * 1500 for number in range(8_000)}
    topics.produce(name, list(expected.items()))
    assert server.topic(name).keys(text=True) == expected


def test_a_big_topic_comes_whole_in_order_and_in_pages(server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name, 2)
    # More than the bytes and the records of a page.
    topics.produce(name, [(str(number), b"v" * 400) for number in range(25_000)])
    view = server.topic(name).at("now")
    table = view.to_arrow()
    assert table.num_rows == 25_000
    places = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist()))
    assert places == sorted(set(places))
    assert {int(key) for key in table["key"].to_pylist()} == set(range(25_000))
    assert [(record.partition, record.offset) for record in view.records()] == places
    first = list(itertools.islice(view.records(), 10))
    assert [(record.partition, record.offset) for record in first] == places[:10]
    assert view.to_arrow(limit=20_000).num_rows == 20_000


def test_threads_share_a_server(server: ff.Server, orders: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(lambda: list(server.topic(orders).records())) for _ in range(32)]
        assert {len(read.result()) for read in reads} == {7}


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (lambda server, name: server.topic("nowhere").records(), "unknown_topic"),
        (lambda server, name: server.topic("nowhere").to_arrow(), "unknown_topic"),
        (lambda server, name: server.topic("nowhere").keys(), "not_found"),
        (lambda server, name: server.topic(name).at("s5").records(), "unknown_topic"),
        (lambda server, name: server.topic(name).at("the day before").records(), "bad_moment"),
        (lambda server, name: server.topic(name).between("now", "1 hour ago").records(), "bad_moment"),
        (lambda server, name: server.topic(name).at("s4102444800000").records(), "far_future"),
    ],
)
def test_a_view_that_cannot_be_says_so_when_it_is_read(server: ff.Server, orders: str, read: Any, code: str) -> None:
    with pytest.raises(ff.Error) as refused:
        read(server, orders)
    assert refused.value.code == code


def test_a_partition_that_never_was_is_refused(server: ff.Server, orders: str) -> None:
    with pytest.raises(ff.Error):
        server.topic(orders).partition(7).records()
