"""HTTP sinks in memory: endpoints, positions, dead letters and orders that fail by script."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fennel_core.connections.errors import SystemUnavailable, TransactionOutcomeUnknown
from fennel_core.connections.external_http import Accepted, Outcome, TryAgain
from fennel_core.ingest.store import ProducerRecord
from fennel_core.redrive.letters import Letter
from fennel_core.redrive.sink_replays import MemorySinkReplays, SinkReplay
from fennel_core.redrive.store import LetterSession, MemoryLetterLog
from fennel_core.sinks.debezium import ChangeSource, DebeziumForm, SinkRecord
from fennel_core.sinks.deliveries import (
    DeliverySession,
    LettersOf,
    MemoryDeliveryLog,
    MemoryDeliverySession,
    RefusedEvent,
)
from fennel_core.sinks.http import HttpSinkLog, HttpSinkSession
from fennel_core.sinks.letter_replays import LetterReplays
from fennel_core.sinks.positions import SinkPosition
from fennel_core.sinks.writer import NO_ERASURES, ChangeReader, KeyErasures, SinkWriter
from fennel_core.vocab.dead_letters import SettledLetter, message_of, settled_letters
from fennel_core.vocab.ids import DatasetName, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.schema import Schema
from tests.support.http_receivers import Receiver
from tests.support.sink_world import USERS, MemoryReader, MemoryTopic

PARTS = 2
BAD = 9
"""Rows with this value are refused for good."""
Faults = list[str | None]
SINK, DEAD = TopicName("shop.sink.users.1"), TopicName("shop.dead.x.1")
LETTERS_OF = LettersOf(SINK, "hooks/users", DatasetName("Users"))


@dataclass
class FaultyDelivery:
    """A session whose transactions fail by script: before, or after they took effect."""

    inner: MemoryDeliverySession
    fault: Callable[[], str | None]
    letters: MemoryLetterLog

    @property
    def position(self) -> SinkPosition | None:
        return self.inner.position

    def claim(self) -> None:
        self.inner.claim()

    def commit(self, position: SinkPosition, refused: Sequence[RefusedEvent]) -> None:
        fault = self.fault()
        if fault == "before":
            raise SystemUnavailable("Kafka is away")
        self.inner.commit(position, refused)
        for record in LETTERS_OF.records(DEAD, PARTS, refused):
            self.letters.log.setdefault((record.topic, record.partition), []).append(record)
        if fault == "after":
            raise TransactionOutcomeUnknown("the response was lost")

    def close(self) -> None:
        self.inner.close()


@dataclass
class FaultyReplays(MemorySinkReplays):
    """Orders that cannot be ended by script."""

    fault: Callable[[], str | None] = lambda: None

    async def end(self, replays: Sequence[SinkReplay]) -> None:
        fault = self.fault()
        if fault == "before":
            raise SystemUnavailable("Postgres is away")
        for each in replays:
            self.orders.pop((each.sink, *each.place), None)
        if fault == "after":
            raise SystemUnavailable("the response was lost")


@dataclass
class FaultyLetterLog:
    """Partitions of letters whose transactions fail by script, or are taken by another order."""

    inner: MemoryLetterLog
    fault: Callable[[], str | None]

    def letters(self, at: TopicPartition) -> Generator[Letter, None, None]:
        return self.inner.letters(at)

    async def open(self, at: TopicPartition) -> LetterSession:
        return FaultyLetterSession(self, at, await self.inner.open(at))


@dataclass
class FaultyLetterSession:
    owner: FaultyLetterLog
    at: TopicPartition
    inner: LetterSession
    over: bool = False

    async def commit(
        self,
        messages: Sequence[ProducerRecord],
        settled: Sequence[SettledLetter],
        deadline_s: float,
    ) -> None:
        assert not self.over, "a session whose transaction failed is over"
        fault, self.over = self.owner.fault(), True
        if fault == "before":
            raise SystemUnavailable("Kafka is away")
        if fault == "taken":
            await self.owner.inner.open(self.at)
        await self.inner.commit(messages, settled, deadline_s)
        if fault == "after":
            raise TransactionOutcomeUnknown("the response was lost")
        self.over = False

    def close(self) -> None:
        self.inner.close()


@dataclass
class ReaderWithin(MemoryReader):
    """A reader after whose end something happens."""

    after: Callable[[], None]

    def close(self) -> None:
        self.after()


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


@dataclass
class HttpSinkWorld:
    """Writers of one HTTP sink, with a clock that moves with each request."""

    topic: MemoryTopic
    limit: int
    sending: Faults
    committing: Faults
    deliveries: MemoryDeliveryLog = field(default_factory=MemoryDeliveryLog)
    now_s: float = 0.0
    letters: MemoryLetterLog = field(default_factory=lambda: MemoryLetterLog({}))
    settling: Faults = field(default_factory=list)
    ending: Faults = field(default_factory=list)
    erasures: KeyErasures = NO_ERASURES
    of: Schema = USERS
    bad: tuple[int, ...] = (BAD,)
    """Rows with these values are refused."""
    meanwhile: Callable[[], None] = lambda: None
    """What happens before a replay looks for changes in a partition, and after it."""

    def __post_init__(self) -> None:
        self.receiver = Receiver(self.refuses)
        self.form = DebeziumForm(ChangeSource("hooks", "shop", "Users", self.of), lambda: None)
        self.replays = FaultyReplays([SINK], fault=lambda: _next(self.ending))

    def refuses(self, key: str, body: bytes) -> tuple[int, dict[str, str]] | None:
        rows = [event["after"] or event["before"] for event in json.loads(body)]
        return (422, {}) if any(row["age"] in self.bad for row in rows) else None

    def send(self, body: bytes, key: str) -> Outcome:
        """Be the endpoint, whose network fails by script."""
        self.now_s += 1.0
        fault = _next(self.sending)
        if fault == "lost":
            return TryAgain("no response", 0.0)
        outcome = self.receiver.send(body, key)
        if fault == "after" and isinstance(outcome, Accepted):
            return TryAgain("the response was lost", 0.0)
        if fault == "away":
            return TryAgain("busy", 60.0)
        return outcome

    def close(self) -> None:
        """Nothing is held."""

    def open(self) -> DeliverySession:
        return FaultyDelivery(self.deliveries.open(), lambda: _next(self.committing), self.letters)

    def writer(self) -> SinkWriter[Sequence[SinkRecord]]:
        log = HttpSinkLog(
            "hooks/users",
            "sink",
            "https://a.example/users",
            lambda: self,
            self,
            limit=self.limit,
            sleep=lambda _: False,
            clock=lambda: self.now_s,
        )
        return SinkWriter("hooks/users", self.of, self.form, log, None, self.topic.open)

    def open_letters(self) -> list[Letter]:
        """Return the letters that are not settled."""
        return [e for n in range(PARTS) for e in self.letters.letters((DEAD, PartitionIndex(n)))]

    def order(self) -> None:
        """Order that all open letters are sent again."""
        orders = [
            SinkReplay(SINK, each.at, each.offset, message_of(each.origin.source))
            for each in self.open_letters()
        ]
        ran(self.replays.order(orders))

    def replay(self, writer: SinkWriter[Any], following: Mapping[int, int] | None = None) -> None:
        """Carry out orders behind the last step of a writer."""
        session, position = writer.session, writer.position
        assert isinstance(session, HttpSinkSession), "a step has succeeded"
        assert position is not None, "a step has succeeded"
        LetterReplays(
            LETTERS_OF,
            self.of,
            self.form,
            FaultyLetterLog(self.letters, lambda: _next(self.settling)),
            self.replays,
            self._open_part,
            lambda: self.erasures,
            ran,
            lambda: False,
            lambda: self.now_s,
        ).run(session, position.next if following is None else following)

    def _open_part(self, part: int, first: int) -> ChangeReader:
        self.meanwhile()
        ends = {n: len(messages) for n, messages in enumerate(self.topic.partitions)}
        return ReaderWithin(
            MemoryTopic(self.topic.partitions), ends | {part: first}, self.meanwhile
        )

    def settled(self) -> dict[str, int]:
        """Return how many changes were settled, by outcome."""
        found = {"replayed": 0, "dropped": 0, "refused": 0, "superseded": 0}
        for records in self.letters.log.values():
            for record in records:
                for each in settled_letters(record.headers, record.value) or ():
                    for name in found:
                        found[name] += getattr(each, name)
        return found


def _next(faults: Faults) -> str | None:
    return faults.pop() if faults else None
