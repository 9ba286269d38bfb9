"""The model of librdkafka's consumer: read-ahead, pausing, reassignment, ends of partitions.

`tests/contract/engine/test_consumer_client.py` checks what it promises against librdkafka itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from fennel_core.connections.kafka import CONTROL_HEADER
from fennel_core.engine.broker import Record
from fennel_core.vocab.ids import Offset, TopicPartition
from tests.sim.engine.model_log import ModelLog

if TYPE_CHECKING:
    from tests.sim.engine.faulty_components import Dice

READ_AHEAD = 40
"""Messages of one partition that the client fetches before they are polled."""
FETCHED = 12
"""Offsets of one fetch, at most."""


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """See `engine.kafka.client.ClientMessage`."""

    source: TopicPartition
    at: Offset
    record: Record | None
    failed: KafkaError | None = None

    def topic(self) -> str:
        return self.source[0]

    def partition(self) -> int:
        return self.source[1]

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return None if self.record is None else self.record.value

    def headers(self) -> list[tuple[str, bytes]]:
        control = None if self.record is None else self.record.control
        return [] if control is None else [(CONTROL_HEADER, control.encode())]

    def error(self) -> KafkaError | None:
        return self.failed


@dataclass(slots=True)
class _Assigned:
    fetched: Offset
    """The next offset to fetch."""
    delivered: Offset
    """The next offset to deliver; a pause returns to it."""
    held_until_ms: float
    end_reported: Offset | None = None


class ModelClient:
    """See `engine.kafka.client.ConsumerClient`."""

    def __init__(self, log: ModelLog, dice: Dice, now_ms: Callable[[], int]) -> None:
        self._log, self._dice, self._now_ms = log, dice, now_ms
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._paused: set[TopicPartition] = set()
        """Partitions stay paused when they are assigned again."""
        self._queue: deque[ModelMessage] = deque()

    def incremental_assign(self, partitions: list[Any]) -> None:
        for each in partitions:
            source = (each.topic, each.partition)
            if source in self._assigned:
                raise KafkaException(KafkaError(KafkaError._CONFLICT))
            held_ms = 1000 * self._dice.random.choice(self._dice.held_s)
            offset = Offset(each.offset)
            self._assigned[source] = _Assigned(offset, offset, self._now_ms() + held_ms)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for each in partitions:
            del self._assigned[each.topic, each.partition]
            self._discard((each.topic, each.partition))

    def pause(self, partitions: list[Any]) -> None:
        for each in partitions:
            assigned = self._assigned[each.topic, each.partition]
            assigned.fetched, assigned.end_reported = assigned.delivered, None
            self._paused.add((each.topic, each.partition))
            self._discard((each.topic, each.partition))

    def resume(self, partitions: list[Any]) -> None:
        for each in partitions:
            assert (each.topic, each.partition) in self._assigned, "resumed while not assigned"
            self._paused.discard((each.topic, each.partition))

    def poll(self, timeout: float) -> ModelMessage | None:
        while self._fetch() and not self._queue:
            pass  # only transaction markers and aborted records so far
        if not self._queue:
            return None
        if self._dice.fails(0.2):
            source = self._dice.random.choice(sorted(self._assigned))
            return ModelMessage(source, Offset(0), None, KafkaError(KafkaError._TRANSPORT))
        if self._dice.fails(0.05):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return self._delivered()

    def consume(self, num_messages: int, timeout: float) -> Sequence[ModelMessage]:
        count = min(len(self._queue), num_messages, self._dice.random.randrange(READ_AHEAD))
        return [self._delivered() for _ in range(count)]

    def get_watermark_offsets(self, partition: Any, *, cached: bool) -> tuple[int, int]:
        log = self._log.log((partition.topic, partition.partition))
        return log.start, len(log.entries)

    def close(self) -> None:
        self._assigned.clear()
        self._queue.clear()

    def held_s(self) -> float | None:
        """Return how long until a held partition is fetched; None if none is held."""
        now_ms = self._now_ms()
        held = [a.held_until_ms for a in self._assigned.values() if a.held_until_ms > now_ms]
        return (min(held) - now_ms) / 1000 if held else None

    def _delivered(self) -> ModelMessage:
        message = self._queue.popleft()
        if message.record is not None:
            self._assigned[message.source].delivered = Offset(message.at + 1)
        return message

    def _discard(self, source: TopicPartition) -> None:
        self._queue = deque(message for message in self._queue if message.source != source)

    def _fetch(self) -> bool:
        """Fetch from every partition, in any order, ahead of what is polled.

        Returns False if there was nothing to fetch.
        """
        progress = False
        sources = sorted(self._assigned)
        self._dice.random.shuffle(sources)
        for source in sources:
            assigned = self._assigned[source]
            queued = sum(message.source == source for message in self._queue)
            held = source in self._paused or assigned.held_until_ms > self._now_ms()
            if not held and queued < READ_AHEAD:
                before = assigned.fetched
                self._fetch_from(source, assigned)
                progress |= assigned.fetched > before
        return progress

    def _fetch_from(self, source: TopicPartition, assigned: _Assigned) -> None:
        end = self._log.stable_end(source)
        if assigned.fetched < self._log.log(source).start or assigned.fetched > end:
            failed = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            self._queue.append(ModelMessage(source, assigned.fetched, None, failed))
            return
        stop = min(end, assigned.fetched + self._dice.random.randrange(1, FETCHED))
        for record in self._log.committed(source, assigned.fetched, stop):
            self._queue.append(ModelMessage(source, record.offset, record))
        assigned.fetched = Offset(stop)
        if stop == end and assigned.end_reported != end:
            assigned.end_reported = end
            eof = KafkaError(KafkaError._PARTITION_EOF)
            self._queue.append(ModelMessage(source, end, None, eof))
