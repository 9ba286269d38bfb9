"""Read the messages of dead-letter topics in Kafka. Every method raises SystemUnavailable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.dead_letters.counting import LogRange
from fennel_core.dead_letters.counts import DeadLetterMessage
from fennel_core.settings.model import Settings
from fennel_core.vocab.dead_letters import origin_of, settled_letters
from fennel_core.vocab.ids import Millis, Offset, TopicName, TopicPartition, partition_indexes
from fennel_core.vocab.versions import row_count

REQUEST_TIMEOUT_S: Final = 15.0


class KafkaDeadLetters:
    """`DeadLetterLog` in Kafka. It blocks: call it from a worker thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(client_config(settings))

    def bounds(self, topics: Mapping[TopicName, int]) -> dict[TopicPartition, LogRange]:
        partitions = [
            (topic, part) for topic, count in topics.items() for part in partition_indexes(count)
        ]
        try:
            # A topic may be deleted between the query of the bank and this one.
            found = offsets.bounds(self._admin, partitions, REQUEST_TIMEOUT_S, skip_unknown=True)
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        return {source: LogRange(first, end) for source, (first, end) in found.items()}

    def read(self, source: TopicPartition, wanted: LogRange) -> Iterator[DeadLetterMessage]:
        topic, part = source
        consumer = Consumer(consumer_config(self._settings, fetch_wait_ms=10))
        try:
            consumer.assign([RdTopicPartition(topic, part, wanted.first)])
            while True:
                message = consumer.poll(REQUEST_TIMEOUT_S)
                if message is None:
                    raise SystemUnavailable(f"Kafka: no response while reading {topic}[{part}]")
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise SystemUnavailable(f"Kafka: {topic}[{part}]: {error.str()}")
                if error is None and message.offset() < wanted.end:
                    yield _message(message)
                if message.offset() + (error is None) >= wanted.end:
                    return
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        finally:
            consumer.close()


def _message(message: Message) -> DeadLetterMessage:
    value, offset, headers = message.value(), message.offset(), message.headers()
    assert value is not None, "dead letters have rows"
    assert offset is not None, "a message without an error has an offset"
    _, written_ms = message.timestamp()
    known = [(name, bytes(content)) for name, content in headers or ()]
    settled = settled_letters(known, value)
    rows = row_count(value) if settled is None else 0
    return DeadLetterMessage(Offset(offset), rows, origin_of(known), Millis(written_ms), settled)
