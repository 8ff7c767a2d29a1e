"""Cuts, differences, topics, groups and pins of a real server."""

from __future__ import annotations

import signal
import socket
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from conftest import RealServer, Topics

import freezeframe as ff


def commit(real: RealServer, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": real.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_words_names_and_datetimes_become_moments(server: ff.Server) -> None:
    midnight = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = server.moment("yesterday 14:00")
    assert yesterday.time in (midnight + timedelta(hours=day - 10) for day in (0, 24, -24))
    assert server.moment(midnight) == f"s{int(midnight.timestamp() * 1000)}"
    assert server.moment("s2026-11-21T10:00:00.123+01:00") == "s1795251600123"
    now = server.moment()
    assert now.startswith("sh") and not now.is_window
    assert server.moment(now) == now
    assert server.moment("-10m").time < server.moment("now").time
    window = server.moment("1 hour ago..now")
    assert window.is_window and window.time >= now.time


@pytest.mark.parametrize("text", ["the day before", "1795251600", "s5@s7", "s9..s5", "pin:nobody", "x" * 2000])
def test_what_is_no_moment_is_refused_by_the_server(server: ff.Server, text: str) -> None:
    with pytest.raises(ff.RequestError) as refused:
        server.moment(text)
    assert refused.value.code == "bad_moment"


def test_any_document_can_be_asked(server: ff.Server) -> None:
    assert server.ask({"op": "health"})["version"] == ff.__version__
    with pytest.raises(ff.RequestError) as refused:
        server.ask({"op": "nothing"})
    assert refused.value.code == "bad_request"


def test_a_cut_has_the_ends_of_its_moment_for_ever(server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name, 2)
    topics.produce(name, [("a", "1"), ("b", "2"), ("c", "3")], partition=1)
    then = server.moment()
    cut = server.cut(then, topics=[name])
    assert cut.at == then and cut.is_closed and cut.is_durable and cut.is_complete
    assert cut.partitions == (ff.PartitionCut(name, 0, 0, 0), ff.PartitionCut(name, 1, 0, 3))
    assert cut.ends(name) == {0: 0, 1: 3} and cut.ends("other") == {}
    topics.produce(name, [("a", "4")], partition=1)
    again = server.cut(then, topics=iter([name]))
    assert (again.hash, again.partitions) == (cut.hash, cut.partitions)
    later = server.cut(topics=[name])
    assert later.ends(name) == {0: 0, 1: 4} and later.hash != cut.hash
    uncommitted = server.cut(then, topics=[name], isolation="uncommitted")
    assert uncommitted.hash == cut.hash


def test_a_topic_that_never_was_is_not_found(server: ff.Server) -> None:
    with pytest.raises(ff.NotFoundError) as refused:
        server.cut(topics=["nowhere"])
    assert refused.value.code == "unknown_topic"
    assert isinstance(refused.value, LookupError)


def test_the_far_future_is_refused_at_once(server: ff.Server) -> None:
    with pytest.raises(ff.NotYetError) as refused:
        server.cut(datetime.now(timezone.utc) + timedelta(days=1))
    assert refused.value.code == "far_future" and refused.value.frontier is not None


def test_a_moment_that_is_not_past_yet_is_waited_for_refused_or_answered_before(server: ff.Server) -> None:
    def soon(seconds: float) -> datetime:
        return datetime.now(timezone.utc) + timedelta(seconds=seconds)

    ahead = soon(0.3)
    assert server.cut(ahead, patience=30).frontier.time >= ahead - timedelta(milliseconds=1)
    with pytest.raises(ff.NotYetError) as refused:
        server.cut(soon(30), when="refuse")
    assert refused.value.code == "not_yet"
    assert refused.value.retry_after is not None and 0 < refused.value.retry_after <= 60
    frontier = server.cut(soon(30), when="frontier")
    assert frontier.at.time <= datetime.now(timezone.utc)


def test_removed_records_are_before_history(real: RealServer, server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name)
    topics.produce(name, [("a", "1"), ("a", "2")])
    then = server.moment()
    topics.produce(name, [("a", "3")])
    real.cli("topics", "trim", name, "--before", "3")
    for ask in (
        lambda: server.cut(then, topics=[name]),
        lambda: list(server.topic(name).at(then).records()),
    ):
        with pytest.raises(ff.BeforeHistoryError, match=name) as refused:
            ask()
        assert refused.value.code == "before_history"


def test_a_diff_has_what_differs_page_by_page(server: ff.Server, topics: Topics, name: str) -> None:
    before = server.moment()
    topics.create(name, 3)
    topics.produce(name, [("a", "1"), ("a", "2")], partition=2)
    diff = server.diff(before, topics=[name])
    assert (diff.first, diff.second > before) == (before, True)
    created, appended = diff
    assert (created.kind, created["topic"], created["partitions"]) == ("topic_created", name, 3)
    assert (appended.kind, appended["partition"], appended["start"], appended["end"]) == ("appended", 2, 0, 2)
    assert list(diff) == [created, appended]
    assert [change.kind for change in server.diff(before, diff.second, topics=[name], only=["records"])] == ["appended"]
    # More than a page of 1000.
    many = topics.create(f"{name}-many", 1200)
    for start in range(0, 1200, 400):
        for partition in range(start, start + 400):
            topics._producer.produce(many, b"v", partition=partition)
        assert topics._producer.flush(60) == 0
    changes = list(server.diff(before, topics=[many], only=["records"]))
    assert sorted(change["partition"] for change in changes) == list(range(1200))


def test_an_empty_window_has_no_diff(server: ff.Server) -> None:
    with pytest.raises(ff.RequestError) as refused:
        server.diff("now", "1 hour ago")
    assert refused.value.code == "bad_moment"


def test_topics_are_those_of_the_moment(server: ff.Server, topics: Topics, name: str) -> None:
    before = server.moment()
    topics.create(name, 2, retention_ms="100000")
    then = server.moment()
    topics.delete(name)
    assert name not in [topic.name for topic in server.topics(before)]
    assert name not in [topic.name for topic in server.topics()]
    [topic] = [topic for topic in server.topics(then) if topic.name == name]
    assert (topic.partitions, topic.configs["retention.ms"]) == (2, "100000")
    assert topic.created < then and topic.deleted is not None and then <= topic.deleted


def test_a_group_is_described_and_set_as_of_a_moment(
    real: RealServer, server: ff.Server, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.produce(name, [("a", str(number)) for number in range(5)])
    then = server.moment()
    topics.produce(name, [("a", "5")])
    group = server.group(name)
    with pytest.raises(ff.NotFoundError) as refused:
        group.seek(then)
    assert refused.value.code == "unknown_group"
    commit(real, name, name, 2)
    committed = server.moment()

    tried = group.seek(then, dry_run=True)
    assert tried.committed is None
    assert tried.offsets == (ff.SoughtOffset(name, 0, 2, 5),)
    assert [offset.offset for offset in group.offsets()] == [2]
    done = group.seek(then)
    assert (done.at, done.offsets) == (then, tried.offsets)
    assert done.committed is not None and done.committed >= committed
    [offset] = group.offsets()
    assert (offset.topic, offset.partition, offset.offset, offset.committed) == (name, 0, 5, done.committed)
    assert [offset.offset for offset in group.offsets(committed)] == [2]
    assert group.describe().sought == {name: then}
    assert name in [described.name for described in server.groups()]
    assert name not in [described.name for described in server.groups(then)]

    restored = group.restore(committed)
    assert restored.offsets == (ff.SoughtOffset(name, 0, 5, 2),)
    assert [offset.offset for offset in group.offsets()] == [2]


def test_a_group_with_members_is_in_the_way(real: RealServer, server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name)
    topics.produce(name, [("a", "1")])
    consumer = Consumer({"bootstrap.servers": real.kafka, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    deadline = time.monotonic() + 60
    while consumer.poll(1) is None:
        assert time.monotonic() < deadline
    consumer.commit(asynchronous=False)
    [member] = server.group(name).describe().members
    assert member.reads == {name: [0]} and server.group(name).describe().state == "Stable"
    with pytest.raises(ff.ConflictError) as refused:
        server.group(name).seek("now")
    assert refused.value.code == "group_active"
    consumer.close()


def test_a_pin_names_a_moment_until_it_is_removed(server: ff.Server, topics: Topics, name: str) -> None:
    topics.create(name)
    then = server.moment()
    pin = server.pin(name, then, keep_for=timedelta(hours=1), topics=[name])
    assert (pin.name, pin.at, pin.topics) == (name, then, (name,))
    assert timedelta(minutes=59) < pin.expires - datetime.now(timezone.utc) <= timedelta(hours=1, seconds=5)
    assert server.pins() == [pin]
    assert server.moment(f"pin:{name}") == then
    with pytest.raises(ff.ConflictError) as refused:
        server.pin(name, topics=[name])
    assert refused.value.code == "pin_taken"
    server.unpin(name)
    assert server.pins() == []
    with pytest.raises(ff.NotFoundError) as missing:
        server.unpin(name)
    assert missing.value.code == "unknown_pin"
    with pytest.raises(ff.RequestError) as bad:
        server.pin("a/b")
    assert bad.value.code == "bad_pin"
    with pytest.raises(ff.RequestError):
        server.pin(name, keep_for=timedelta(0))


def test_a_restart_is_seen_by_the_next_request_and_the_past_is_the_same(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    # After a crash the server waits until its clock has passed the bound.
    real = RealServer(tmp_path / "data", "clock.bound-ahead=3s", http=http).start()
    try:
        with ff.connect(real.url) as server:
            Topics(real.kafka).create("orders")
            then = server.moment()
            cut = server.cut(then)
            real.stop(signal.SIGKILL)
            with pytest.raises(ff.UnavailableError):
                server.cut(then)
            real.begin()
            seen = set()
            deadline = time.monotonic() + 60
            while True:
                try:
                    again = server.cut(then)
                    break
                except ff.UnavailableError as refused:
                    seen.add(refused.code)
                    assert time.monotonic() < deadline
                    time.sleep(refused.retry_after or 0.01)
            assert "starting" in seen
            assert again.hash == cut.hash
            real.wait_until_ready()
    finally:
        real.stop()
