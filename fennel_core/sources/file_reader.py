"""Read the files of a bucket, one after the other, from the position on.

A reader lives in one process and keeps the open file between its rounds. Rounds of one source may
be in any process, so each begins with a new session, at the committed position: the open file is of
use only if that is where the reader has left it. Rows of several small files share a transaction; a
large file takes many.

A file that S3 does not give out is left without a note, so it is tried again in every round, after
the others. One that was begun cannot be left, because the position would be lost: it breaks the
source until it can be read.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fennel_core.connections.external_s3 import (
    ExternalBucketUnusable,
    FileChanged,
    FileRefused,
    ListedFile,
)
from fennel_core.graph.s3_paths import FilePath
from fennel_core.ingest.store import ProducerRecord
from fennel_core.sources.errors import TooManyFiles
from fennel_core.sources.file_rows import FilePiece, FileUnreadable
from fennel_core.sources.files import (
    FILES,
    FileCursor,
    decode_cursor,
    encode_cursor,
    first_until,
    moved,
    note_name,
    note_of,
    plan,
)
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS
from fennel_core.sources.read_rows import ReadPart, RowBatch, StreamPlace, UnreadableRows
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.writer import PartitionWriter
from fennel_core.vocab.ids import Micros

FILES_TOGETHER: Final = 1_000
"""Files of one transaction: each adds a note."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """The files of a source. `pieces`: the rows of a file from a row on. Both block, and raise
    `ExternalBucketUnusable`; `pieces` also `FileChanged`, `FileRefused` and `FileUnreadable`.
    """

    title: str
    """Of a file's folder: `S3 file `bucket``."""
    files: Callable[[], list[ListedFile]]
    pieces: Callable[[ListedFile, int], Iterator[FilePiece]]

    def file_title(self, key: str) -> str:
        return f"{self.title[:-1]}/{key}`"


@dataclass(slots=True)
class _Pending:
    """What was read and not written yet."""

    cursor: FileCursor
    never_late: bool = False
    rows: int = 0
    size_bytes: int = 0
    parts: list[ReadPart] = field(default_factory=list)
    notes: dict[str, bytes] = field(default_factory=dict)


class FileReader:
    """Reads one partition of a feed of files. Use from one event loop. `clock`: of seconds.

    Of the last round, `rows`: how many were read, and `unread`: why files could not be read, by
    key; they are left.
    """

    def __init__(
        self,
        writer: PartitionWriter,
        partition: FeedPartition,
        path: FilePath,
        store: FileStore,
        *,
        presorted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._partition, self._path = writer, partition, path
        self._store, self._presorted, self._clock = store, presorted, clock
        self.unread: dict[str, str] = {}
        self.rows = 0
        self._deadline_s = 0.0
        """When the round is over."""
        self._refused: set[ListedFile] = set()
        self._known: dict[str, bytes] | None = None
        self._place = StreamPlace()
        self._rewinds = 0
        self._pending = _Pending(FileCursor())
        self._open: tuple[ListedFile, int, Iterator[FilePiece]] | None = None

    async def round(self, seconds: float, rows: float = math.inf) -> int:
        """Read for about so long, about so many rows, or until no file is left; return how many
        files are left.

        A listing that takes longer is followed by as much reading, and so is the way to the row at
        which a file is read on: a file has no index, and the next round may be in another process.
        Raises what
        `PartitionWriter.write_rows` raises, `ExternalBucketUnusable` and `TooManyFiles`. What was
        written by then stays.
        """
        self.unread, self.rows = {}, 0
        try:
            return await self._round(seconds, rows)
        except BaseException:
            # What is pending was read for a position that may be another one by now.
            self._known = self._open = None
            raise

    async def _round(self, seconds: float, rows: float) -> int:
        known = await self._begin()
        begun_s = self._clock()
        listed = await asyncio.to_thread(self._store.files)
        cursor = decode_cursor(self._place.cursor)
        left = plan(
            listed,
            self._path,
            known,
            cursor,
            presorted=self._presorted,
            rewinds=self._rewinds,
        )
        if len(known) + sum(note_name(file.key) not in known for file in left.files) > FILES:
            raise TooManyFiles(self._partition.title, FILES)
        self._pending = _Pending(
            FileCursor(first_until_us=first_until(listed)) if cursor is None else cursor
        )
        if left.lost:
            assert cursor is not None, "a file that was lost was begun"
            self._lost(cursor, "the file was overwritten or deleted")
        going_on = () if left.going_on is None else (left.going_on,)
        # Those that were refused before come last: there may be many, and each takes a request.
        again = self._refused.intersection(left.files)
        self._refused = set()
        files = (*going_on, *sorted(left.files, key=lambda file: file in again))
        now_s = self._clock()
        self._deadline_s = now_s + max(seconds, now_s - begun_s)
        for number, file in enumerate(files):
            never_late = file.modified_us <= self._pending.cursor.first_until_us
            if self._pending.never_late != never_late or len(self._pending.notes) >= FILES_TOGETHER:
                await self._flush()
                self._pending.never_late = never_late
            ended = await self._read(file, rows)
            if not ended or self._is_over(rows):
                await self._flush()
                self._refused |= again.intersection(files[number + 1 :])
                return len(files) - number - ended + len(self.unread)
        await self._flush()
        return len(self.unread)

    async def _begin(self) -> dict[str, bytes]:
        """Return what is remembered at the position, which becomes this reader's."""
        # A session that was kept has the position of its beginning, and a round in another process
        # may have moved it since.
        self._writer.close()
        position = await self._writer.position()
        place = StreamPlace() if position is None else StreamPlace(position.next, position.cursor)
        self._rewinds = 0 if position is None else position.rewinds
        if self._known is None or place != self._place:
            self._place, self._open = place, None
        self._known = dict(self._writer.notes())
        return self._known

    def _is_over(self, rows: float) -> bool:
        return self.rows >= rows or self._clock() >= self._deadline_s

    async def _read(self, file: ListedFile, rows: float) -> bool:
        """Read a file; return False if the round was over before its end."""
        cursor = self._pending.cursor
        row = 0 if cursor.done or (cursor.key, cursor.etag) != (file.key, file.etag) else cursor.row
        passes = False
        if self._open is None or self._open[:2] != (file, row):
            self._open = file, row, self._store.pieces(file, row)
            passes = row > 0
        begun_s = self._clock() if passes else 0.0
        pieces = self._open[2]
        while True:
            try:
                piece = await asyncio.to_thread(next, pieces, None)
            except FileUnreadable as unreadable:
                self._refuse(file.key, row, f"the file cannot be read: {unreadable}")
                self._ended(file, row)
                return True
            except FileChanged as changed:
                # Its new content is listed as another file; there may be none.
                self._open = None
                if row:
                    self._lost(self._pending.cursor, str(changed))
                self.unread[file.key] = str(changed)
                return True
            except FileRefused as refused:
                if row:
                    raise ExternalBucketUnusable(
                        f"{refused} (after {row} of its rows)"
                    ) from refused
                self._open = None
                self._refused.add(file)
                self.unread[file.key] = str(refused)
                return True
            if piece is None:
                self._ended(file, row)
                return True
            if passes:
                now_s, passes = self._clock(), False
                self._deadline_s = max(self._deadline_s, now_s + now_s - begun_s)
            await self._add(file, row, piece)
            row = piece.end
            self._open = file, row, pieces
            if self._is_over(rows):
                return False

    async def _add(self, file: ListedFile, row: int, piece: FilePiece) -> None:
        rows = piece.end - row
        self.rows += rows
        pending = self._pending
        if pending.rows and (
            pending.rows + rows > TRANSACTION_ROWS
            or pending.size_bytes + piece.size_bytes > TRANSACTION_BYTES
        ):
            await self._flush()
            pending = self._pending
        pending.parts += piece.parts
        pending.rows += rows
        pending.size_bytes += piece.size_bytes
        pending.cursor = moved(pending.cursor, file, piece.end, done=False)

    def _ended(self, file: ListedFile, row: int, *, remembered: bool = True) -> None:
        self._open = None
        self._pending.cursor = moved(self._pending.cursor, file, row, done=True)
        if remembered:
            self._pending.notes[note_name(file.key)] = note_of(file, self._rewinds)

    def _lost(self, cursor: FileCursor, reason: str) -> None:
        """Leave a file in its middle, whose rest is not there any more."""
        self._refuse(cursor.key, cursor.row, f"{reason} after {cursor.row} of its rows were read")
        file = ListedFile(cursor.key, cursor.etag, cursor.size_bytes, Micros(0))
        self._ended(file, cursor.row, remembered=False)

    def _refuse(self, key: str, row: int, reason: str) -> None:
        places = np.array([row], dtype=np.int64)
        title = self._store.file_title(key)
        self._pending.parts.append(UnreadableRows(title, reason, [key], places))

    async def _flush(self) -> None:
        """Write what is pending."""
        pending = self._pending
        end = StreamPlace(self._place.next + pending.rows, encode_cursor(pending.cursor))
        if pending.parts or pending.notes or pending.rows:
            notes: list[ProducerRecord] = [
                self._partition.note(name, value) for name, value in pending.notes.items()
            ]
            batch = RowBatch(
                self._place, end, tuple(pending.parts), tuple(notes), pending.never_late
            )
            await self._writer.write_rows(batch)
            assert self._known is not None, "a round begins with what is known"
            self._known.update(pending.notes)
            self._place = end
        self._pending = _Pending(pending.cursor, pending.never_late)
