"""Topic administration through Kafka's admin client.

The admin client returns futures that its own threads complete, so calls run in a worker thread. A
batch is one request: a controller creates hundreds of topics at once. Retention is measured by
ingest time, never by event time, so topics use `LogAppendTime`. Topics that jobs or history read
have no broker retention, because the broker does not know which readers still need a record. Dead
letters have no reader that needs them, so the broker deletes them by age. Of the positions of a
source only the last ones are needed, so the broker compacts them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as KafkaTopic

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections import offsets
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import (
    FETCH_MAX_BYTES,
    access_command,
    client_config,
    consumer_config,
)
from fennel_core.connections.offsets import high_watermarks
from fennel_core.ledger.topics import OffsetRange, ReadRange, TopicRefusal, TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, partition_indexes

REQUEST_SECONDS: Final = 15.0
RESPONSE_SECONDS: Final = 20.0
"""Longer than the broker's own time limit, so that the broker's response arrives first."""
BATCH_TOPICS: Final = 200
"""Topics per request; bounds how long one request occupies the controller."""
RANGE_FETCH_WAIT_MS: Final = 10
"""How long the broker holds an empty fetch while ranges are read; it delays the end of each."""
UNLIMITED: Final = "-1"
_TRUNCATED: Final = frozenset(
    {AssetKind.TOPIC, AssetKind.RAW, AssetKind.REPLAYLOG, AssetKind.QUERY_LOG}
)
"""Topics whose old records `definition/kafka_retention.py` deletes, when nothing needs them."""
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(1024 * 1024),
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(FETCH_MAX_BYTES),
}
"""Of topics of which only the last record of each key matters, and which a reader reads as a whole
when it starts. Segments are small because the last one is not compacted.
"""
_UNKNOWN_OUTCOME: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.INVALID_REPLICATION_FACTOR,
    }
)
"""Errors after which the same request may succeed soon.

A broker that restarts is missing from the cluster for a while, and then there are fewer brokers
than replicas. If that stays so, the commit fails after its attempts, with the broker's text.
"""


class KafkaTopicAdmin:
    """Implement `ledger.topics.TopicAdmin`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(client_config(self._settings))
        return self._admin

    def _config(self, kind: AssetKind) -> dict[str, str]:
        if kind in (AssetKind.POSITIONS, AssetKind.SINK):
            return _COMPACTED
        return {
            "cleanup.policy": "delete",
            "retention.ms": UNLIMITED
            if kind in _TRUNCATED
            else str(self._settings.dead_letter_retention_ms),
            "retention.bytes": UNLIMITED,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(FETCH_MAX_BYTES),
        }

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        return await asyncio.to_thread(self.create_now, topics)

    def create_now(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        """Do as `create`, for programs without an event loop; blocks."""
        refused: dict[TopicName, TopicRefusal] = {}
        for start in range(0, len(topics), BATCH_TOPICS):
            new_topics = [
                KafkaTopic(
                    t.name,
                    num_partitions=t.partitions,
                    replication_factor=self._settings.kafka_replication,
                    config=self._config(t.kind),
                )
                for t in topics[start : start + BATCH_TOPICS]
            ]
            futures = self._client().create_topics(
                new_topics, operation_timeout=REQUEST_SECONDS, request_timeout=RESPONSE_SECONDS
            )
            refused |= _gather(futures, success_code=KafkaError.TOPIC_ALREADY_EXISTS)
        return refused

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        return await asyncio.to_thread(self.delete_now, names)

    def delete_now(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        """Do as `delete`, for programs without an event loop; blocks."""
        refused: dict[TopicName, TopicRefusal] = {}
        for start in range(0, len(names), BATCH_TOPICS):
            futures = self._client().delete_topics(
                list(names[start : start + BATCH_TOPICS]),
                operation_timeout=REQUEST_SECONDS,
                request_timeout=RESPONSE_SECONDS,
            )
            refused |= _gather(futures, success_code=KafkaError.UNKNOWN_TOPIC_OR_PART)
        return refused

    async def names(self) -> list[TopicName]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[TopicName]:
        try:
            return sorted(self._client().list_topics(timeout=REQUEST_SECONDS).topics)
        except KafkaException as error:
            raise SystemUnavailable(f"Kafka: {error}") from error

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return await asyncio.to_thread(self._ends, sorted(partitions))

    def _ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        try:
            return high_watermarks(self._client(), partitions, REQUEST_SECONDS)
        except KafkaException as error:
            raise SystemUnavailable(f"Kafka: {error}") from error

    async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        return await asyncio.to_thread(self._message_counts, topics)

    def _message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        counts: dict[TopicName, int] = {}
        for (topic, _), (_, end) in self._bounds(topics).items():
            counts[topic] = counts.get(topic, 0) + end
        return counts

    async def log_bounds(self, topics: Mapping[TopicName, int]) -> Sequence[OffsetRange]:
        bounds = await asyncio.to_thread(self._bounds, topics)
        return [OffsetRange(partition, start, end) for partition, (start, end) in bounds.items()]

    def _bounds(
        self, topics: Mapping[TopicName, int]
    ) -> Mapping[TopicPartition, tuple[Offset, Offset]]:
        parts = [
            (topic, part) for topic, count in topics.items() for part in partition_indexes(count)
        ]
        try:
            return offsets.bounds(self._client(), parts, REQUEST_SECONDS, skip_unknown=True)
        except KafkaException as error:
            raise SystemUnavailable(f"Kafka: {error}") from error

    async def read(
        self, ranges: Sequence[OffsetRange], *, seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        return await asyncio.to_thread(self._read, ranges, seconds, size_bytes)

    def _read(
        self, ranges: Sequence[OffsetRange], seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        deadline_s = time.monotonic() + seconds
        found: list[ReadRange] = []
        size = 0
        consumer = Consumer(consumer_config(self._settings, fetch_wait_ms=RANGE_FETCH_WAIT_MS))
        try:
            for each in ranges:
                read = _read_range(consumer, each, deadline_s)
                size += 0 if read is None else read.size_bytes
                if read is None or (found and size > size_bytes):
                    break
                found.append(read)
        except KafkaException as error:
            raise SystemUnavailable(f"Kafka: {error}") from error
        finally:
            consumer.close()
        return found


def _read_range(consumer: Consumer, wanted: OffsetRange, deadline_s: float) -> ReadRange | None:
    """Return the committed messages of a range; None when the time is over."""
    topic, part = wanted.partition
    consumer.assign([RdTopicPartition(topic, part, wanted.first)])
    messages: list[tuple[Offset, bytes]] = []
    while True:
        message = consumer.poll(max(0.0, deadline_s - time.monotonic()))
        if message is None:
            return None
        error, offset = message.error(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise SystemUnavailable(f"Kafka: {topic}[{part}]: {error.str()}")
        assert offset is not None, "a message and the end of a partition have an offset"
        if error is None and offset < wanted.end and (value := message.value()) is not None:
            messages.append((Offset(offset), value))
        if error is not None or offset + 1 >= wanted.end:
            return ReadRange(wanted, tuple(messages))


def _gather(futures: Mapping[str, Any], *, success_code: int) -> dict[TopicName, TopicRefusal]:
    """Wait for every response of a batch and return the refused topics.

    `success_code` is the error code that counts as success. Raises SystemUnavailable if the outcome
    of any topic is unknown; the caller then repeats the whole batch.
    """
    refused: dict[TopicName, TopicRefusal] = {}
    unknown: list[str] = []
    for name, error in _errors(futures):
        if error.code() == success_code:
            continue
        if error.code() in _UNKNOWN_OUTCOME:
            unknown.append(f"{name}: {error.str()}")
        else:
            denied = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            action = f"; run {access_command(name)}" if denied else ""
            refused[TopicName(name)] = TopicRefusal(error.str() + action)
    if unknown:
        raise SystemUnavailable(f"Kafka: {'; '.join(unknown[:3])}")
    return refused


def _errors(futures: Mapping[str, Any]) -> Iterable[tuple[str, KafkaError]]:
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            yield name, error.args[0]
