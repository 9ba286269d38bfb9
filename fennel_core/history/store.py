"""What history needs to remember: which files hold which offsets.

Theory. A file on S3 counts only when its row exists, and a row is added only where the rows so far
end. So the rows of one (topic, part) are contiguous and disjoint from offset 0 on, whoever writes
them and however often: a writer that was killed between upload and row, or that was outrun by
another one, leaves an object that nobody names, and nothing else. What lies behind the last row is
the topic's tail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition


class StoreError(Exception):
    """The bucket, the database or the log could not be asked, or refused: nothing is known to have
    happened, and trying again is right.
    """


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One immutable Parquet object: exactly the data records of Kafka offsets [first_offset,
    next_offset).
    """

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
    files: int
    rows: int
    size_bytes: int


class HistoryFiles(Protocol):
    """The rows. Every method raises StoreError when the database cannot be used."""

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        """Where each partition's rows end: the first offset that history lacks. Partitions without
        rows are absent (they end at 0).
        """
        ...

    async def files(
        self, topic: TopicName, part: PartitionIndex, upto: Offset | None = None
    ) -> tuple[HistoryFile, ...]:
        """The files of a partition in order of offsets; with `upto` only those that begin below
        it.
        """
        ...

    async def add(self, file: HistoryFile) -> bool:
        """Count `file`, if it begins where the rows of its partition end. False: it does not, and
        nothing was done.

        True again for a file that is counted already, so that an answer lost on the way can be
        asked for once more.
        """
        ...

    async def keys(self, topic: TopicName) -> frozenset[str]:
        """The objects that the rows of a topic name."""
        ...

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        """What history holds, by topic; topics without rows are absent."""
        ...

    async def orphans(self, alive: Collection[TopicName]) -> Mapping[TopicName, datetime]:
        """Topics with rows that are not in `alive`, and since when that is so by the database's
        clock (now, at the first such call).
        """
        ...

    async def now(self) -> datetime:
        """The clock that `orphans` answers in."""
        ...

    async def remove(self, topics: Sequence[TopicName]) -> None:
        """Forget every row of `topics`."""
        ...
