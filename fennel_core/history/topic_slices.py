"""Slices of topics: files of history, then the topic's tail, split at one offset.

Theory. A slice is planned for every partition at the same moment, so a read returns the records
committed by then, whatever moves later: a record that is rolled into history after planning is read
from the topic, and a file that ends beyond the end of the slice is cut there. Versions do not
depend on each other until they are brought together by key, so many tasks can read a slice,
each a piece of it, in batches.

Example. History has the files [0, 40) and [40, 75), the log ends at 90. The slice is both files and
the tail [75, 90); its three pieces are each of the files, and the tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import polars as pl

from fennel_core.connections import s3
from fennel_core.connections.installation import installation_of, key_prefix
from fennel_core.connections.postgres import Pool
from fennel_core.history import parquet
from fennel_core.history.errors import ReadFailed
from fennel_core.history.kafka import TopicReader
from fennel_core.history.parquet import RowFilter
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import NEVER, HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, TopicName, TopicPartition
from fennel_core.vocab.versions import decode

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NOTHING: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """The records of a partition below `end`: those of `files` in order, then [tail_first, end).

    `root`: the prefix of the files' keys.
    """

    partition: TopicPartition
    files: tuple[HistoryFile, ...]
    tail_first: Offset
    end: Offset
    root: str

    @property
    def begins(self) -> Offset:
        """The first offset that can be read; those below it were pruned or deleted."""
        return self.files[0].first_offset if self.files else self.tail_first

    @property
    def gap(self) -> tuple[Offset, Offset] | None:
        """The first offsets behind a file that were deleted before they were in history."""
        return self.gap_behind(0)

    def gap_behind(self, offset: int) -> tuple[Offset, Offset] | None:
        """Return the first gap that ends behind an offset."""
        firsts = [*(file.first_offset for file in self.files[1:]), self.tail_first]
        for file, following in zip(self.files, firsts, strict=False):
            if max(int(file.next_offset), offset) < following:
                return file.next_offset, following
        return None

    @property
    def removed_rows(self) -> int:
        """How many rows of erased keys the files have lost."""
        return sum(file.removed_rows for file in self.files)

    @property
    def expired_rows(self) -> int:
        """How many rows older than `history` the files have lost."""
        return sum(file.expired_rows for file in self.files)

    @property
    def expired_to(self) -> Micros:
        """The event time that all rows that the files have lost by age were before; 0: none."""
        return max((file.expired_to for file in self.files if file.expired_rows), default=NEVER)

    def until(self, latest: Micros) -> TopicSlice:
        """Return the slice without files whose rows all have a later event time."""
        return self.between(None, latest)

    def between(self, first: int | None, last: int | None) -> TopicSlice:
        """Return the slice without files that have no row with an event time from `first` to
        `last`; None: without an end.
        """
        useful = (
            file
            for file in self.files
            if file.min_ts is not None
            and file.max_ts is not None
            and (first is None or file.max_ts >= first)
            and (last is None or file.min_ts <= last)
        )
        return replace(self, files=tuple(useful))

    def pieces(self) -> tuple[TopicSlice, ...]:
        """Return slices of one file each that has rows, and one of the tail."""
        found = [
            replace(self, files=(file,), tail_first=self.end)
            for file in self.files
            if file.row_count
        ]
        if self.tail_first < self.end:
            found.append(replace(self, files=()))
        return tuple(found)


async def plan_slices(
    settings: Settings, pool: Pool, topics: Collection[TopicName]
) -> dict[TopicName, tuple[TopicSlice, ...]]:
    """Return the slices of every partition of `topics` as of now.

    The ends of all topics are read in one request. Raises SystemUnavailable and TopicAccessDenied.
    """
    bounds = await asyncio.to_thread(TopicReader(settings).bounds, topics)
    rows = PostgresHistoryFiles(pool)
    root = key_prefix(settings.s3_prefix, await installation_of(pool))
    found: dict[TopicName, list[TopicSlice]] = {topic: [] for topic in topics}
    for partition, bound in sorted(bounds.items()):
        files = await rows.files(*partition, upto=bound.end)
        covered = files[-1].next_offset if files else NOTHING
        tail = min(max(covered, bound.first), bound.end)
        found[partition[0]].append(TopicSlice(partition, files, tail, bound.end, root))
    return {topic: tuple(slices) for topic, slices in found.items()}


def version_batches(
    settings: Settings,
    part: TopicSlice,
    columns: Sequence[str],
    limit: RowFilter | None = None,
) -> Iterator[pl.DataFrame]:
    """Yield the columns `columns` of a slice in the order of its records, in batches.

    Rows that `limit` does not select are left out. Raises ReadFailed for a file that is gone, and
    what S3 and Kafka raise.
    """
    for file in part.files:
        yield from _of_file(settings, part, file, columns, limit)
    if part.tail_first < part.end:
        for message in TopicReader(settings).tail(part.partition, part.tail_first, part.end):
            rows = decode(message.value)
            yield (rows if limit is None else limit.kept(rows)).select(columns)


def _of_file(
    settings: Settings,
    part: TopicSlice,
    file: HistoryFile,
    columns: Sequence[str],
    limit: RowFilter | None,
) -> Iterator[pl.DataFrame]:
    key = part.root + file.object_key
    source = s3.RangedObject(_client(settings), settings.s3_bucket, key, file.size_bytes)
    below = part.end if file.next_offset > part.end else None
    try:
        yield from parquet.file_batches(source, columns, limit, below)
    except FileNotFoundError as gone:
        raise ReadFailed(
            f"object {key} is missing from bucket `{settings.s3_bucket}`. Plan the read again: "
            "the object may have been merged with others; if it is missing again, restore it from "
            "a backup of the bucket [read-object]"
        ) from gone


@lru_cache(maxsize=1)
def _client(settings: Settings) -> S3Client:
    """Return the client of this process; creating one takes as long as reading a small file."""
    return s3.client(settings)
