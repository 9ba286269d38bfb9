"""Read ranges of logs, for replay: in portions, in order, through a consumer of its own.

Theory. A replay reads the replaylog and, marker by marker, the ranges of the inputs that each
marker names. Consecutive ranges of an input adjoin, so a reader keeps one subscription per
partition and goes on where the range before ended; only a jump opens a new one. What a reader holds
in memory is what its subscriptions buffer, however long the log is.

All readers of a slot share one more `SharedConsumer`, which exists while any of them is open.
Replays neither slow down the partitions that run nor use the threads that commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.engine.broker import Record
from fennel_core.engine.errors import OffsetTruncated
from fennel_core.engine.kafka.subscription import KafkaSubscription
from fennel_core.vocab.ids import Offset, TopicPartition

PORTION_BYTES: Final = 4 * 1024 * 1024

Bounds = Callable[[TopicPartition], Awaitable[tuple[Offset, Offset]]]
"""Returns the first retained offset and the end of a log."""


@dataclass(slots=True)
class _Reading:
    """How far one partition has been read."""

    subscription: KafkaSubscription
    returned: Offset
    """Every record below it was returned, or not asked for."""
    fetched: Offset
    """Every record below it was returned or is in `ahead`."""
    ahead: deque[Record] = field(default_factory=deque)


class KafkaRangeReader:
    """See `engine.broker.RangeReader`."""

    def __init__(
        self,
        subscribe: Callable[[Mapping[TopicPartition, Offset]], KafkaSubscription],
        bounds: Bounds,
        timeout_s: float,
        released: Callable[[], Awaitable[None]],
    ) -> None:
        """`released` is called when the reader has been closed."""
        self._subscribe, self._bounds, self._released = subscribe, bounds, released
        self._timeout_s = timeout_s
        self._readings: dict[TopicPartition, _Reading] = {}

    async def read(
        self, source: TopicPartition, first: Offset, stop: Offset | None = None
    ) -> AsyncIterator[tuple[Record, ...]]:
        end = (await self._bounds(source))[1] if stop is None else stop
        if first >= end:
            return
        reading = await self._at(source, first)
        done = False
        while not done:
            portion = []
            while reading.ahead and reading.ahead[0].offset < end:
                record = reading.ahead.popleft()
                if record.offset >= first:
                    portion.append(record)
            done = bool(reading.ahead) or reading.fetched >= end
            reading.returned = end if done else reading.fetched
            if portion:
                yield tuple(portion)
            if not done:
                await self._fetch(source, reading)

    async def close(self) -> None:
        for reading in self._readings.values():
            await reading.subscription.close()
        await self._released()

    async def _at(self, source: TopicPartition, first: Offset) -> _Reading:
        """Return a reading of the partition that can go on at `first`."""
        reading = self._readings.get(source)
        if reading is not None:
            if reading.returned <= first <= reading.fetched:
                return reading
            await reading.subscription.close()
        start, _ = await self._bounds(source)
        if first < start:
            raise OffsetTruncated(source, first, start)
        reading = self._readings[source] = _Reading(self._subscribe({source: first}), first, first)
        return reading

    async def _fetch(self, source: TopicPartition, reading: _Reading) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                fetched = await reading.subscription.next(PORTION_BYTES)
        except TimeoutError as late:
            raise SystemUnavailable(
                f"the broker did not respond while {source[0]}[{source[1]}] was read"
            ) from late
        reading.ahead.extend(fetched.records)
        reading.fetched = fetched.next


class StoppableConsumer(Protocol):
    """See `shared_consumer.SharedConsumer`."""

    def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription: ...

    def stop(self) -> None: ...


class ReplayConsumer:
    """The consumer of all range readers of a slot; it exists while one of them is open."""

    def __init__(self, create: Callable[[], StoppableConsumer]) -> None:
        self._create = create
        self._consumer: StoppableConsumer | None = None
        self._readers = 0

    def acquire(self) -> StoppableConsumer:
        """Return the consumer; give it back by `release`."""
        self._readers += 1
        if self._consumer is None:
            self._consumer = self._create()
        return self._consumer

    async def release(self) -> None:
        self._readers -= 1
        if self._readers == 0 and self._consumer is not None:
            idle, self._consumer = self._consumer, None
            await asyncio.get_running_loop().run_in_executor(None, idle.stop)
