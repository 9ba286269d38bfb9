"""What Kafka says of topics, and their tails: records that are committed and not in history yet.

Theory. The end of a partition is its last stable offset: below it every record is committed,
aborted (and never handed out) or a marker, and none of that ever changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.history.backlog import TopicRecord
from fennel_core.history.store import StoreError
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

REQUEST_TIMEOUT_S: Final = 15.0
CONTROL_HEADER: Final = "c"
"""Messages with this header carry no rows (frontiers, markers)."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a partition holds: offsets [first, end), all of them settled."""

    first: Offset
    end: Offset


class TopicReader:
    """Blocking; call it from a worker thread. Every method raises StoreError when the broker cannot
    be asked.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(client_config(settings))

    def bounds(self, topics: Collection[TopicName]) -> dict[TopicPartition, LogBounds]:
        """Of every partition of those of `topics` that exist."""
        try:
            known = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as away:
            raise StoreError(f"Kafka: {away}") from away
        places = [
            RdTopicPartition(topic, part)
            for topic in topics
            if topic in known
            for part in known[topic].partitions
        ]
        first, end = (
            self._offsets(places, OffsetSpec.earliest()),
            self._offsets(places, OffsetSpec.latest()),
        )
        return {place: LogBounds(first[place], end[place]) for place in end if place in first}

    def _offsets(
        self, places: list[RdTopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, Offset]:
        if not places:
            return {}
        futures = self._admin.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        found = {}
        for place, future in futures.items():
            try:
                found[TopicName(place.topic), PartitionIndex(place.partition)] = Offset(
                    future.result().offset
                )
            except KafkaException as failed:
                if (
                    failed.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART
                ):  # deleted meanwhile: absent
                    raise StoreError(f"Kafka: {failed}") from failed
        return found

    def tail(self, place: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        """The data records of [first, end); `end` was a last stable offset, so they are all
        there.
        """
        if first >= end:
            return
        topic, part = place
        consumer = Consumer(consumer_config(self._settings, fetch_wait_ms=10))
        try:
            consumer.assign([RdTopicPartition(topic, part, first)])
            while True:
                message = consumer.poll(REQUEST_TIMEOUT_S)
                if message is None:
                    raise StoreError(f"Kafka: no answer while reading {topic}[{part}]")
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise StoreError(f"Kafka: {topic}[{part}]: {error.str()}")
                if error is None and message.offset() < end and not _is_control(message.headers()):
                    yield TopicRecord(place, Offset(message.offset()), message.value())
                position = message.offset() if error is not None else message.offset() + 1
                if position >= end:
                    return
        except KafkaException as failed:
            raise StoreError(f"Kafka: {failed}") from failed
        finally:
            consumer.close()


def _is_control(headers: list[tuple[str, bytes]] | None) -> bool:
    return headers is not None and any(name == CONTROL_HEADER for name, _ in headers)
