"""Readers of a table's changes as the platform's are, whichever server has the table.

A reader has an engine of its own kind in the one JVM of the tests. It is killed by letting it go:
its task goes on, as one of a frozen process does, until the next reader takes its place.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fennel_core.connections.change_engine import ChangeEngine, ChangeTask
from fennel_core.sources.change_reader import ChangeRoundEnd, LoggedChangeReader, P
from fennel_core.sources.change_rounds import ChangedTable
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.writer import PartitionWriter
from tests.support.source_world import RAW, SourceWorld, rows_of

LOOKS = 5
"""How often a worker that will be lost asks for changes; each time it waits for a moment."""
_numbers = itertools.count()
S = TypeVar("S", bound=ChangedTable[Any])


@dataclass
class TableReader(Generic[S, P]):
    """A reader of a table's changes, with a task; `writer`: its rows and positions."""

    source: S
    engine: ChangeEngine
    writer: PartitionWriter
    reader: LoggedChangeReader[P]
    end: ChangeRoundEnd[P]
    task: ChangeTask

    async def lose_worker(self) -> None:
        """Begin a round whose worker is killed behind the first changes that it has taken."""
        await asyncio.to_thread(self.task.enter, self.end.number)
        for _ in range(LOOKS):
            if await asyncio.to_thread(self.task.look):
                break
        await asyncio.to_thread(self.task.take)

    async def round(self, seconds: float, rows: float, wait_s: float = 0.0) -> ChangeRoundEnd[P]:
        """Read; behind the last row of the first read, let the changes follow.

        `wait_s`: how long to wait for something.
        """
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s and not await asyncio.to_thread(self.task.look):
            continue
        was_first = self.end.at.is_first
        self.writer.close()
        self.end = await self.reader.round(self.end, seconds, rows)
        self.source.claim(self.end.at)
        if was_first and not self.end.at.is_first:
            self.stop()
            self.end = self.source.follow(self.end)
            self.task = started(self.engine, self.source, self.end)
            self.reader.changes = self.task
        return self.end

    def stop(self) -> None:
        self.engine.stop(self.task)


def started(engine: ChangeEngine, source: ChangedTable[P], end: ChangeRoundEnd[P]) -> ChangeTask:
    return source.started(engine, f"{source.base}-{next(_numbers)}", end.at)


class ChangeWorld(ABC, Generic[S, P]):
    """Readers of one table over one platform's log."""

    engine: ChangeEngine
    sources: SourceWorld

    @abstractmethod
    def source(self) -> tuple[S, str]:
        """Return the table as it is now, and its origin."""

    async def reader(self) -> TableReader[S, P]:
        """Begin to read at the position, as the host does."""
        source, origin = self.source()
        writer = self.sources.writer(origin=origin)
        position = await writer.position()
        end = source.begin(position or SourcePosition(0, origin))
        task = started(self.engine, source, end)
        reader = LoggedChangeReader("changes of `t`", writer, task, source.reading)
        return TableReader(source, self.engine, writer, reader, end, task)


def read_rows(sources: SourceWorld) -> list[dict[str, Any]]:
    return [row for raw in sources.world.raw(RAW) for row in rows_of(raw.body)]
