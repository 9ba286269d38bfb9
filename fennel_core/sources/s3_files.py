"""The files of users' buckets as a kind of stream: rounds of one task, as often as `every` says.

Each round is a Spark job of one task, which lists, reads and writes (`file_reader.py`) in a worker
of the application that hosts all streams. There is no streaming query: what Spark would plan and
remember of one is in the position, and its file source forgets files after a time, re-reads a file
from its beginning, and knows a file by its name only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa
import structlog

from fennel_core.connections.external_s3 import ExternalBucket, ListedFile
from fennel_core.graph.s3_paths import FilePath, PathWindow, file_path
from fennel_core.settings.model import Settings
from fennel_core.sources.bucket_files import opened_bucket, pieces_of
from fennel_core.sources.errors import TooManyFiles
from fennel_core.sources.feeds import FeedProgress
from fennel_core.sources.file_reader import FileReader, FileStore
from fennel_core.sources.file_rows import FilePiece
from fennel_core.sources.files import FILES
from fennel_core.sources.kafka import read_positions
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.rounds import Rounds
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.task import COUNTS, COUNTS_DDL, task_process
from fennel_core.sources.writer import PartitionWriter
from fennel_core.wire.connectors import JsonFormat, S3Table

ROUND_S: Final = 20.0
"""How long a round reads before it gives way to other sources."""
LEFT, WAITING, UNREAD = "left", "waiting", "unread"
ROUND_DDL: Final = f"{COUNTS_DDL}, {LEFT} bigint, {WAITING} bigint, {UNREAD} array<string>"
ROUND: Final = pa.schema(
    [*COUNTS, (LEFT, pa.int64()), (WAITING, pa.int64()), (UNREAD, pa.list_(pa.string()))]
)
"""What became of rows, and in the last row the files that are left: of them `WAITING` could not be
read, for reasons of which some are `UNREAD`.
"""
NAMED: Final = 10
"""Files that could not be read whose reasons are logged."""
MICROS: Final = 1e6
READERS: Final = 64
"""Feeds of which a process keeps what it knows."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileRound:
    """What a task needs to read; pickled. Hashed by what it reads."""

    settings: Settings
    partition: FeedPartition
    origin: str
    bucket: ExternalBucket
    table: S3Table
    rewinds: int
    """Of the position that the source began at."""
    window: PathWindow

    @property
    def path(self) -> FilePath:
        return replace(file_path(self.table.prefix, self.table.suffix), window=self.window)

    def store(self) -> FileStore:
        """Return the files of the source; blocks."""
        client, table, bucket = self.bucket.client(), self.table, self.bucket
        path = self.path
        title = f"S3 file `{bucket.bucket}`"

        def files() -> list[ListedFile]:
            found: list[ListedFile] = []
            for page in bucket.files(client, table.prefix):
                found += [file for file in page if path.matches(file.key)]
                if len(found) > FILES:
                    raise TooManyFiles(self.partition.title, FILES)
            return found

        def pieces(file: ListedFile, first: int) -> Iterator[FilePiece]:
            return pieces_of(bucket, client, table, file, first)

        return FileStore(title, files, pieces)


def start(by: StartedBy, table: S3Table) -> FileRounds:
    """Start to read the files of a bucket. Raises `ConnectionsError`; blocks.

    What it has read before is remembered by its position; behind a rewind, nothing is.
    """
    feed = by.feed
    bucket = opened_bucket(
        table, by.settings, lambda secret: by.open_secret(feed.workspace, secret)
    )
    bucket.check()
    # Not the address: it is the installation's, and buckets of one name are the same bucket.
    partition, origin = feed.partition(0), f"s3/{table.bucket}"
    at = partition.position_partition
    position = read_positions(by.settings, feed.positions, at).get(partition.key)
    rewinds = 0 if position is None else position.rewinds
    work = FileRound(by.settings, partition, origin, bucket, table, rewinds, feed.window)
    pause_s = max(by.settings.source_trigger_ms / 1000, (feed.every_us or 0) / MICROS)
    return FileRounds(by, work, pause_s)


class FileRounds(Rounds):
    """Runs the rounds of a feed of files."""

    def __init__(self, by: StartedBy, work: FileRound, pause_s: float) -> None:
        self._pause_s, self._task, self._more = pause_s, round_task(work), False
        super().__init__(by, str(work.partition.raw_topic))

    def read(self) -> FeedProgress:
        """Run a round; what is left of the files that can be read is read at once."""
        frame = self.by.spark.range(1, numPartitions=1).mapInArrow(self._task, ROUND_DDL)
        found = frame.toArrow()
        left = found.column(LEFT)
        self.by.count_rows(found.filter(left.is_null()).select(COUNTS.names))
        (end,) = found.filter(left.is_valid()).select([LEFT, WAITING, UNREAD]).to_pylist()
        if end[WAITING]:
            log.warning(
                "files of a source could not be read; they are tried again",
                source=self.by.feed.title,
                workspace=self.by.feed.workspace,
                files=end[WAITING],
                reasons=end[UNREAD],
            )
        self._more = end[LEFT] > end[WAITING]
        return FeedProgress(end[LEFT])

    def rest(self, took_s: float) -> None:
        self.stopped.wait(0.0 if self._more else max(0.0, self._pause_s - took_s))


def round_task(work: FileRound) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs for a round."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _read(work)

    return run


def _read(work: FileRound) -> pa.RecordBatch:
    process = task_process(work.settings)
    writer, counts = process.writer(work.partition, work.origin, work.rewinds, JsonFormat())
    counts.found.clear()
    reader = _reader(work, writer)
    left = process.run(reader.round(ROUND_S))
    return round_end(counts.batch(), left, reader.unread)


def round_end(counts: pa.RecordBatch, left: int, unread: Mapping[str, str]) -> pa.RecordBatch:
    """Return the rows of `ROUND`. `unread`: why files could not be read, by key."""
    reasons = [f"{key}: {reason}" for key, reason in list(unread.items())[:NAMED]]
    end = {LEFT: left, WAITING: len(unread), UNREAD: reasons}
    return pa.RecordBatch.from_pylist([*counts.to_pylist(), end], schema=ROUND)


@lru_cache(maxsize=READERS)
def _reader(work: FileRound, writer: PartitionWriter) -> FileReader:
    store, presorted = work.store(), work.table.presorted
    return FileReader(writer, work.partition, work.path, store, presorted=presorted)
