"""The index of history: which files hold which offsets.

Theory. A file on S3 counts only when its row exists, and a row is added only at the end of the rows
so far. So the rows of one (topic, part) are contiguous and disjoint, whichever process writes them
and however often; they begin at offset 0, or later where the oldest were pruned. A writer that was
killed between upload and row, or that lost a race to another writer, leaves an orphaned object and
nothing else. Records behind the last row are the topic's tail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition


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

    def __post_init__(self) -> None:
        assert 0 <= self.first_offset < self.next_offset, "a file covers at least one offset"
        assert (self.min_ts is None) == (self.max_ts is None) == (self.row_count == 0), (
            "rows have event times"
        )


@dataclass(frozen=True, slots=True)
class HistoryTotals:
    """What history holds of one topic."""

    files: int
    rows: int
    size_bytes: int


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

    async def keys(self, topic: TopicName) -> frozenset[str]:
        """Return the keys of a topic's files."""
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
        """Delete every row of `topics`."""
        ...
