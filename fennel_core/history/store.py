"""The index of history: which files hold which offsets.

Theory. A file on S3 counts only when its row exists, and a row is added only at the end of the rows
so far. So the rows of one (topic, part) are contiguous and disjoint, whichever process writes them
and however often; they begin at offset 0, or later where the oldest were pruned. Where records were
deleted before history had them, the next file begins behind them, so files show for ever what they
lack. A writer that was
killed between upload and row, or that lost a race to another writer, leaves an orphaned object and
nothing else. Records behind the last row are the topic's tail.

Small files are merged later: one transaction replaces adjacent rows by one of the same range. Their
objects are *retired*: not in the index any more, and kept for reads that were planned before. A
file is replaced, too, when rows of erased keys leave it (`erasing`), or rows that are older than
`history` (`expiring`): its range stays, and it says how many rows it has lost by either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Protocol

from fennel_core.vocab.ids import (
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)

NO_DATASET: Final = DatasetName("")
"""The dataset of files that were never searched."""


NEVER: Final = Micros(0)
"""Where files were never searched for expired rows, and where none has left."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One immutable Parquet object: the data records of offsets [first_offset, next_offset)."""

    topic: TopicName
    part: PartitionIndex
    first_offset: Offset
    next_offset: Offset
    object_key: str
    row_count: int
    size_bytes: int
    min_ts: Micros | None
    """Smallest event time; None when the range held only control records."""
    max_ts: Micros | None
    searched_to: int = 0
    """The number of the last erasure whose rows are known not to be in the file, of the dataset
    `searched_for`: a topic may come to another name, whose erasures it was never searched for.
    """
    removed_rows: int = 0
    """Rows of erased keys that were removed from these offsets."""
    min_stamp: int = 0
    """No row was accepted before this stamp (`vocab.position`); 0 where that is not known."""
    searched_for: DatasetName = NO_DATASET
    expired_rows: int = 0
    """Rows older than `history` that were removed from these offsets."""
    expired_to: Micros = NEVER
    """Each row that has left by its age was before this event time; NEVER: none has."""
    expiry_searched_to: Micros = NEVER
    """The oldest event time that was needed when the file was last searched for expired rows."""

    def __post_init__(self) -> None:
        assert 0 <= self.first_offset < self.next_offset, "a file covers at least one offset"
        assert (self.min_ts is None) == (self.max_ts is None) == (self.row_count == 0), (
            "rows have event times"
        )


def require_replaceable(old: Sequence[HistoryFile], new: HistoryFile) -> None:
    """Assert that a file has the range of the files that it replaces, and their rows, but for those
    that it says to have removed.
    """
    assert all(
        (a.topic, a.part, a.next_offset) == (b.topic, b.part, b.first_offset)
        for a, b in zip(old, [*old[1:], None], strict=True)
        if b is not None
    ), "the replaced files are adjacent"
    assert (new.topic, new.part) == (old[0].topic, old[0].part), "and of one partition"
    assert (new.first_offset, new.next_offset) == (old[0].first_offset, old[-1].next_offset)
    assert new.removed_rows >= sum(file.removed_rows for file in old), "no removal is forgotten"
    assert new.expired_rows >= sum(file.expired_rows for file in old), "nor is this"
    assert ever_had(new) == sum(map(ever_had, old)), "no row is added or lost without being counted"


def ever_had(file: HistoryFile) -> int:
    """Return how many rows the offsets of a file had when they were written."""
    return file.row_count + file.removed_rows + file.expired_rows


@dataclass(frozen=True, slots=True)
class HistoryTotals:
    """What history holds of one topic. `lost_records`: offsets that were deleted before history had
    them. `expired_rows`: rows that were removed because they were older than `history`.
    """

    files: int
    rows: int
    size_bytes: int
    lost_records: int = 0
    expired_rows: int = 0


def first_gap(files: Sequence[HistoryFile]) -> tuple[Offset, Offset] | None:
    """Return the first offsets between files of a partition, in order, that no file has."""
    for before, after in pairwise(files):
        if before.next_offset < after.first_offset:
            return before.next_offset, after.first_offset
    return None


@dataclass(frozen=True, slots=True)
class SearchedFiles:
    """Files of a topic that were searched up to the same erasure of a dataset: the number of those
    with rows and of their rows, how many rows of erased keys all of them have lost, and the
    earliest stamp of a row (0: not known).

    `retired`: they are replaced objects, of which only the number and the stamp are known.
    """

    searched_for: DatasetName
    searched_to: int
    retired: bool
    files: int
    rows: int
    removed_rows: int
    min_stamp: int


@dataclass(frozen=True, slots=True)
class Readers:
    """What decided which rows of a workspace are needed: the ids of its versions and jobs."""

    workspace: WorkspaceId
    ids: frozenset[str]


def searched_upto(found: HistoryFile | SearchedFiles, dataset: DatasetName) -> int:
    """Return up to which erasure of a dataset files were searched; 0 if they were not."""
    return found.searched_to if found.searched_for == dataset else 0


class HistoryFiles(Protocol):
    """The rows. Every method raises SystemUnavailable if the database cannot be used."""

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        """Return the first offset that history lacks, per partition.

        Partitions without rows are absent; their end is 0.
        """
        ...

    async def files(
        self, topic: TopicName, part: PartitionIndex, upto: Offset | None = None
    ) -> tuple[HistoryFile, ...]:
        """Return the files of a partition in order of offsets.

        With `upto`, only files that begin below it.
        """
        ...

    async def add(self, file: HistoryFile) -> bool:
        """Add the row of `file` if the file begins at the end of its partition's rows.

        Returns False, and changes nothing, if it begins elsewhere. Returns True for a file that has
        been added already, so that a call with a lost response can be repeated.
        """
        ...

    async def skip(
        self, topic: TopicName, part: PartitionIndex, first: Offset, following: Offset
    ) -> bool:
        """Record that the records [first, following) were deleted before history had them.

        The next file begins at `following`. Returns False, and changes nothing, if the rows of the
        partition end elsewhere than at `first`.
        """
        ...

    async def partitions(self, least_files: int) -> list[TopicPartition]:
        """Return the partitions that have at least so many files, in order."""
        ...

    async def now(self) -> datetime:
        """Return the time of the clock that deadlines and waiting times are measured with."""
        ...

    async def replace(
        self,
        old: Sequence[HistoryFile],
        new: HistoryFile,
        deadline: datetime,
        kept: timedelta,
        readers: Readers | None = None,
    ) -> bool:
        """Replace adjacent files of a partition by one file with the same range and rows, but for
        those that it has removed.

        Readers see either. The keys of `old` become retired, and are due after `kept`. Returns
        False, and changes nothing, if one of `old` is not in the index, after `deadline`, or if
        `readers` are not all that read rows of their workspace now; no commit decides that before
        this is done.
        """
        ...

    async def mark_searched(self, keys: Sequence[str], dataset: DatasetName, upto: int) -> None:
        """Note that files have no rows of erasures of a dataset up to the number `upto`. Keys that
        are not in the index are ignored. Only the last dataset is known.
        """
        ...

    async def mark_expired(self, keys: Sequence[str], to: Micros) -> None:
        """Note that files have no row that had expired when `to` was the oldest event time that is
        needed. Keys that are not in the index are ignored.
        """
        ...

    async def searched(self, topic: TopicName) -> list[SearchedFiles]:
        """Return how far the files and the retired objects of a topic were searched, in order."""
        ...

    async def keys(self, topic: TopicName) -> frozenset[str]:
        """Return the keys of a topic's files, and its retired keys."""
        ...

    async def retired(self) -> frozenset[str]:
        """Return the retired keys of all topics: objects that are no files any more, and stay
        for reads that were planned before.
        """
        ...

    async def due(self, limit: int) -> list[str]:
        """Return retired keys whose objects are to be deleted now, at most `limit`."""
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Forget retired keys, whose objects were deleted."""
        ...

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        """Return what history holds, by topic; topics without rows are absent."""
        ...

    async def remove_before(
        self, topic: TopicName, part: PartitionIndex, offset: Offset
    ) -> list[str]:
        """Delete the rows of files that end at `offset` or before it; return their keys.

        The last file of a partition stays: it says where the next one begins.
        """
        ...

    async def remove(self, topics: Sequence[TopicName]) -> None:
        """Delete every row of `topics`, and their retired keys."""
        ...
