"""Read from Kafka: ends of topics for the barrier, the tail of a topic for inspect."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.connections.offsets import DENIED, STALE_EPOCH, denied_topic
from fennel_core.query.errors import BrokerUnavailable, KafkaAccessDenied, ViewOutdated
from fennel_core.settings.model import Settings
from fennel_core.vocab import versions
from fennel_core.vocab.ids import TopicName, TopicPartition

REQUEST_S = 10.0
FIRST_STEP = 16
"""Messages per partition that inspect reads first, and four times as many in each further attempt
while rows are missing.
"""
POLL_S = 0.2
FETCH_WAIT_MS = 5
"""A person waits for one response, so an empty fetch is not held."""
RETRY_PAUSE_S = 0.02
LIBRARY_LOG = logging.getLogger("librdkafka")
"""librdkafka logs through the platform's logging; by default it writes to standard error."""
LATEST = OffsetSpec.latest()
DELETED = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
ELECTING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of topics that were just created or whose leader is changing."""


class KafkaEnds:
    """Implements `barrier.TopicEnds` with one client, which caches metadata."""

    def __init__(self, settings: Settings) -> None:
        self._admin = AdminClient(client_config(settings), logger=LIBRARY_LOG)
        self._settings = settings

    async def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermark of each partition, in one request per broker.

        Raises `BrokerUnavailable`, `ViewOutdated` when a topic was deleted, and `KafkaAccessDenied`
        when this server may not describe one.
        """
        if not partitions:
            return {}
        asked = {RdTopicPartition(topic, part): LATEST for topic, part in partitions}
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        while True:
            try:
                answers = self._admin.list_offsets(asked, request_timeout=REQUEST_S)
                found = await asyncio.gather(
                    *(asyncio.wrap_future(answer) for answer in answers.values())
                )
            except KafkaException as failed:
                code = failed.args[0].code()
                if code in DELETED or code == DENIED:
                    topics = {topic for topic, _ in partitions}
                    await _check_access(self._admin, self._settings, topics)
                if code in DELETED:
                    raise ViewOutdated(
                        f"a topic of this branch version was deleted: {failed}"
                    ) from failed
                if code in STALE_EPOCH:
                    await asyncio.to_thread(self._admin.list_topics, timeout=REQUEST_S)
                if (
                    code not in ELECTING | STALE_EPOCH
                    or asyncio.get_running_loop().time() > deadline
                ):
                    raise BrokerUnavailable(
                        f"Kafka does not return the ends of topics: {failed}"
                    ) from failed
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return {
                    (TopicName(tp.topic), tp.partition): int(end.offset)
                    for tp, end in zip(answers, found, strict=True)
                }


async def _check_access(
    admin: AdminClient, settings: Settings, topics: Collection[TopicName]
) -> None:
    """Raise `KafkaAccessDenied` for the first topic that this server may not describe."""
    denied = await asyncio.to_thread(denied_topic, admin, topics, REQUEST_S)
    if denied is not None:
        raise KafkaAccessDenied(settings.kafka_user, denied)


class KafkaTails:
    """Reads the last rows of topics, one read at a time in a worker thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._one_at_a_time = threading.Lock()
        self._consumer: Consumer | None = None

    async def tail(self, topic: TopicName, partitions: int, rows: int) -> pl.DataFrame | None:
        """Return at least the last `rows` committed versions of `topic`, unordered.

        Returns all if there are fewer, and None if the topic is empty. Raises `BrokerUnavailable`,
        and `KafkaAccessDenied` when this server may not read the topic.
        """
        try:
            return await asyncio.to_thread(self._tail, topic, partitions, rows)
        except KafkaException as failed:
            if failed.args[0].code() == DENIED:
                raise KafkaAccessDenied(self._settings.kafka_user, topic) from failed
            if failed.args[0].code() in DELETED:
                admin = AdminClient(client_config(self._settings), logger=LIBRARY_LOG)
                await _check_access(admin, self._settings, [topic])
            raise BrokerUnavailable(
                f"the rows of `{topic}` cannot be read from Kafka: {failed}"
            ) from failed

    def close(self) -> None:
        with self._one_at_a_time:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _tail(self, topic: TopicName, partitions: int, rows: int) -> pl.DataFrame | None:
        with self._one_at_a_time:
            if self._consumer is None:
                self._consumer = Consumer(
                    consumer_config(self._settings, fetch_wait_ms=FETCH_WAIT_MS), logger=LIBRARY_LOG
                )
            ends = [
                self._consumer.get_watermark_offsets(
                    RdTopicPartition(topic, part), timeout=REQUEST_S
                )
                for part in range(partitions)
            ]
            step = FIRST_STEP
            while True:
                starts = [max(low, high - step) for low, high in ends]
                frames = self._read(topic, starts, [high for _, high in ends])
                complete = all(start == low for start, (low, _) in zip(starts, ends, strict=True))
                if complete or sum(frame.height for frame in frames) >= rows:
                    return pl.concat(frames) if frames else None
                step *= 4

    def _read(
        self, topic: TopicName, starts: Sequence[int], stops: Sequence[int]
    ) -> list[pl.DataFrame]:
        assert self._consumer is not None, "made by the caller"
        open_parts = {
            part
            for part, (start, stop) in enumerate(zip(starts, stops, strict=True))
            if start < stop
        }
        frames: list[pl.DataFrame] = []
        if not open_parts:
            return frames
        self._consumer.assign(
            [RdTopicPartition(topic, part, starts[part]) for part in sorted(open_parts)]
        )
        try:
            stop_at = time.monotonic() + REQUEST_S
            while open_parts:
                if time.monotonic() > stop_at:
                    raise KafkaException(
                        KafkaError(
                            KafkaError._TIMED_OUT,
                            f"{topic} was not read to its end in {REQUEST_S:g} s",
                        )
                    )
                # One message at a time: `consume` waits for its whole time-out.
                message = self._consumer.poll(POLL_S)
                if message is None:
                    continue
                part, error = message.partition(), message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    open_parts.discard(part)
                    continue
                if message.offset() + 1 >= stops[part]:
                    open_parts.discard(part)
                if message.value() is not None and versions.FORMAT_HEADER in (
                    message.headers() or ()
                ):
                    frames.append(versions.decode(message.value()))
        finally:
            self._consumer.unassign()
        return frames
