"""kafka-python against a broker.

    with_kafka_python.py --bootstrap HOST:PORT --run ID [--moments]
    with_kafka_python.py --cases FILE --run ID
"""

import logging

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    BrokerResponseError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from main import main
from model import Entry, Seen
from scenario import Client, Consumer, Producer
from steps import PATIENCE_S, Mismatch, wait_until


class _PauseWhenAssigned(ConsumerRebalanceListener):
    def __init__(self, consumer):
        self._consumer = consumer

    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        self._consumer.pause(*assigned)


class PyConsumer(Consumer):
    def __init__(self, config, limit_s):
        self._inner = KafkaConsumer(**config)
        self._limit_ms = int(limit_s * 1000)

    def subscribe(self, topic, paused):
        self._inner.subscribe([topic], listener=_PauseWhenAssigned(self._inner) if paused else None)

    def assign(self, topic, partitions):
        self._inner.assign(_on(topic, partitions))
        self._inner.seek_to_beginning()

    def assignment(self):
        return {p.partition for p in self._inner.assignment()}

    def resume(self):
        self._inner.resume(*self._inner.assignment())

    def poll(self, limit=500):
        # Not less: when a poll's time ends while a member joins, and another one joins just then, kafka-python 3.0.12
        # may never come back from it.
        polled = self._inner.poll(timeout_ms=500, max_records=limit)
        return [Seen(r.partition, r.offset, Entry.of(r.key, r.value, r.timestamp, r.headers))
                for records in polled.values() for r in records]

    def seek(self, topic, offsets):
        for partition, offset in offsets.items():
            self._inner.seek(TopicPartition(topic, partition), offset)

    def commit(self, offsets):
        topic = next(iter(self._inner.assignment())).topic
        self._inner.commit(_at(topic, offsets), timeout_ms=self._limit_ms)

    def committed(self, topic, partitions):
        return {p: self._inner.committed(TopicPartition(topic, p), timeout_ms=self._limit_ms) for p in partitions}

    def start_offsets(self, topic, partitions):
        return {p.partition: offset for p, offset in self._inner.beginning_offsets(_on(topic, partitions)).items()}

    def end_offsets(self, topic, partitions):
        return {p.partition: offset for p, offset in self._inner.end_offsets(_on(topic, partitions)).items()}

    def offsets_for_time(self, topic, partitions, t):
        found = self._inner.offsets_for_times(dict.fromkeys(_on(topic, partitions), t), timeout_ms=self._limit_ms)
        return {p.partition: None if at is None else at.offset for p, at in found.items()}

    def group(self):
        return self._inner.group_metadata()

    def close(self):
        self._inner.close(timeout_ms=self._limit_ms)


class PyProducer(Producer):
    def __init__(self, config):
        self._inner = KafkaProducer(**config)
        if "transactional_id" in config:
            self._inner.init_transactions()

    def begin(self):
        self._inner.begin_transaction()

    def send(self, topic, records):
        answers = [self._inner.send(topic, key=_bytes(entry.key), value=_bytes(entry.value), partition=partition,
                                    timestamp_ms=entry.timestamp) for partition, entry in records]
        self._inner.flush(PATIENCE_S)
        return [answer.get(PATIENCE_S).offset for answer in answers]

    def send_offsets(self, topic, offsets, consumer):
        self._inner.send_offsets_to_transaction(_at(topic, offsets), consumer.group())

    def commit(self):
        self._inner.commit_transaction()

    def abort(self):
        self._inner.abort_transaction()

    def close(self):
        self._inner.close(timeout=1)


class KafkaPython(Client):
    """kafka-python against a broker: the scenario that all our client programs share."""

    name = "kafkapython"
    accepts_at_sign = False

    def __init__(self, bootstrap, credentials):
        self._bootstrap = bootstrap
        self._security = credentials.for_kafka_python()
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=10000, **self._security)

    def create(self, topic, partitions, configs):
        self._admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})

    def delete(self, topic):
        self._admin.delete_topics([topic])

    def topics(self):
        return {topic["name"]: len(topic["partitions"]) for topic in self._admin.describe_topics()}

    def produce(self, topic, entries, codec, limit_s=PATIENCE_S):
        limit_ms = int(limit_s * 1000)
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, allow_auto_create_topics=False,
            compression_type=None if codec == "none" else codec, linger_ms=limit_ms // 2, max_block_ms=limit_ms,
            request_timeout_ms=limit_ms // 2, delivery_timeout_ms=limit_ms, **self._security,
        )
        try:
            answers = [
                producer.send(topic, key=_bytes(entry.key), value=_bytes(entry.value), timestamp_ms=entry.timestamp,
                              headers=[(key, _bytes(value)) for key, value in entry.headers])
                for entry in entries
            ]
            producer.flush(limit_s)
            return [(at.partition, at.offset) for at in (answer.get(limit_s) for answer in answers)]
        finally:
            producer.close(timeout=1)

    def producer(self, transactional_id=None):
        limit_ms = int(PATIENCE_S * 1000)
        config = {} if transactional_id is None else {"transactional_id": transactional_id}
        return PyProducer({
            "bootstrap_servers": self._bootstrap, "acks": "all", "enable_idempotence": True,
            "allow_auto_create_topics": False, "max_block_ms": limit_ms, "request_timeout_ms": limit_ms // 2,
            "delivery_timeout_ms": limit_ms, **self._security, **config,
        })

    def consumer(self, group, limit_s=PATIENCE_S, isolation="read_uncommitted"):
        _log.messages.clear()
        return PyConsumer({
            "bootstrap_servers": self._bootstrap, "group_id": group, "enable_auto_commit": False,
            "auto_offset_reset": "earliest", "heartbeat_interval_ms": 300, "session_timeout_ms": 10000,
            "allow_auto_create_topics": False, "fetch_max_wait_ms": 100, "request_timeout_ms": int(limit_s * 1000),
            "isolation_level": isolation, **self._security,
        }, limit_s)

    def group_offsets(self, group, topic):
        listed = self._admin.list_group_offsets(group)[group]
        return {p.partition: at.offset for p, at in listed.items() if p.topic == topic}

    def is_refusal(self, problem):
        return isinstance(problem, BrokerResponseError) and not isinstance(problem, UnknownTopicOrPartitionError)

    def is_fenced(self, problem):
        return isinstance(problem, ProducerFencedError)

    def error_code(self, problem):
        return problem.errno

    def raise_logged(self, topic):
        """When a group subscribes to a topic that it may not see, kafka-python 3.0.12 polls on: the error ends in the
        loop that refreshes metadata."""
        if _log.has(f"Topic {topic} is not authorized"):
            raise TopicAuthorizationFailedError(topic)

    @staticmethod
    def login_error(bootstrap, credentials):
        """kafka-python 3.0.12 connects again until its time is over, and only its log says why. Sometimes not even that: an
        answer that the broker sends just before it closes the connection may be lost."""
        _log.messages.clear()
        names = {"[SSL: ": "TLS", "SaslAuthenticationFailedError": "SASL"}

        def is_reported():
            try:
                KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=500, **credentials.for_kafka_python())
            except KafkaTimeoutError:
                return any(_log.has(text) for text in names)
            raise Mismatch("expected the login to be refused, saw it succeed")

        wait_until("an error of SASL or TLS", is_reported, 2 * PATIENCE_S)
        return next(name for text, name in names.items() if _log.has(text))


class _Log(logging.Handler):
    """What the client logs, instead of standard error."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def has(self, text):
        return any(text in message for message in self.messages)


_log = _Log()


def _on(topic, partitions):
    return [TopicPartition(topic, partition) for partition in partitions]


def _at(topic, offsets):
    return {TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}


def _bytes(text):
    return None if text is None else text.encode()


if __name__ == "__main__":
    logging.getLogger("kafka").addHandler(_log)
    logging.getLogger("kafka").propagate = False
    main(KafkaPython)
