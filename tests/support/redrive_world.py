"""Dead letters without Kafka: streams whose rows do not fit, and orders over the log that fail by
script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from fennel_core.connections.erasures import Erased
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.store import ProducerRecord
from fennel_core.redrive.letters import Letter
from fennel_core.redrive.service import Redrive
from fennel_core.redrive.sink_replays import MemorySinkReplays
from fennel_core.redrive.store import LetterSession, MemoryLetterLog
from fennel_core.vocab.dead_letters import SettledLetter
from fennel_core.vocab.ids import Millis, TopicName, TopicPartition, WorkspaceId
from tests.support.ingest_world import PARTITIONS, NoExecutors
from tests.support.source_world import Fault, SourceWorld

DEAD = TopicName("w.dead.1")


@dataclass(slots=True)
class FaultyLetters:
    """A log whose sessions yield before they commit, and fail as the script says."""

    inner: MemoryLetterLog
    turns: Callable[[], int]
    fault: Callable[[], Fault | None]

    def letters(self, at: TopicPartition) -> Generator[Letter, None, None]:
        return self.inner.letters(at)

    async def open(self, at: TopicPartition) -> LetterSession:
        return _Session(await self.inner.open(at), self.turns, self.fault)


@dataclass(slots=True)
class _Session:
    inner: LetterSession
    turns: Callable[[], int]
    fault: Callable[[], Fault | None]

    async def commit(
        self,
        messages: Sequence[ProducerRecord],
        settled: Sequence[SettledLetter],
        deadline_s: float,
    ) -> None:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        fault = self.fault()
        if fault is None or fault.committed:
            await self.inner.commit(messages, settled, deadline_s)
        if fault is not None:
            raise fault.error

    def close(self) -> None:
        self.inner.close()


@dataclass
class RedriveWorld:
    """Orders over the log of a `SourceWorld`. `times`: when the letter of an offset was written."""

    sources: SourceWorld = field(default_factory=SourceWorld)
    turns: Callable[[], int] = lambda: 0
    fault: Callable[[], Fault | None] = lambda: None
    times: Mapping[int, Millis] = field(default_factory=dict)
    erased: Erased = field(default_factory=dict)
    replays: MemorySinkReplays = field(default_factory=lambda: MemorySinkReplays([]))

    def __post_init__(self) -> None:
        self.log = MemoryLetterLog(self.sources.world.log, self.times)

    def orders(self) -> Redrive:
        async def topics() -> Mapping[TopicName, int]:
            return {DEAD: PARTITIONS, TopicName("other.dead.1"): PARTITIONS}

        async def secret(_: WorkspaceId, code: str, name: str) -> str | None:
            raise AssertionError((code, name))

        async def erased(_: WorkspaceId) -> Erased:
            return self.erased

        world = self.sources.world
        return Redrive(
            topics,
            FaultyLetters(self.log, self.turns, self.fault),
            Catalogs(world.directory),
            world.clock,
            NoExecutors(),
            secret,
            erased,
            self.replays,
            60.0,
        )

    def open_letters(self) -> list[Letter]:
        """Return the open letters of all partitions."""
        return [
            letter
            for part in range(PARTITIONS)
            for letter in self.log.letters((DEAD, part))  # type: ignore[arg-type]  # a number
        ]
