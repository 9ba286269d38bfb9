"""The position of a sink whose receiver has no transactions, and the rows that it refused.

Both are written to the platform's Kafka in one transaction, after the requests that they are about:
so a row that was refused is a dead letter once, and a process that dies sends the last requests
again. Opening a session fences earlier ones, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import polars as pl

from fennel_core.connections.errors import TransactionAborted
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.store import ProducerRecord
from fennel_core.settings.model import Settings
from fennel_core.sinks.kafka import KafkaPositionCopy
from fennel_core.sinks.positions import SinkPosition, encode
from fennel_core.vocab.dead_letters import DeadLetterKind, DeadLetterOrigin, source_of
from fennel_core.vocab.ids import DatasetName, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.versions import encode_frame

T = TypeVar("T")
Wait = Callable[[Coroutine[None, None, None]], None]
"""Runs a coroutine on an event loop and returns when it has ended; raises what it raises."""
CLAIM: Final = b"claim"
"""The key of a record that only asks whether the session is the newest."""
EVENT: Final = "event"
"""The column of a dead letter with the change as JSON text."""
NUMBER: Final = "number"
"""The column with the number of the change in its message."""
LETTER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the changes of a letter: Kafka takes no message of any size."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """A change that the receiver refused; `part` and `offset`: its message, None for an erasure.

    `number`: that of the change in its message, which its idempotency key has.
    """

    event: bytes
    part: int
    offset: int | None
    reason: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class LettersOf:
    """What the dead letters of a sink have in common. `title`: as people name the sink."""

    sink: TopicName
    title: str
    dataset: DatasetName

    def record(
        self, at: TopicPartition, refused: Sequence[RefusedEvent], reason: str
    ) -> ProducerRecord:
        """Return the letter of changes of one message that were refused for one reason."""
        rows = {
            EVENT: [each.event.decode() for each in refused],
            NUMBER: [each.number for each in refused],
        }
        origin = DeadLetterOrigin(
            DeadLetterKind.NOT_DELIVERED,
            self.sink,
            self.dataset,
            reason,
            source_of(refused[0].part, refused[0].offset),
            sink=self.title,
        )
        frame = pl.DataFrame(rows, schema={EVENT: pl.String, NUMBER: pl.Int64})
        return ProducerRecord(*at, encode_frame(frame), origin.headers())

    def records(
        self, topic: TopicName, partitions: int, refused: Sequence[RefusedEvent]
    ) -> list[ProducerRecord]:
        """Return the letters of changes: for those of a message with the same reason one, or
        several if they are large.
        """
        groups: dict[tuple[int, int | None, str], list[RefusedEvent]] = {}
        for each in refused:
            groups.setdefault((each.part, each.offset, each.reason), []).append(each)
        return [
            self.record((topic, PartitionIndex(part % partitions)), events, reason)
            for (part, _, reason), group in groups.items()
            for events in _letters(group)
        ]


def _letters(refused: Sequence[RefusedEvent]) -> Iterator[list[RefusedEvent]]:
    """Yield changes in order, in lists of at most `LETTER_BYTES` unless one change has more."""
    found: list[RefusedEvent] = []
    size = 0
    for each in refused:
        if found and size + len(each.event) > LETTER_BYTES:
            yield found
            found, size = [], 0
        found.append(each)
        size += len(each.event)
    yield found


class DeliverySession(Protocol):
    """The exclusive right to move one sink's position. All calls block; over after an error."""

    @property
    def position(self) -> SinkPosition | None: ...

    def claim(self) -> None:
        """Return if no later session was opened. Raises `ConnectionsError`."""
        ...

    def commit(self, position: SinkPosition, refused: Sequence[RefusedEvent]) -> None:
        """Write the position and dead letters in one transaction. Raises `ConnectionsError`."""
        ...

    def close(self) -> None: ...


class DeliveryLog(Protocol):
    """Opens sessions of one sink. Raises `ConnectionsError`."""

    def open(self) -> DeliverySession: ...


class KafkaDeliveryLog:
    """See `DeliveryLog`. `name`: of the sink and of the topic of its position; `of`: the topic
    whose offsets the position has; `letters`: the dead-letter topic and its partitions, and what
    the letters say.
    """

    def __init__(
        self,
        settings: Settings,
        name: TopicName,
        of: TopicName,
        letters: tuple[LettersOf, TopicName, int],
        wait: Wait,
    ) -> None:
        self._settings, self._name, self._of, self._wait = settings, name, of, wait
        self._letters = letters

    def open(self) -> KafkaDeliverySession:
        threads = ThreadPoolExecutor(1, "sink-position")
        producer = KafkaTransactionalProducer(self._settings, self._name, threads)
        try:
            self._wait(producer.open())
            position = KafkaPositionCopy(self._settings, self._name, self._of).read()
        except BaseException:
            producer.close()
            threads.shutdown(wait=False)
            raise
        return KafkaDeliverySession(self, producer, threads, position)

    def record(self, key: bytes, value: bytes) -> ProducerRecord:
        """Return a record of the topic of positions."""
        return ProducerRecord(self._name, 0, value, (), key)

    def records(
        self, position: SinkPosition, refused: Sequence[RefusedEvent]
    ) -> list[ProducerRecord]:
        """Return the records of a transaction; changes with the same reason are one letter."""
        of, topic, partitions = self._letters
        found = of.records(topic, partitions, refused)
        return [*found, self.record(self._of.encode(), encode(position))]

    def commit(
        self, producer: KafkaTransactionalProducer, records: Sequence[ProducerRecord]
    ) -> None:
        """Write records in one transaction."""
        self._wait(producer.commit(records))


class KafkaDeliverySession:
    """See `DeliverySession`."""

    def __init__(
        self,
        log: KafkaDeliveryLog,
        producer: KafkaTransactionalProducer,
        threads: ThreadPoolExecutor,
        position: SinkPosition | None,
    ) -> None:
        self._log, self._producer, self._threads = log, producer, threads
        self._over = False
        self.position = position

    def claim(self) -> None:
        self._commit([self._log.record(CLAIM, b"")])

    def commit(self, position: SinkPosition, refused: Sequence[RefusedEvent]) -> None:
        self._commit(self._log.records(position, refused))
        self.position = position

    def _commit(self, records: Sequence[ProducerRecord]) -> None:
        # The producer would open again and fence the session that has the sink now.
        assert not self._over, "a session whose transaction failed is over"
        self._over = True
        self._log.commit(self._producer, records)
        self._over = False

    def close(self) -> None:
        self._over = True
        self._producer.close()
        self._threads.shutdown(wait=False)


@dataclass(slots=True)
class MemoryDeliveryLog:
    """In-memory `DeliveryLog`, shared by all sessions of one sink."""

    positions: list[SinkPosition] = field(default_factory=list)
    refused: list[RefusedEvent] = field(default_factory=list)
    epoch: int = 0

    def open(self) -> MemoryDeliverySession:
        self.epoch += 1
        position = self.positions[-1] if self.positions else None
        return MemoryDeliverySession(self, self.epoch, position)


@dataclass(slots=True)
class MemoryDeliverySession:
    """See `DeliverySession`."""

    owner: MemoryDeliveryLog
    epoch: int
    position: SinkPosition | None

    def claim(self) -> None:
        if self.owner.epoch != self.epoch:
            raise TransactionAborted("a later session fenced this one")

    def commit(self, position: SinkPosition, refused: Sequence[RefusedEvent]) -> None:
        self.claim()
        self.owner.positions.append(position)
        self.owner.refused += refused
        self.position = position

    def close(self) -> None:
        """Nothing is held."""
