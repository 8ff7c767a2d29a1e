"""Stock Kafka consumers read the topics that `moment_topic` names."""

from __future__ import annotations

import time
from typing import Optional

import kafka
from confluent_kafka import Consumer
from conftest import RealServer, Topics

import freezeframe as ff

PATIENCE_S = 30.0


def read_with_confluent(real: RealServer, topic: str, count: int) -> list[Optional[bytes]]:
    consumer = Consumer({"bootstrap.servers": real.kafka, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[Optional[bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def read_with_kafka_python(real: RealServer, topic: str, count: int) -> list[Optional[bytes]]:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=real.kafka, auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1000)
    )
    values = [next(consumer).value for _ in range(count)]
    consumer.close()
    return values


def test_stock_consumers_read_a_moment_and_a_window(
    real: RealServer, server: ff.Server, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.produce(name, [("a", "1"), ("a", "2")])
    then = server.moment()
    topics.produce(name, [("a", "3")])
    server.pin(name, then, topics=[name])
    names = {
        ff.moment_topic(name, then): [b"1", b"2"],
        server.moment_topic(name, f"pin:{name}"): [b"1", b"2"],
        ff.moment_topic(name, f"pin:{name}"): [b"1", b"2"],
        server.moment_topic(name, then, "now"): [b"3"],
        server.topic(name).at("now").moment_topic: [b"1", b"2", b"3"],
    }
    for topic, expected in names.items():
        assert read_with_confluent(real, topic, len(expected)) == expected, topic
        assert read_with_kafka_python(real, topic, len(expected)) == expected, topic
    server.unpin(name)


def test_a_group_that_was_set_to_a_moment_goes_on_from_there(
    real: RealServer, server: ff.Server, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.produce(name, [("a", "1")])
    then = server.moment()
    topics.produce(name, [("a", "2")])
    assert read_with_confluent(real, name, 2) == [b"1", b"2"]
    server.group(f"g-{name}").seek(then, topics=[name])
    assert read_with_confluent(real, name, 1) == [b"2"]
