"""confluent-kafka, which is librdkafka, against a broker.

    with_confluent.py --bootstrap HOST:PORT --run ID [--moments]
    with_confluent.py --cases FILE --run ID
"""

import logging

from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer
from confluent_kafka import (
    OFFSET_BEGINNING,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from main import main
from model import Entry, Seen
from scenario import Client, Consumer, Producer
from steps import PATIENCE_S, Mismatch, wait_until


class RdKafkaConsumer(Consumer):
    def __init__(self, config, limit_s):
        self._inner = RdConsumer(config)
        self._limit_s = limit_s

    def subscribe(self, topic, paused):
        def on_assign(consumer, partitions):
            consumer.assign(partitions)
            if paused:
                consumer.pause(partitions)

        self._inner.subscribe([topic], on_assign=on_assign)

    def assign(self, topic, partitions):
        # A window does not start at 0: let the broker say where it does.
        self._inner.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])

    def assignment(self):
        return {p.partition for p in self._inner.assignment()}

    def resume(self):
        self._inner.resume(self._inner.assignment())

    def poll(self, limit=500):
        seen = []
        for message in self._inner.consume(limit, timeout=0.1):
            if message.error() is not None:
                raise KafkaException(message.error())
            entry = Entry.of(message.key(), message.value(), message.timestamp()[1], message.headers())
            seen.append(Seen(message.partition(), message.offset(), entry))
        return seen

    def seek(self, topic, offsets):
        for partition in _at(topic, offsets):
            self._inner.seek(partition)

    def commit(self, offsets):
        topic = self._inner.assignment()[0].topic
        answers = self._inner.commit(offsets=_at(topic, offsets), asynchronous=False)
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)

    def committed(self, topic, partitions):
        answers = self._inner.committed(_at(topic, dict.fromkeys(partitions, 0)), timeout=self._limit_s)
        return {answer.partition: answer.offset for answer in answers}

    def start_offsets(self, topic, partitions):
        return {p: self._watermarks(topic, p)[0] for p in partitions}

    def end_offsets(self, topic, partitions):
        return {p: self._watermarks(topic, p)[1] for p in partitions}

    def _watermarks(self, topic, partition):
        return self._inner.get_watermark_offsets(TopicPartition(topic, partition), timeout=self._limit_s, cached=False)

    def offsets_for_time(self, topic, partitions, t):
        answers = self._inner.offsets_for_times(_at(topic, dict.fromkeys(partitions, t)), timeout=self._limit_s)
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
        return {answer.partition: None if answer.offset < 0 else answer.offset for answer in answers}

    def group(self):
        return self._inner.consumer_group_metadata()

    def close(self):
        self._inner.close()


class RdKafkaProducer(Producer):
    def __init__(self, config):
        # Being fenced is written to stderr at any log level.
        self._inner = RdProducer(config, logger=logging.getLogger("silent"))
        if "transactional.id" in config:
            self._inner.init_transactions(PATIENCE_S)

    def begin(self):
        self._inner.begin_transaction()

    def send(self, topic, records):
        answers = [None] * len(records)
        for index, (partition, entry) in enumerate(records):
            self._inner.produce(topic, key=entry.key, value=entry.value, partition=partition, timestamp=entry.timestamp,
                                on_delivery=_noting(answers, index))
        self._inner.flush(PATIENCE_S)
        return [offset for _, offset in _answered(answers)]

    def send_offsets(self, topic, offsets, consumer):
        self._inner.send_offsets_to_transaction(_at(topic, offsets), consumer.group(), PATIENCE_S)

    def commit(self):
        self._inner.commit_transaction(PATIENCE_S)

    def abort(self):
        self._inner.abort_transaction(PATIENCE_S)

    def close(self):
        """A producer without a name ends when nobody holds it."""
        self._inner = None


class RdKafka(Client):
    """confluent-kafka (librdkafka) against a broker: the scenario that all our client programs share."""

    name = "confluent"

    def __init__(self, bootstrap, credentials):
        self._config = {
            "bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 10000, **credentials.for_librdkafka(),
        }
        self._admin = AdminClient(self._config)

    def create(self, topic, partitions, configs):
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(PATIENCE_S)

    def delete(self, topic):
        self._admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def topics(self):
        listed = self._admin.list_topics(timeout=PATIENCE_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def produce(self, topic, entries, codec, limit_s=PATIENCE_S):
        limit_ms = int(limit_s * 1000)
        producer = RdProducer({
            **self._config, "acks": "all", "enable.idempotence": True, "compression.type": codec,
            "partitioner": "murmur2_random", "linger.ms": limit_ms // 2, "message.timeout.ms": limit_ms,
        })
        answers = [None] * len(entries)
        for index, entry in enumerate(entries):
            producer.produce(topic, key=entry.key, value=entry.value, timestamp=entry.timestamp,
                             headers=list(entry.headers), on_delivery=_noting(answers, index))
        producer.flush(limit_s + 1)
        return _answered(answers)

    def producer(self, transactional_id=None):
        config = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": int(PATIENCE_S * 1000)}
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        return RdKafkaProducer({**self._config, **config})

    def consumer(self, group, limit_s=PATIENCE_S, isolation="read_uncommitted"):
        return RdKafkaConsumer({
            **self._config, "group.id": group or "none", "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 300, "session.timeout.ms": 10000, "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 100, "isolation.level": isolation,
        }, limit_s)

    def group_offsets(self, group, topic):
        request = [ConsumerGroupTopicPartitions(group)]
        answer = self._admin.list_consumer_group_offsets(request)[group].result(PATIENCE_S)
        return {p.partition: p.offset for p in answer.topic_partitions if p.topic == topic}

    def is_refusal(self, problem):
        """Errors below zero are librdkafka's own: a time limit, a topic that it does not find."""
        return (isinstance(problem, KafkaException) and problem.args[0].code() > 0
                and problem.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART)

    def is_fenced(self, problem):
        return isinstance(problem, KafkaException) and problem.args[0].code() == KafkaError._FENCED

    def error_code(self, problem):
        return problem.args[0].code()

    @staticmethod
    def login_error(bootstrap, credentials):
        """librdkafka tries again for ever, and says each time why. A refusal of its certificate comes after its handshake."""
        seen = []
        producer = RdProducer({"bootstrap.servers": bootstrap, "log_level": 0, **credentials.for_librdkafka(),
                               "error_cb": lambda error: seen.append(_login_error(error))})

        def is_reported():
            producer.poll(0.1)
            return any(seen)

        wait_until("an error of SASL or TLS", is_reported)
        return next(filter(None, seen))


def _login_error(error):
    if error.code() == KafkaError._AUTHENTICATION:
        return "SASL"
    is_alert = error.code() == KafkaError._TRANSPORT and "SSL routines" in error.str()
    return "TLS" if error.code() == KafkaError._SSL or is_alert else None


def _noting(answers, index):
    def note(error, message):
        answers[index] = error or (message.partition(), message.offset())

    return note


def _answered(answers):
    unsent = sum(answer is None for answer in answers)
    if unsent:
        raise Mismatch(f"expected all {len(answers)} records to be answered, saw {unsent} that were not")
    for answer in answers:
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
    return answers


def _at(topic, offsets):
    return [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(RdKafka)
