"""Find the versions of keys that newer ones have replaced since before `history`, and remove them
from a file: what tasks of a maintenance run do for keyed datasets.

Theory. A read as of a time returns the last version of a key at or before it. Of the versions of a
key that have expired (`expiring`), the last hides the others at every time that must stay exact,
whatever comes later: so all but the last leave. The last stays, however old, also if it is a
tombstone: a row with an earlier time may yet arrive, and must not bring a deleted key back.

All files of a partition are looked at together, in ranges of key groups, each a task of its own. It
keeps the newest expired version of each key so far and one bit per row of the files, so memory is
bounded by the distinct keys of a range, not by their versions. Files are sorted by key group, so a
task reads little of the others. The bits of all ranges say which rows leave each file, and files
are rewritten one by one.

Example. Versions of key `a` at 1, 5 and 9, and 7 is the oldest time that is needed: the one at 1
leaves, as every read from 7 on has the one at 5 or 9.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO, Final

import numpy as np
import polars as pl
import pyarrow as pa

from fennel_core.history import parquet
from fennel_core.history.conditions import Conditions, ValueRange
from fennel_core.history.errors import FileUnusable
from fennel_core.history.expiring import PARTS_OF_HISTORY, TopicExpiry, with_rows
from fennel_core.history.merging import Get, MergeRefused, read_file
from fennel_core.history.parquet import GROUP, NUMBER
from fennel_core.history.roll import Put
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.keys import KEY_GROUPS
from fennel_core.vocab.versions import POS, SIGN

SURVEYED_ROWS: Final = 2_000_000
"""Rows of the files of a task, by which a partition is divided: bounds its memory."""
SETTLED_ROWS: Final = 500_000
"""Rows that are compared with the newest versions at once."""
FILE: Final = "__file"
_PLACE: Final = "__place"
Open = Callable[[HistoryFile], BinaryIO | io.RawIOBase]
"""Opens the object of a file for reading; reading raises FileNotFoundError if there is none."""


@dataclass(frozen=True, slots=True)
class VersionSurvey:
    """Files of a partition in which versions of the key groups [first_group, end_group) are
    searched that newer ones have replaced.
    """

    files: tuple[HistoryFile, ...]
    expiry: TopicExpiry
    first_group: int
    end_group: int


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Which rows leave each file of a survey: a bit per row in their order, compressed."""

    files: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FileWithReplaced:
    """A file, and which of its rows leave: a bit per row in their order, compressed."""

    file: HistoryFile
    rows: bytes


def surveys(
    files: Sequence[HistoryFile], expiry: TopicExpiry, partitions: int
) -> list[VersionSurvey]:
    """Return the surveys of the files of a partition: each of about `SURVEYED_ROWS` rows.

    `partitions`: of the topic, by which the key groups of this one are estimated.
    """
    part, rows = files[0].part, sum(file.row_count for file in files)
    first, end = (-(-KEY_GROUPS * at // partitions) for at in (part, part + 1))
    count = max(1, min(end - first, -(-rows // SURVEYED_ROWS)))
    inner = [first + (end - first) * n // count for n in range(1, count)]
    bounds = [0, *inner, KEY_GROUPS]
    return [VersionSurvey(tuple(files), expiry, low, high) for low, high in pairwise(bounds)]


def survey(task: VersionSurvey, opened: Open) -> ReplacedRows | MergeRefused:
    """Return which rows of a range of key groups leave. MergeRefused if a file is unusable."""
    newest = _Newest(task)
    for number, file in enumerate(task.files):
        try:
            for rows in _expired_rows(file, task, opened(file)):
                newest.add(number, rows)
        except FileUnusable as unusable:
            return MergeRefused(str(unusable))
    return newest.replaced()


def combined(found: Sequence[ReplacedRows]) -> list[bytes]:
    """Return which rows leave each file by the surveys of all ranges of key groups."""
    return [_either(of) for of in zip(*(each.files for each in found), strict=True)]


def removable(file: HistoryFile, rows: bytes) -> int:
    """Return how many rows leave a file; 0 where they are too few to write it again."""
    count = int(_bits(rows)[: file.row_count].sum())
    return count if count * PARTS_OF_HISTORY >= file.row_count else 0


def remove_replaced(
    item: FileWithReplaced, expiry: TopicExpiry, get: Get, put: Put
) -> HistoryFile | MergeRefused:
    """Return the file without the rows that leave it, under a new key.

    It is marked as searched when all files of its search are replaced.
    """
    try:
        frame = read_file(item.file, get)
    except FileUnusable as unusable:
        return MergeRefused(str(unusable))
    leave = pl.Series(_bits(item.rows)[: frame.height].astype(bool))
    assert frame.filter(leave).select(expiry.expired().all()).item(), "only expired rows leave"
    made = with_rows(item.file, frame.filter(~leave), expiry, put)
    return replace(made, expiry_searched_to=item.file.expiry_searched_to)


class _Newest:
    """The newest expired version of each key of a range so far, and which others there are."""

    def __init__(self, task: VersionSurvey) -> None:
        self._keys, self._order = task.expiry.keys, (task.expiry.timestamp, POS)
        self._leave = [np.zeros(-(-file.row_count // 8), np.uint8) for file in task.files]
        self._rows: list[pl.DataFrame] = []
        self._unsettled = 0

    def add(self, file: int, rows: pl.DataFrame) -> None:
        """Add expired versions of a file."""
        self._rows.append(rows.with_columns(pl.lit(file, pl.UInt32).alias(FILE)))
        self._unsettled += rows.height
        if self._unsettled >= max(SETTLED_ROWS, self._rows[0].height):
            self._settle()

    def replaced(self) -> ReplacedRows:
        """Return which rows leave."""
        self._settle()
        return ReplacedRows(tuple(zlib.compress(bits.tobytes(), 1) for bits in self._leave))

    def _settle(self) -> None:
        """Keep the newest of the versions of each key, and note the others."""
        if not self._rows:
            return
        rows = pl.concat(self._rows).sort(*self._order).with_row_index(_PLACE)
        newest = rows.unique(self._keys, keep="last", maintain_order=True)
        others = rows.filter(~pl.col(_PLACE).is_in(newest[_PLACE].implode()))
        for (file,), of in others.partition_by(FILE, as_dict=True).items():
            numbers = of[NUMBER].to_numpy()
            np.bitwise_or.at(
                self._leave[int(file)],
                numbers // 8,
                np.uint8(128) >> (numbers % 8).astype(np.uint8),
            )
        self._rows, self._unsettled = [newest.drop(_PLACE)], 0


def _expired_rows(
    file: HistoryFile, task: VersionSurvey, source: BinaryIO | io.RawIOBase
) -> Iterator[pl.DataFrame]:
    """Yield the expired versions of the key groups of a survey. Raises FileUnusable."""
    expiry = task.expiry
    columns = [*expiry.keys, expiry.timestamp, POS, NUMBER]
    limit = Conditions(
        (
            ValueRange(GROUP, task.first_group, task.end_group - 1),
            ValueRange(expiry.timestamp, high=expiry.oldest - 1),
        )
    )
    try:
        for rows in parquet.file_batches(source, [*columns, SIGN], limit):
            expired = rows.filter(expiry.expired())
            if (expired[SIGN] < 0).any():
                raise FileUnusable(f"object {file.object_key} has retractions of versions")
            if expired.height:
                yield expired.select(columns)
    except FileNotFoundError as missing:
        raise FileUnusable(f"object {file.object_key} is missing from the bucket") from missing
    except (pa.ArrowException, pl.exceptions.PolarsError, ValueError) as broken:
        raise FileUnusable(f"object {file.object_key} cannot be read: {broken}") from broken


def _either(rows: Sequence[bytes]) -> bytes:
    every = [np.frombuffer(zlib.decompress(each), np.uint8) for each in rows]
    return zlib.compress(np.bitwise_or.reduce(every).tobytes(), 1)


def _bits(rows: bytes) -> np.ndarray:
    return np.unpackbits(np.frombuffer(zlib.decompress(rows), np.uint8))
