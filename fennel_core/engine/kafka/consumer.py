"""One consumer per slot reads for every runner.

Theory. A single consumer reads all partitions that a slot needs, so an idle slot costs one
long-polled fetch, not one per job. Its thread hands the records to every runner that subscribed. A
runner that cannot keep up is skipped, never waited for: its buffer is full, records are dropped,
and when it has space again the consumer seeks back to the runner's position; other runners of the
partition skip by offset what they already have. A slow job therefore costs re-reading and blocks no
other job.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import consumer_config
from fennel_core.engine.broker import FetchedRecords, Record
from fennel_core.engine.kafka.reader import to_record
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition

POLL_S: Final = 0.05
BATCH_MESSAGES: Final = 1_000
BUFFER_BYTES: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class _PartitionBuffer:
    """Records of one partition that wait for one runner."""

    next_wanted: Offset
    next_taken: Offset
    records: deque[Record] = field(default_factory=deque)
    bytes: int = 0
    waits_for_seek: bool = False
    """Records were dropped: accept nothing until the consumer has sought back, or the gap would be
    taken for a transaction marker.
    """
    full: bool = False
    empty_below: Offset | None = None
    """Nothing unread lies below this offset (the end of the partition was reached)."""
    end: Offset | None = None


class KafkaSubscription:
    """See `engine.broker.Subscription`.

    It lives on the event loop; the consumer's thread only posts to it.
    """

    def __init__(
        self, consumer: SharedConsumer, positions: Mapping[TopicPartition, Offset]
    ) -> None:
        self._consumer = consumer
        self._buffers = {
            source: _PartitionBuffer(offset, offset) for source, offset in positions.items()
        }
        self._round_robin = deque(self._buffers)
        self._wake = asyncio.Event()
        self._error: Exception | None = None

    @property
    def sources(self) -> list[TopicPartition]:
        return list(self._buffers)

    def is_full(self, source: TopicPartition) -> bool:
        return self._buffers[source].full

    def next_wanted(self, source: TopicPartition) -> Offset:
        return self._buffers[source].next_wanted

    def offer(self, source: TopicPartition, records: Sequence[Record], end: Offset | None) -> None:
        """Accept the new records of `source` that fit.

        `end`: the consumer's position if it has reached the end of the partition.
        """
        buffer = self._buffers[source]
        for record in records:
            if record.offset < buffer.next_wanted or buffer.waits_for_seek:
                continue
            if buffer.bytes > BUFFER_BYTES:
                buffer.full = buffer.waits_for_seek = True
                break
            buffer.records.append(record)
            buffer.bytes += len(record.value)
            buffer.next_wanted = Offset(record.offset + 1)
        if end is not None and not buffer.waits_for_seek and end >= buffer.next_wanted:
            buffer.next_wanted = buffer.empty_below = end
        buffer.end = end if end is not None else buffer.end
        self._wake.set()

    def pause(self, source: TopicPartition) -> None:
        """Accept nothing of `source` until `resume`."""
        self._buffers[source].waits_for_seek = True

    def resume(self, source: TopicPartition) -> None:
        """Accept records again: the consumer is at or below `next_wanted`, so there is no gap."""
        self._buffers[source].waits_for_seek = False

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake.set()

    async def next(self, max_bytes: int) -> FetchedRecords:
        while True:
            if self._error is not None:
                raise SystemUnavailable(str(self._error)) from self._error
            for _ in range(len(self._round_robin)):
                source = self._round_robin[0]
                self._round_robin.rotate(-1)
                fetched = self._take(source, max_bytes)
                if fetched is not None:
                    return fetched
            self._wake.clear()
            await self._wake.wait()

    def _take(self, source: TopicPartition, max_bytes: int) -> FetchedRecords | None:
        buffer = self._buffers[source]
        taken: list[Record] = []
        size = 0
        while buffer.records and (not taken or size + len(buffer.records[0].value) <= max_bytes):
            record = buffer.records.popleft()
            size += len(record.value)
            taken.append(record)
        buffer.bytes -= size
        if buffer.full and buffer.bytes < BUFFER_BYTES // 2:
            buffer.full = False
            self._consumer.seek_back(source)
        nothing_below = buffer.next_taken if not taken else Offset(taken[-1].offset + 1)
        if (
            not buffer.records
            and buffer.empty_below is not None
            and buffer.empty_below > nothing_below
        ):
            nothing_below = buffer.empty_below
        if not taken and nothing_below == buffer.next_taken:
            return None
        buffer.next_taken = nothing_below
        return FetchedRecords(source, tuple(taken), nothing_below)

    def ends(self) -> Mapping[TopicPartition, Offset] | None:
        known = {
            source: max(buffer.end, buffer.next_wanted)
            for source, buffer in self._buffers.items()
            if buffer.end is not None
        }
        return known if len(known) == len(self._buffers) else None

    async def close(self) -> None:
        self._consumer.drop(self)


class SharedConsumer:
    """The slot's one Kafka consumer and the thread that polls it."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._consumer = Consumer(consumer_config(settings))
        self._loop = loop
        self._commands: deque[Callable[[], None]] = deque()
        self._readers: dict[TopicPartition, list[KafkaSubscription]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()

    def add(self, subscription: KafkaSubscription) -> None:
        """Read for `subscription`, from its positions."""
        fresh = []
        for source in subscription.sources:
            others = self._readers.setdefault(source, [])
            others.append(subscription)
            if len(others) == 1:
                fresh.append((source, subscription.next_wanted(source)))
            else:
                subscription.pause(source)
                self.seek_back(source)
        if fresh:
            self._commands.append(
                partial(
                    self._consumer.incremental_assign,
                    [RdTopicPartition(*s, offset=o) for s, o in fresh],
                )
            )

    def drop(self, subscription: KafkaSubscription) -> None:
        """Stop reading for `subscription`."""
        unread = []
        for source in subscription.sources:
            readers = self._readers.get(source, [])
            if subscription in readers:
                readers.remove(subscription)
            if not readers and self._readers.pop(source, None) is not None:
                unread.append(RdTopicPartition(*source))
        if unread:
            self._commands.append(partial(self._consumer.incremental_unassign, unread))

    def seek_back(self, source: TopicPartition) -> None:
        """Seek to the lowest offset that a reader of `source` needs, then resume its readers."""
        readers = list(self._readers[source])
        offset = min(reader.next_wanted(source) for reader in readers)

        def resume() -> None:
            for reader in readers:
                if not reader.is_full(source):
                    reader.resume(source)

        def seek() -> None:
            self._consumer.incremental_unassign([RdTopicPartition(*source)])
            self._consumer.incremental_assign([RdTopicPartition(*source, offset=offset)])
            # Posted after the seek and before anything read after it: the loop runs these in order.
            self._loop.call_soon_threadsafe(resume)

        self._commands.append(seek)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                while self._commands:
                    self._commands.popleft()()
                first = self._consumer.poll(POLL_S)
                if first is not None:
                    messages = [first, *self._consumer.consume(BATCH_MESSAGES, 0)]
                    self._loop.call_soon_threadsafe(self._deliver, messages)
            except KafkaException as lost:
                self._loop.call_soon_threadsafe(self._fail, lost)
            except RuntimeError:
                break  # the event loop is closed: the slot has ended
        self._consumer.close()

    def _deliver(self, messages: Sequence[Message]) -> None:
        batches: dict[TopicPartition, tuple[list[Record], list[Offset]]] = {}
        for message in messages:
            error = message.error()
            source = (message.topic(), message.partition())
            records, ends = batches.setdefault(source, ([], []))
            if error is None:
                records.append(to_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.append(Offset(message.offset()))
            else:
                for reader in self._readers.get(source, []):
                    reader.fail(KafkaException(error))
        for source, (records, ends) in batches.items():
            for reader in self._readers.get(source, []):
                reader.offer(source, records, ends[-1] if ends else None)

    def _fail(self, error: Exception) -> None:
        for readers in list(self._readers.values()):
            for reader in readers:
                reader.fail(error)
