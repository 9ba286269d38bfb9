"""Create and delete topics: the `TopicAdmin` protocol and its in-memory implementation.

`kafka.py` is the real implementation. Creating a topic that exists and deleting one that does not
are successes, because every step may run again. Results are per topic: a refusal of one topic fails
its commit and says nothing about the others. `SystemUnavailable` means that the state of every
topic of the request is unknown; the caller repeats the request.

Jobs need no such interface: a job is a row of the registry, inserted by the commit transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, partition_indexes


class TopicRefusal(str):
    """The reason why a topic could not be created or deleted."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create."""

    name: TopicName
    kind: AssetKind
    partitions: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [first, end) of a partition."""

    partition: TopicPartition
    first: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A range that was read, and its committed messages."""

    range: OffsetRange
    messages: tuple[tuple[Offset, bytes], ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(value) for _, value in self.messages)


class TopicAdmin(Protocol):
    """Topic administration. Every method raises `SystemUnavailable`."""

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        """Create the missing topics and return the refused ones."""
        ...

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        """Delete the existing topics and return the refused ones."""
        ...

    async def names(self) -> list[TopicName]:
        """Return the names of all topics."""
        ...

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Return the high watermark of each topic partition.

        Not the last stable offset: that may exclude rows which a client knows to be accepted.
        """
        ...

    async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        """Return how many messages were ever written to topics, given their partition counts.

        Transaction markers count as messages. Topics that do not exist are absent.
        """
        ...

    async def log_bounds(self, topics: Mapping[TopicName, int]) -> Sequence[OffsetRange]:
        """Return what Kafka still has of each partition of topics, given their partition counts.

        Topics that do not exist are absent.
        """
        ...

    async def read(
        self, ranges: Sequence[OffsetRange], *, seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        """Return the ranges that could be read within the limits, each as a whole, in order.

        The first is read whatever its size, unless the time is over before.
        """
        ...


class MemoryTopicAdmin:
    """Topics as a dict of partition counts."""

    def __init__(self) -> None:
        self.partition_counts: dict[TopicName, int] = {}
        self.refusals: dict[TopicName, TopicRefusal] = {}
        """Topics that a test wants `create` to refuse."""
        self.log_ends: dict[TopicPartition, Offset] = {}
        """Ends of the partitions that hold records."""

        self.messages: dict[TopicName, int] = {}
        """Messages that a test wrote."""
        self.first_offsets: dict[TopicPartition, Offset] = {}
        """First offsets of the partitions whose oldest records were deleted."""
        self.values: dict[TopicPartition, dict[Offset, bytes]] = {}
        """Values of messages that a test wrote, by offset."""

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        self.partition_counts |= {
            t.name: t.partitions for t in topics if t.name not in self.refusals
        }
        return {t.name: self.refusals[t.name] for t in topics if t.name in self.refusals}

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        for name in names:
            self.partition_counts.pop(name, None)
        return {}

    async def names(self) -> list[TopicName]:
        return sorted(self.partition_counts)

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        unknown = sorted({topic for topic, _ in partitions} - self.partition_counts.keys())
        if unknown:
            raise SystemUnavailable(f"topic `{unknown[0]}` does not exist")
        return {at: self.log_ends.get(at, Offset(0)) for at in partitions}

    async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        return {t: self.messages.get(t, 0) for t in topics if t in self.partition_counts}

    async def log_bounds(self, topics: Mapping[TopicName, int]) -> Sequence[OffsetRange]:
        return [
            OffsetRange(at, first, max(first, self.log_ends.get(at, Offset(0))))
            for topic, count in topics.items()
            if topic in self.partition_counts
            for at in [(topic, part) for part in partition_indexes(count)]
            for first in [self.first_offsets.get(at, Offset(0))]
        ]

    async def read(
        self, ranges: Sequence[OffsetRange], *, seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        found: list[ReadRange] = []
        size = 0
        for each in ranges if seconds > 0 else ():
            held = self.values.get(each.partition, {})
            messages = ((at, held[at]) for at in sorted(held) if each.first <= at < each.end)
            read = ReadRange(each, tuple(messages))
            size += read.size_bytes
            if found and size > size_bytes:
                break
            found.append(read)
        return found
