"""The sessions of source partitions on the platform's Kafka.

The transactional id of a partition is made of its raw topic, whose name is never used twice, and
its number. Opening the producer fences every earlier one and ends its transaction. Then the
partition of the positions topic is read up to the end that it has at that moment. Other partitions
of the source write there too, so the end may be behind a transaction that one of them has open: the
read waits for it, because a committed record of this partition may be hidden behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.connections.offsets import high_watermarks
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.store import ProducerRecord
from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed
from fennel_core.sources.positions import SourcePosition, decode
from fennel_core.sources.store import FeedPartition
from fennel_core.vocab.ids import PartitionIndex, TopicName, TopicPartition, partition_indexes

REQUEST_S: Final = 15.0
POLL_S: Final = 0.1
BATCH: Final = 1000


class KafkaSourceLog:
    """See `store.SourceLog`. `threads` run the calls that block."""

    def __init__(self, settings: Settings, threads: ThreadPoolExecutor) -> None:
        self._settings, self._threads = settings, threads

    async def open(self, partition: FeedPartition) -> KafkaSession:
        producer = KafkaTransactionalProducer(
            self._settings, f"{partition.raw_topic}.{partition.number}", self._threads
        )
        await producer.open()
        positions = await asyncio.get_running_loop().run_in_executor(
            self._threads,
            read_positions,
            self._settings,
            partition.positions,
            partition.position_partition,
        )
        return KafkaSession(partition, producer, positions.get(partition.key))


class KafkaSession:
    """See `store.SourceSession`."""

    def __init__(
        self,
        partition: FeedPartition,
        producer: KafkaTransactionalProducer,
        position: SourcePosition | None,
    ) -> None:
        self._partition, self._producer, self._over = partition, producer, False
        self.position = position

    async def commit(
        self, messages: Sequence[ProducerRecord], position: SourcePosition, deadline_s: float
    ) -> None:
        # The producer would open again and fence the session that has the partition now.
        assert not self._over, "a session whose transaction failed is over"
        self._over = True
        record = self._partition.record(position)
        await self._producer.commit((*messages, record), deadline_s)
        self.position, self._over = position, False

    def close(self) -> None:
        self._over = True
        self._producer.close()


def read_positions(
    settings: Settings, topic: TopicName, partition: int
) -> dict[bytes, SourcePosition]:
    """Return the last committed positions of a partition of a positions topic, by key; blocks.

    Nothing that was committed before this call is missing. Raises `SystemUnavailable`.
    """
    at = (topic, PartitionIndex(partition))
    return read_all_positions(settings, [at])[at]


def read_all_positions(
    settings: Settings, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, dict[bytes, SourcePosition]]:
    """Return the positions of several partitions; as `read_positions`."""
    found: dict[TopicPartition, dict[bytes, SourcePosition]] = {at: {} for at in partitions}
    consumer: Any = Consumer(consumer_config(settings))
    try:
        ends = high_watermarks(AdminClient(client_config(settings)), list(partitions), REQUEST_S)
        left = {at: 0 for at, end in ends.items() if end > 0}
        consumer.assign([RdTopicPartition(*at, OFFSET_BEGINNING) for at in left])
        deadline_s = time.monotonic() + REQUEST_S + 2 * settings.transaction_timeout_ms / 1000
        while left:
            if time.monotonic() > deadline_s:
                (topic, partition), reached = next(iter(left.items()))
                raise SystemUnavailable(
                    f"the positions in `{topic}`[{partition}] could not be read: Kafka sends no "
                    f"records from {reached} to {ends[topic, partition]}"
                )
            for message in consumer.consume(BATCH, POLL_S):
                at, error = (TopicName(message.topic()), message.partition()), message.error()
                if error is None:
                    found[at][message.key()] = decode(message.value())
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise SystemUnavailable(f"`{at[0]}`[{at[1]}]: {error.str()}")
                reached = message.offset() + (error is None)
                if at in left and reached >= ends[at]:
                    del left[at]
                elif at in left:
                    left[at] = max(left[at], reached)
    except KafkaException as failed:
        raise SystemUnavailable(f"Kafka: {failed}") from failed
    finally:
        consumer.close()
    return found


def positions_of_feeds(
    settings: Settings, feeds: Collection[Feed]
) -> dict[TopicName, dict[int, SourcePosition]]:
    """Return the positions of feeds by raw topic and partition of their stream; blocks.

    Raises `SystemUnavailable`.
    """
    read = read_all_positions(
        settings,
        [(feed.positions, part) for feed in feeds for part in partition_indexes(feed.partitions)],
    )
    return {
        feed.raw_topic: {
            int(key): position
            for part in partition_indexes(feed.partitions)
            for key, position in read[feed.positions, part].items()
        }
        for feed in feeds
    }
