"""The sessions of source partitions on the platform's Kafka.

The transactional id of a partition is made of its raw topic, whose name is never used twice, and
its number. Opening the producer fences every earlier one and ends its transaction. Then the
partition of the positions topic is read up to the end that it has at that moment. Other partitions
of the source write there too, so the end may be behind a transaction that one of them has open: the
read waits for it, because a committed record of this partition may be hidden behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fennel_core.connections.committed_records import committed_records, log_ends
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.store import ProducerRecord
from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed
from fennel_core.sources.positions import SourcePosition, decode
from fennel_core.sources.store import FeedPartition
from fennel_core.vocab.ids import PartitionIndex, TopicName, TopicPartition, partition_indexes

NOTE: Final = b"/"
"""What the keys of notes have behind their partition, and those of positions do not."""


class KafkaSourceLog:
    """See `store.SourceLog`. `threads` run the calls that block."""

    def __init__(self, settings: Settings, threads: ThreadPoolExecutor) -> None:
        self._settings, self._threads = settings, threads

    async def open(self, partition: FeedPartition) -> KafkaSession:
        producer = KafkaTransactionalProducer(
            self._settings, f"{partition.raw_topic}.{partition.number}", self._threads
        )
        await producer.open()
        values = await asyncio.get_running_loop().run_in_executor(
            self._threads,
            _read_values,
            self._settings,
            [(partition.positions, PartitionIndex(partition.position_partition))],
        )
        position, notes = None, {}
        for key, value in values[0][1].items():
            name = partition.note_name(key)
            if name is not None:
                notes[name] = value
            elif key == partition.key:
                position = decode(value)
        return KafkaSession(partition, producer, position, notes)


class KafkaSession:
    """See `store.SourceSession`."""

    def __init__(
        self,
        partition: FeedPartition,
        producer: KafkaTransactionalProducer,
        position: SourcePosition | None,
        notes: Mapping[str, bytes],
    ) -> None:
        self._partition, self._producer, self._over = partition, producer, False
        self.position, self.notes = position, notes

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
    return {
        at: {key: decode(value) for key, value in values.items() if NOTE not in key}
        for at, values in _read_values(settings, partitions)
    }


def _read_values(
    settings: Settings, partitions: Collection[TopicPartition]
) -> list[tuple[TopicPartition, dict[bytes, bytes]]]:
    """Return the last committed value of each key of positions topics; positions and notes."""
    found: dict[TopicPartition, dict[bytes, bytes]] = {at: {} for at in partitions}
    for at, record in committed_records(settings, log_ends(settings, partitions)):
        key, value = record.key(), record.value()
        assert isinstance(key, bytes), "a position has the key of its partition"
        assert value is not None, "positions are not deleted"
        found[at][key] = value
    return list(found.items())


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
