"""Subscriptions: what the consumer has delivered and the runners have not taken yet.

Everything here runs on the event loop. The consumer thread posts deliveries to it; see `consumer`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.engine.broker import FetchedRecords, Record
from fennel_core.engine.kafka.consumer import (
    ConsumerThread,
    Delivery,
    record_bytes,
)
from fennel_core.vocab.ids import Offset, TopicPartition


@dataclass(slots=True)
class _Buffer:
    """Records of one partition that wait for the runner."""

    next_taken: Offset
    delivered: Offset
    """Nothing undelivered lies below."""
    records: deque[Record] = field(default_factory=deque)
    end: Offset | None = None


class KafkaSubscription:
    """See `engine.broker.Subscription`."""

    def __init__(
        self, consumer: ConsumerThread, positions: Mapping[TopicPartition, Offset]
    ) -> None:
        self._consumer = consumer
        self._buffers = {source: _Buffer(offset, offset) for source, offset in positions.items()}
        self._round_robin = deque(self._buffers)
        self._wake = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        consumer.command(partial(consumer.add, self, positions))

    def deliver(self, delivery: Delivery) -> None:
        """Take news from the consumer thread."""
        if self._closed:
            return
        buffer = self._buffers[delivery.source]
        assert delivery.next >= buffer.delivered, (
            f"{delivery.source} was delivered up to {buffer.delivered} and then to {delivery.next}"
        )
        assert not delivery.records or delivery.records[0].offset >= buffer.delivered, (
            f"record {delivery.records[0].offset} of {delivery.source} was delivered before"
        )
        buffer.records.extend(delivery.records)
        buffer.delivered, buffer.end = delivery.next, delivery.end
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Raise SystemUnavailable from now on."""
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
        size = held = 0
        while buffer.records and (not taken or size + len(buffer.records[0].value) <= max_bytes):
            record = buffer.records.popleft()
            size += len(record.value)
            held += record_bytes(record)
            taken.append(record)
        if taken:
            self._consumer.command(partial(self._consumer.took, self, source, held))
        nothing_below = Offset(taken[-1].offset + 1) if buffer.records else buffer.delivered
        if nothing_below == buffer.next_taken:
            return None
        buffer.next_taken = nothing_below
        return FetchedRecords(source, tuple(taken), nothing_below)

    def ends(self) -> Mapping[TopicPartition, Offset] | None:
        known = {
            source: max(buffer.end, buffer.delivered)
            for source, buffer in self._buffers.items()
            if buffer.end is not None
        }
        return known if len(known) == len(self._buffers) else None

    async def close(self) -> None:
        self._closed = True
        self._consumer.command(partial(self._consumer.drop, self))
