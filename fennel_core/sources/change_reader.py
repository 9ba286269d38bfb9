"""Write the changes that an engine delivers, in the worker of a round.

What was taken of the engine and not written is gone with the round: its source is broken then, and
a new task of the engine begins at the position. So it is if Spark repeats a round. Each batch is
written by compare-and-set on the cursor, so readers at once, kills and lost responses repeat
nothing (decision 0100).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from fennel_core.sources.change_cursor import ReadChanges
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS, MessageBatch
from fennel_core.sources.read_rows import MessageRows, RowBatch, StreamPlace
from fennel_core.sources.writer import PartitionWriter


class TakeChanges(Protocol):
    """What delivers changes; see `connections.change_engine.ChangeTask`. The calls block."""

    def enter(self, number: int) -> None: ...

    def take(self) -> list[str]: ...

    def confirm(self) -> None: ...


class EnginePlace(Protocol):
    """Where an engine is."""

    @property
    def is_first(self) -> bool:
        """Whether the rows that are there are still read."""


P = TypeVar("P", bound=EnginePlace)


class Reading(Protocol[P]):
    """How what an engine delivers is read; pure."""

    def read(self, place: P, lines: Sequence[str]) -> tuple[P, ReadChanges]:
        """Return what lines hold, and the place behind them."""

    def encode(self, place: P) -> str:
        """Return the cursor of a place as the position has it."""

    def confirms(self, before: P, after: P) -> bool:
        """Return whether the server may forget more than before."""


@dataclass(frozen=True, slots=True)
class ChangeRoundEnd(Generic[P]):
    """How far a round came. `stream`: the position; `at`: the engine.

    `more`: time ended the round. `token`: of the last mark. `newest_ms`: when the last change was
    made that was read. `number`: of the next round.
    """

    stream: StreamPlace
    at: P
    rows: int = 0
    more: bool = False
    token: str | None = None
    newest_ms: int | None = None
    number: int = 0


@dataclass(slots=True)
class _Pending:
    """What was taken and is not written yet."""

    lines: list[bytes]
    names: list[str]
    size_bytes: int = 0


class LoggedChangeReader(Generic[P]):
    """Reads one table's changes. Use from one event loop. `title`: of the source."""

    def __init__(
        self,
        title: str,
        writer: PartitionWriter,
        changes: TakeChanges,
        reading: Reading[P],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._writer, self.changes = title, writer, changes
        self._reading, self._clock = reading, clock

    async def round(
        self, end: ChangeRoundEnd[P], seconds: float, rows: float = math.inf
    ) -> ChangeRoundEnd[P]:
        """Read on from the end of the last round, for about so long or so many rows, or until
        nothing comes; return the end.

        Raises `ChangeEngineFailed`, and what `PartitionWriter.write_rows` raises. What was written
        by then stays.
        """
        deadline_s, begun = self._clock() + seconds, end.at
        pending = _Pending([], [])
        await asyncio.to_thread(self.changes.enter, end.number)
        end = replace(end, number=end.number + 1)
        # The slot counts from here on: a reader that begins at the same time writes nothing.
        end = await self._flush(replace(end, rows=0, more=False), pending)
        while True:
            taken = await asyncio.to_thread(self.changes.take)
            place, read = self._reading.read(end.at, taken)
            end = _with(end, place, read)
            pending.lines += read.lines
            pending.names += read.names
            pending.size_bytes += sum(map(len, read.lines))
            over = self._clock() >= deadline_s or end.rows + len(pending.lines) >= rows
            full = len(pending.lines) >= TRANSACTION_ROWS or pending.size_bytes >= TRANSACTION_BYTES
            if over or full or read.ended or not taken:
                end = await self._flush(end, pending)
                pending = _Pending([], [])
            if over or read.ended or not taken:
                break
        if self._reading.confirms(begun, end.at):
            # Behind the write: the server forgets what is before the last commit.
            await asyncio.to_thread(self.changes.confirm)
        return replace(end, more=bool(taken) and not read.ended)

    async def _flush(self, end: ChangeRoundEnd[P], pending: _Pending) -> ChangeRoundEnd[P]:
        count, first = len(pending.lines), end.stream.next
        following = StreamPlace(first + count, self._reading.encode(end.at))
        if following == end.stream:
            return end
        parts: tuple[MessageRows, ...] = ()
        if count:
            offsets = np.arange(first, first + count, dtype=np.int64)
            batch = MessageBatch(offsets, list(pending.lines))
            parts = (MessageRows(self._title, batch, pending.names),)
        await self._writer.write_rows(RowBatch(end.stream, following, parts))
        return replace(end, stream=following, rows=end.rows + count)


def _with(end: ChangeRoundEnd[P], place: P, read: ReadChanges) -> ChangeRoundEnd[P]:
    return replace(
        end,
        at=place,
        token=read.token or end.token,
        newest_ms=read.newest_ms or end.newest_ms,
    )
