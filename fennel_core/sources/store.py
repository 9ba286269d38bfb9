"""The interface of the writer to the platform's log, and its in-memory implementation.

`kafka.py` is the real implementation. A *session* belongs to one writer of one source partition.
Opening one fences every earlier session of the partition, waits for the end of what they began, and
only then reads the position: so nothing that was committed is behind the position, and nothing can
be committed by another session until the next one is opened. A session that is fenced, or does not
know what became of its transaction, is over; its writer opens another one and reads the position
again, which says what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.connections.errors import TransactionAborted
from fennel_core.ingest.store import ProducerRecord, require_in_time
from fennel_core.sources.positions import SourcePosition, decode, encode
from fennel_core.vocab.ids import TopicName, WorkspaceId


@dataclass(frozen=True, slots=True)
class FeedPartition:
    """One partition of a feed: of an external stream that feeds datasets of a workspace."""

    workspace: WorkspaceId
    title: str
    """For people: `Kafka topic `orders`[3]`."""
    name: str
    """Of the connector."""
    stream: str
    """Of what is read: the topic of an external Kafka."""
    raw_topic: TopicName
    positions: TopicName
    partitions: int
    """Of the platform's topics."""
    number: int
    """Of the partition in the external stream."""

    @property
    def key(self) -> bytes:
        """The key of its records on the positions topic."""
        return str(self.number).encode()

    @property
    def position_partition(self) -> int:
        """The partition of the positions topic that has its records."""
        return self.number % self.partitions

    def note(self, name: str, value: bytes) -> ProducerRecord:
        """Return a record with what a source remembers under `name`, beside its position."""
        key = self.key + b"/" + name.encode()
        return ProducerRecord(self.positions, self.position_partition, value, (), key)

    def note_name(self, key: bytes) -> str | None:
        """Return the name of the note of this partition with the key; None for another record."""
        own, _, name = key.partition(b"/")
        return name.decode() if own == self.key and name else None

    def record(self, position: SourcePosition) -> ProducerRecord:
        """Return the record of a position."""
        return ProducerRecord(
            self.positions, self.position_partition, encode(position), (), self.key
        )


class SourceSession(Protocol):
    """The exclusive right to write one source partition, until the next session is opened."""

    @property
    def position(self) -> SourcePosition | None:
        """The last committed position; None if nothing was committed yet."""
        ...

    @property
    def notes(self) -> Mapping[str, bytes]:
        """What the source remembered beside its position when the session was opened, by name."""
        ...

    async def commit(
        self, messages: Sequence[ProducerRecord], position: SourcePosition, deadline_s: float
    ) -> None:
        """Write messages and position in one transaction, or none after `deadline_s` of `boot_s`.

        Raises `TransactionAborted`, `TransactionOutcomeUnknown` and `SystemUnavailable`; the
        session is over after each.
        """
        ...

    def close(self) -> None:
        """Release what the session holds; it is over."""
        ...


class SourceLog(Protocol):
    """Opens sessions. Raises `SystemUnavailable`."""

    async def open(self, partition: FeedPartition) -> SourceSession: ...


@dataclass(slots=True)
class MemorySourceLog:
    """In-memory `SourceLog`, shared by all writers; `log` as that of `MemoryTransactionalProducer`.

    `epochs`: sessions that were opened per partition; only the last one may commit.
    """

    log: dict[tuple[TopicName, int], list[ProducerRecord]] = field(default_factory=dict)
    epochs: dict[FeedPartition, int] = field(default_factory=dict)

    async def open(self, partition: FeedPartition) -> MemorySession:
        epoch = self.epochs[partition] = self.epochs.get(partition, 0) + 1
        records = self.log.get((partition.positions, partition.position_partition), ())
        own = [record.value for record in records if record.key == partition.key]
        notes = {
            name: record.value
            for record in records
            if (name := partition.note_name(record.key or b"")) is not None
        }
        return MemorySession(self, partition, epoch, decode(own[-1]) if own else None, notes)


@dataclass(slots=True)
class MemorySession:
    """See `SourceSession`."""

    owner: MemorySourceLog
    partition: FeedPartition
    epoch: int
    position: SourcePosition | None
    notes: Mapping[str, bytes]

    async def commit(
        self, messages: Sequence[ProducerRecord], position: SourcePosition, deadline_s: float
    ) -> None:
        require_in_time(deadline_s)
        if self.owner.epochs[self.partition] != self.epoch:
            raise TransactionAborted("a later session fenced this one")
        for message in (*messages, self.partition.record(position)):
            self.owner.log.setdefault((message.topic, message.partition), []).append(message)
        self.position = position

    def close(self) -> None:
        """Nothing is held."""
