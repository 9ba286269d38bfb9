"""Read topics for history: their bounds, and their tails (committed records not in history yet).

Theory. The end of a partition is its last stable offset. Every record below it is committed,
aborted (and never delivered) or a marker, and none of that ever changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable, TopicAccessDenied
from fennel_core.connections.kafka import (
    CONTROL_HEADER,
    access_command,
    client_config,
    consumer_config,
)
from fennel_core.history.file_slices import TopicRecord
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

log = logger(__name__)
REQUEST_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets [first, end) of a partition, all of them settled."""

    first: Offset
    end: Offset


class TopicReader:
    """Reads bounds and records. It blocks: call it from a worker thread.

    Every method raises SystemUnavailable if the broker cannot be reached.

    A topic that the process may not describe looks to the library like one that does not exist, so
    both methods for bounds ask about those that are missing. A read would lack their rows and must
    fail; the history writer goes on with the others.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(client_config(settings))

    def bounds(self, topics: Collection[TopicName]) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of every partition of those of `topics` that exist.

        Raises TopicAccessDenied.
        """
        found, denied = self._bounds(topics)
        if denied is not None:
            raise TopicAccessDenied(self._refusal(denied))
        return found

    def permitted_bounds(self, topics: Collection[TopicName]) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of those of `topics` that exist and that this process may read.

        The first one that it may not read is reported in the log.
        """
        found, denied = self._bounds(topics)
        if denied is not None:
            log.error("a topic cannot be copied to history", reason=self._refusal(denied))
        return found

    def high_watermark(self, partition: TopicPartition) -> Offset:
        """Return the end of a partition with the records of open transactions."""
        try:
            return offsets.high_watermarks(self._admin, [partition], REQUEST_TIMEOUT_S)[partition]
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed

    def _refusal(self, topic: TopicName) -> str:
        return (
            f"the Kafka user `{self._settings.kafka_user}` has no right to describe the topic "
            f"`{topic}`: run {access_command(topic)}"
        )

    def _bounds(
        self, topics: Collection[TopicName]
    ) -> tuple[dict[TopicPartition, LogBounds], TopicName | None]:
        """Return the bounds, and the first topic that this process may not describe."""
        try:
            known = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            partitions = [
                (topic, PartitionIndex(part))
                for topic in topics
                if topic in known
                for part in known[topic].partitions
            ]
            # A topic may be deleted between the two requests.
            found = offsets.bounds(self._admin, partitions, REQUEST_TIMEOUT_S, skip_unknown=True)
            missing = [topic for topic in topics if topic not in known]
            denied = offsets.denied_topic(self._admin, missing, REQUEST_TIMEOUT_S)
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        bounds = {partition: LogBounds(first, end) for partition, (first, end) in found.items()}
        return bounds, denied

    def tail(self, partition: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        """Yield the data records of [first, end); `end` must have been a last stable offset."""
        if first >= end:
            return
        topic, part = partition
        consumer = Consumer(consumer_config(self._settings, fetch_wait_ms=10))
        try:
            consumer.assign([RdTopicPartition(topic, part, first)])
            while True:
                message = consumer.poll(REQUEST_TIMEOUT_S)
                if message is None:
                    raise SystemUnavailable(f"Kafka: no response while reading {topic}[{part}]")
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise SystemUnavailable(f"Kafka: {topic}[{part}]: {error.str()}")
                if error is None and message.offset() < end and not _is_control(message.headers()):
                    yield TopicRecord(partition, Offset(message.offset()), message.value())
                position = message.offset() if error is not None else message.offset() + 1
                if position >= end:
                    return
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        finally:
            consumer.close()


def _is_control(headers: list[tuple[str, bytes]] | None) -> bool:
    return headers is not None and any(name == CONTROL_HEADER for name, _ in headers)
