"""Read the changes of a Delta table from the position on, and write them.

A reader lives in one process and keeps what it has open between its rounds, which is of use only if
the position is where it has left it. Each batch is written by compare-and-set on the cursor, so
readers at once, kills and lost responses repeat nothing (decision 0096). Changes of several small
versions share a transaction; a large version takes many.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fennel_core.sources.delta_changes import (
    DeltaChanges,
    DeltaCursor,
    DeltaPiece,
    DeltaStore,
    decode_cursor,
    encode_cursor,
)
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS
from fennel_core.sources.read_rows import ArrowRows, RowBatch, StreamPlace
from fennel_core.sources.writer import PartitionWriter


@dataclass(slots=True)
class _Pending:
    """What was read and not written yet, up to `cursor`."""

    cursor: DeltaCursor | None
    rows: int = 0
    size_bytes: int = 0
    parts: list[ArrowRows] = field(default_factory=list)


class DeltaReader:
    """Reads a table. Use from one event loop. `keys` as for `DeltaChanges`; `clock`: of seconds.

    `rows`: that were read in the last round.
    """

    def __init__(
        self,
        writer: PartitionWriter,
        store: DeltaStore,
        table_id: str,
        keys: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._store, self._clock = writer, store, clock
        self._table_id, self._keys = table_id, keys
        self.rows = 0
        self._place: StreamPlace | None = None
        self._open: tuple[DeltaChanges, Iterator[DeltaPiece]] | None = None

    async def round(self, seconds: float, rows: float = math.inf) -> int:
        """Read for about so long, about so many rows, or to the newest version; return how many
        versions are left.

        Raises what `PartitionWriter.write_rows` and `DeltaChanges.pieces` raise. What was written
        by then stays.
        """
        self.rows = 0
        try:
            return await self._round(seconds, rows)
        except BaseException:
            # What is open was read for a position that may be another one by now.
            self._open = None
            raise

    async def _round(self, seconds: float, rows: float) -> int:
        # A session that was kept has the position of its beginning, and a round in another process
        # may have moved it since.
        self._writer.close()
        position = await self._writer.position()
        place = StreamPlace() if position is None else StreamPlace(position.next, position.cursor)
        kept, self._place = self._open if place == self._place else None, place
        changes, pieces = self._open = kept or self._changes(decode_cursor(place.cursor))
        begun_s, deadline_s = self._clock(), None
        pending = _Pending(decode_cursor(place.cursor))
        while True:
            piece = await asyncio.to_thread(next, pieces, None)
            if piece is None:
                await self._flush(pending)
                self._open = None
                if kept is None:
                    return 0
                # The newest version is that of an earlier round: there may be others by now.
                kept, pending = None, _Pending(pending.cursor)
                changes, pieces = self._open = self._changes(pending.cursor)
                continue
            if deadline_s is None:
                # What comes before the first row is followed by as much reading.
                now_s = self._clock()
                deadline_s = now_s + max(seconds, now_s - begun_s)
            pending = await self._added(pending, piece)
            self.rows += piece.rows
            if self.rows >= rows or self._clock() >= deadline_s:
                await self._flush(pending)
                at = piece.cursor
                return changes.newest - at.version + (not at.done)

    def _changes(self, cursor: DeltaCursor | None) -> tuple[DeltaChanges, Iterator[DeltaPiece]]:
        changes = DeltaChanges(self._store, self._table_id, self._keys, cursor)
        return changes, changes.pieces()

    async def _added(self, pending: _Pending, piece: DeltaPiece) -> _Pending:
        if pending.parts and (
            pending.rows + piece.rows > TRANSACTION_ROWS
            or pending.size_bytes + piece.size_bytes > TRANSACTION_BYTES
        ):
            await self._flush(pending)
            pending = _Pending(pending.cursor)
        pending.cursor = piece.cursor
        pending.parts += piece.parts
        pending.rows += piece.rows
        pending.size_bytes += piece.size_bytes
        return pending

    async def _flush(self, pending: _Pending) -> None:
        """Write what is pending."""
        assert self._place is not None, "a round begins at a place"
        if pending.cursor is None:
            return
        rows = sum(part.rows.num_rows for part in pending.parts)
        end = StreamPlace(self._place.next + rows, encode_cursor(pending.cursor))
        if end != self._place:
            await self._writer.write_rows(RowBatch(self._place, end, tuple(pending.parts)))
            self._place = end
