"""The in-memory implementation of `engine.broker`.

It models transactions, fencing and the offsets that Kafka's transaction markers occupy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from fennel_core.engine.broker import FetchedRecords, OutgoingRecord, Record, require_within_log
from fennel_core.engine.errors import OffsetTruncated, ProducerFenced
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicPartition

START = Offset(0)


@dataclass(slots=True)
class _Log:
    records: list[Record] = field(default_factory=list)
    start: Offset = START
    end: Offset = START


class MemoryLog:
    """The state that survives every client: topics, and the newest producer of each id."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, _Log] = {}
        self._generations: dict[str, int] = {}
        self.changed = asyncio.Condition()

    def log(self, source: TopicPartition) -> _Log:
        return self._logs.setdefault(source, _Log())

    def truncate(self, source: TopicPartition, start: Offset) -> None:
        """Delete the records below `start`, as Kafka's retention does."""
        log = self.log(source)
        log.start, log.records = start, [record for record in log.records if record.offset >= start]

    def open(self, transactional_id: str) -> int:
        self._generations[transactional_id] = self._generations.get(transactional_id, 0) + 1
        return self._generations[transactional_id]

    def append(
        self, transactional_id: str, generation: int, records: Sequence[OutgoingRecord]
    ) -> dict[TopicPartition, Offset]:
        """Write one transaction. Raises ProducerFenced if a newer producer of this id is open."""
        if self._generations.get(transactional_id) != generation:
            raise ProducerFenced(f"a newer producer of {transactional_id} is open")
        written: dict[TopicPartition, Offset] = {}
        for record in records:
            target = (record.topic, PartitionIndex(record.partition))
            log = self.log(target)
            control = next((value.decode() for name, value in record.headers if name == "c"), None)
            log.records.append(Record(log.end, record.value, control))
            log.end = Offset(log.end + 1)
            written[target] = log.end
        for source in written:
            # Kafka's transaction marker takes an offset.
            self.log(source).end = Offset(self.log(source).end + 1)
        return written


class MemoryProducer:
    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self._log, self._id = log, transactional_id
        self._generation = log.open(transactional_id)

    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        await asyncio.sleep(0)
        written = self._log.append(self._id, self._generation, records)
        async with self._log.changed:
            self._log.changed.notify_all()
        return written

    async def close(self) -> None:
        """Nothing to release."""


class MemorySubscription:
    def __init__(self, log: MemoryLog, positions: Mapping[TopicPartition, Offset]) -> None:
        self._log = log
        self._next = dict(positions)
        self._round_robin = deque(self._next)

    async def next(self, max_bytes: int) -> FetchedRecords:
        while True:
            for _ in range(len(self._round_robin)):
                source = self._round_robin[0]
                self._round_robin.rotate(-1)
                fetched = self._take(source, max_bytes)
                if fetched is not None:
                    return fetched
            async with self._log.changed:
                await self._log.changed.wait()

    def _take(self, source: TopicPartition, max_bytes: int) -> FetchedRecords | None:
        log, start = self._log.log(source), self._next[source]
        if start >= log.end:
            return None
        taken: list[Record] = []
        size = 0
        for record in log.records:
            if record.offset < start:
                continue
            if taken and size + len(record.value) > max_bytes:
                break
            taken.append(record)
            size += len(record.value)
        last = not taken or taken[-1] is log.records[-1]
        self._next[source] = log.end if last else Offset(taken[-1].offset + 1)
        return FetchedRecords(source, tuple(taken), self._next[source])

    def ends(self) -> Mapping[TopicPartition, Offset] | None:
        return {source: self._log.log(source).end for source in self._next}

    async def close(self) -> None:
        """Nothing to release."""


class MemoryRangeReader:
    """See `engine.broker.RangeReader`; a portion is one record."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def read(
        self, source: TopicPartition, first: Offset, stop: Offset | None = None
    ) -> AsyncIterator[tuple[Record, ...]]:
        log = self._log.log(source)
        end = log.end if stop is None else stop
        if first < min(log.start, end):
            raise OffsetTruncated(source, first, log.start)
        for record in [r for r in log.records if first <= r.offset < end]:
            yield (record,)

    async def close(self) -> None:
        """Nothing to release."""


class MemoryBroker:
    """See `engine.broker.Broker`."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return {source: self.log.log(source).start for source in sources}

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> MemorySubscription:
        for source, position in positions.items():
            require_within_log(
                source, position, self.log.log(source).start, self.log.log(source).end
            )
        return MemorySubscription(self.log, positions)

    async def producer(self, transactional_id: str) -> MemoryProducer:
        return MemoryProducer(self.log, transactional_id)

    async def range_reader(self) -> MemoryRangeReader:
        return MemoryRangeReader(self.log)
