"""The files of users' buckets as a kind of stream: rounds of one task, as often as `every` says.

Each round is a Spark job of one task, which lists, reads and writes (`file_reader.py`) in a worker
of the application that hosts all streams. There is no streaming query: what Spark would plan and
remember of one is in the position, and its file source forgets files after a time, re-reads a file
from its beginning, and knows a file by its name only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

import pyarrow as pa

from fennel_core.connections.external_s3 import ExternalBucket, ListedFile
from fennel_core.graph.s3_paths import ALWAYS, FilePath, PathWindow, file_path
from fennel_core.settings.model import Settings
from fennel_core.sources.bucket_files import opened_bucket, pieces_of
from fennel_core.sources.errors import TooManyFiles
from fennel_core.sources.file_reader import FileReader, FileStore
from fennel_core.sources.file_rows import FilePiece
from fennel_core.sources.files import FILES
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import step_rows
from fennel_core.sources.rounds import ROUND_ROWS, or_reason
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.task import task_process
from fennel_core.sources.task_rounds import ROUND_S, TaskRounds, rewinds_of, round_end
from fennel_core.sources.writer import PartitionWriter
from fennel_core.wire.connectors import JsonFormat, S3Table

READERS: Final = 64
"""Feeds of which a process keeps what it knows."""


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
    window: PathWindow = ALWAYS
    rows_per_s: float | None = None

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


def start(by: StartedBy, table: S3Table) -> TaskRounds:
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
    rewinds = rewinds_of(by, partition)
    work = FileRound(
        by.settings, partition, origin, bucket, table, rewinds, feed.window, feed.rows_per_s
    )
    return TaskRounds(by, partial(_read, work))


def _read(work: FileRound) -> pa.RecordBatch:
    process = task_process(work.settings)
    writer, counts = process.writer(work.partition, work.origin, work.rewinds, JsonFormat())
    counts.found.clear()
    reader = _reader(work, writer)
    step = step_rows(work.rows_per_s, ROUND_ROWS)
    left = or_reason(lambda: process.run(reader.round(ROUND_S, step)), work.rows_per_s)
    return round_end(counts.batch(), reader.rows, left, reader.unread)


@lru_cache(maxsize=READERS)
def _reader(work: FileRound, writer: PartitionWriter) -> FileReader:
    store, presorted = work.store(), work.table.presorted
    return FileReader(writer, work.partition, work.path, store, presorted=presorted)
