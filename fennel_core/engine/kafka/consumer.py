"""The consumer thread: one Kafka consumer reads for every runner of a slot.

Theory. A single consumer reads all partitions that a slot needs, so an idle slot costs one
long-polled fetch, not one per job. Two threads take part, and no object belongs to both:

- The *consumer thread* runs `ConsumerThread.turn` in a loop. It owns the client, a cursor per
  partition (`cursor`) and what every reader has been given.
- The *event loop* owns the subscriptions (`subscription`) with the records that wait for runners.

They exchange messages. The loop queues commands, which the next turn runs before it polls:

    add(subscription, positions)     read for it, from these offsets
    took(subscription, source, n)    it has taken n bytes from its buffer
    drop(subscription)               stop reading for it

The thread posts deliveries, which the loop runs in order: records with the offset up to which there
are no others, and the end of the log. Both directions are bounded: a reader with more than
`buffer_bytes` on its way or waiting is full, and a partition whose readers are all full is paused
at the broker. A delivery of an earlier assignment cannot reach a later reader: messages are handed
out in the same turn that polled them, by the cursors as they are then, and a subscription that was
closed ignores what was still on its way.

Example. A runner subscribes at offset 10 of a partition that a closed one had read ahead to 500.
The commands `drop` and `add` run in one turn; the cursor is at 500 and the new reader wants 10, so
it is not in step and gets nothing until the partition has been assigned at 10.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, assert_never

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RdTopicPartition

from fennel_core.engine.broker import Record
from fennel_core.engine.kafka.client import ClientMessage, ConsumerClient, to_record
from fennel_core.engine.kafka.cursor import (
    Cursor,
    MoveTo,
    Pause,
    Resume,
    Stay,
    is_in_step,
    next_move,
)
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

log = structlog.get_logger(__name__)

BATCH_MESSAGES: Final = 1_000
RECORD_BYTES: Final = 200
"""Memory of a record besides its value."""


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Bounds of what a consumer holds; each can be exceeded by one batch of messages."""

    buffer_bytes: int = 16 * 1024 * 1024
    """What one reader may hold of one partition."""
    slot_buffer_bytes: int = 256 * 1024 * 1024
    """Above this sum over all readers, each may hold `crowded_buffer_bytes` only."""
    crowded_buffer_bytes: int = 1024 * 1024
    turn_bytes: int = 8 * 1024 * 1024
    """What readers at one offset get before others have their turn. Each move of the cursor
    discards what the client has fetched ahead, so turns must not be short.
    """


@dataclass(frozen=True, slots=True)
class Delivery:
    """News of one partition for one subscription."""

    source: TopicPartition
    records: tuple[Record, ...]
    next: Offset
    """Nothing undelivered lies below."""
    end: Offset | None
    """The last known end of the log."""


class DeliveryTarget(Protocol):
    """The receiver of deliveries, on the event loop."""

    def deliver(self, delivery: Delivery) -> None: ...

    def fail(self, error: Exception) -> None: ...


@dataclass(slots=True)
class _Reader:
    """The share of one partition that one subscription reads."""

    target: DeliveryTarget
    wanted: Offset
    held_bytes: int = 0
    """Delivered and not yet taken."""
    full: bool = False


class _Partition:
    """A partition that the slot reads."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self.readers: list[_Reader] = []
        self.end: Offset | None = None

    def accept(self, records: Sequence[Record]) -> list[tuple[_Reader, tuple[Record, ...]]]:
        """Advance the cursor over `records` and return what each reader accepts of them."""
        cursor = self.cursor
        assert cursor is not None, "messages come of assigned partitions only"
        fresh = [record for record in records if record.offset >= cursor.position]
        if not fresh:
            return []
        accepted = []
        for reader in self.readers:
            if reader.full or not is_in_step(cursor.position, reader.wanted):
                continue
            own = tuple(record for record in fresh if record.offset >= reader.wanted)
            if own:
                reader.wanted = Offset(own[-1].offset + 1)
                reader.held_bytes += sum(map(record_bytes, own))
                accepted.append((reader, own))
        self.cursor = replace(
            cursor,
            position=Offset(fresh[-1].offset + 1),
            at_end=False,
            turn_bytes=cursor.turn_bytes + sum(map(record_bytes, fresh)),
        )
        return accepted

    def reach_end(self, end: Offset) -> list[_Reader]:
        """Advance the cursor to the end of the log; return the readers that have reached it."""
        cursor = self.cursor
        assert cursor is not None, "ends come of assigned partitions only"
        if end < cursor.position:
            return []
        self.end = end
        at_end = [
            reader
            for reader in self.readers
            if is_in_step(cursor.position, reader.wanted) and reader.wanted <= end
        ]
        for reader in at_end:
            reader.wanted = end
        self.cursor = replace(cursor, position=end, at_end=True, turn_bytes=0)
        return at_end


class ConsumerThread:
    """The consumer's side of the exchange; every method but `command` runs on its thread."""

    def __init__(
        self,
        client: ConsumerClient,
        post: Callable[[Callable[[], None]], object],
        limits: ConsumerLimits,
    ) -> None:
        """`post`: run a callable on the event loop, after all that were posted before."""
        self._client, self._post, self._limits = client, post, limits
        self._commands: deque[Callable[[], None]] = deque()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Partitions, in order, whose readers or cursors have changed since the last decision."""
        self._held_bytes = 0

    def command(self, command: Callable[[], None]) -> None:
        """Run `command` (a bound method of this object) at the next turn; from any thread."""
        self._commands.append(command)

    # --- commands ---------------------------------------------------------------------------------

    def add(self, target: DeliveryTarget, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read for `target`, from these offsets."""
        for source, offset in positions.items():
            partition = self._partitions.setdefault(source, _Partition())
            partition.readers.append(_Reader(target, offset))
            self._changed[source] = None
            cursor = partition.cursor
            if cursor is not None and cursor.at_end and cursor.position == offset:
                # The client reports an end once, and it has done so for earlier readers.
                at_end = Delivery(source, (), offset, partition.end)
                self._post(partial(target.deliver, at_end))

    def drop(self, target: DeliveryTarget) -> None:
        """Stop reading for `target`."""
        for source, partition in self._partitions.items():
            left = [reader for reader in partition.readers if reader.target is not target]
            if len(left) < len(partition.readers):
                self._held_bytes -= sum(
                    r.held_bytes for r in partition.readers if r.target is target
                )
                partition.readers = left
                self._changed[source] = None

    def took(self, target: DeliveryTarget, source: TopicPartition, taken_bytes: int) -> None:
        """Count what `target` has taken from its buffer."""
        for reader in self._partitions[source].readers if source in self._partitions else ():
            if reader.target is target:
                reader.held_bytes -= taken_bytes
                self._held_bytes -= taken_bytes
                self._changed[source] = None

    # --- a turn -----------------------------------------------------------------------------------

    def turn(self, timeout_s: float) -> bool:
        """Run the commands, move the cursors, poll once and hand out what was delivered.

        Returns False if nothing was delivered. Raises KafkaException.
        """
        while self._commands:
            self._commands.popleft()()
        self._move_cursors()
        first = self._client.poll(timeout_s)
        if first is None:
            return False
        # Nothing may come between the poll and the hand-out: the cursors of now are those that
        # these messages were fetched for.
        self._hand_out([first, *self._client.consume(BATCH_MESSAGES, 0)])
        return True

    def fail(self, error: Exception) -> None:
        """Fail every subscription: their runners start again."""
        targets = {
            id(reader.target): reader.target
            for partition in self._partitions.values()
            for reader in partition.readers
        }
        for target in targets.values():
            self._post(partial(target.fail, error))

    def _move_cursors(self) -> None:
        while self._changed:
            source, _ = self._changed.popitem()
            partition = self._partitions[source]
            if partition.readers:
                self._move(source, partition)
                continue
            if partition.cursor is not None:
                self._unassign(source, partition)
            del self._partitions[source]

    def _move(self, source: TopicPartition, partition: _Partition) -> None:
        crowded = self._held_bytes > self._limits.slot_buffer_bytes
        limit = self._limits.crowded_buffer_bytes if crowded else self._limits.buffer_bytes
        for reader in partition.readers:
            reader.full = reader.held_bytes > (limit // 2 if reader.full else limit)
        cursor = partition.cursor
        wanted = [reader.wanted for reader in partition.readers if not reader.full]
        match next_move(cursor, wanted, self._limits.turn_bytes):
            case Stay():
                pass
            case Pause():
                assert cursor is not None
                self._client.pause([RdTopicPartition(*source)])
                partition.cursor = replace(cursor, paused=True)
            case Resume():
                assert cursor is not None
                self._client.resume([RdTopicPartition(*source)])
                partition.cursor = replace(cursor, paused=False)
            case MoveTo(offset):
                if cursor is not None:
                    self._unassign(source, partition)
                self._client.incremental_assign([RdTopicPartition(*source, offset=offset)])
                partition.cursor = Cursor(offset)
            case never:
                assert_never(never)

    def _unassign(self, source: TopicPartition, partition: _Partition) -> None:
        if partition.cursor is not None and partition.cursor.paused:
            self._client.resume([RdTopicPartition(*source)])
        partition.cursor = None
        self._client.incremental_unassign([RdTopicPartition(*source)])

    def _hand_out(self, messages: Sequence[ClientMessage]) -> None:
        """Hand out the messages of one poll, partition by partition."""
        batches: dict[TopicPartition, tuple[list[Record], list[Offset]]] = {}
        for message in messages:
            error = message.error()
            source = _source(message)
            partition = self._partitions.get(source)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._fail_partition(partition, KafkaException(error))
            elif partition is not None and partition.cursor is not None:
                records, ends = batches.setdefault(source, ([], []))
                if error is None:
                    records.append(to_record(message))
                else:
                    ends.append(Offset(message.offset() or 0))
        deliveries: list[tuple[DeliveryTarget, Delivery]] = []
        for source, (records, ends) in batches.items():
            deliveries += self._deliveries(source, records, ends)
        if deliveries:
            self._post(partial(_deliver, deliveries))

    def _deliveries(
        self, source: TopicPartition, records: Sequence[Record], ends: Sequence[Offset]
    ) -> list[tuple[DeliveryTarget, Delivery]]:
        partition = self._partitions[source]
        self._changed[source] = None
        given = {id(reader): own for reader, own in partition.accept(records)}
        self._held_bytes += sum(record_bytes(record) for own in given.values() for record in own)
        if ends:
            reached = {id(reader) for reader in partition.reach_end(ends[-1])}
        else:
            reached = set()
            partition.end = self._known_end(source, partition)
        return [
            (
                reader.target,
                Delivery(source, given.get(id(reader), ()), reader.wanted, partition.end),
            )
            for reader in partition.readers
            if id(reader) in given or id(reader) in reached
        ]

    def _known_end(self, source: TopicPartition, partition: _Partition) -> Offset | None:
        """Return the end of the log as of the last fetch; it may lie in an open transaction."""
        known = self._client.get_watermark_offsets(RdTopicPartition(*source), cached=True)
        cursor = partition.cursor
        assert cursor is not None, "only assigned partitions deliver"
        return Offset(max(known[1] if known else 0, cursor.position, partition.end or 0))

    def _fail_partition(self, partition: _Partition | None, error: Exception) -> None:
        if partition is None:
            log.warning("the consumer reported an error", error=str(error))
            return
        for reader in partition.readers:
            self._post(partial(reader.target.fail, error))


def record_bytes(record: Record) -> int:
    """Return how much a waiting record counts against the limits."""
    return len(record.value) + RECORD_BYTES


def _source(message: ClientMessage) -> TopicPartition:
    return TopicName(message.topic() or ""), PartitionIndex(message.partition() or 0)


def _deliver(deliveries: Sequence[tuple[DeliveryTarget, Delivery]]) -> None:
    for target, delivery in deliveries:
        target.deliver(delivery)
