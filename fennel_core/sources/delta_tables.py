"""Delta tables in users' buckets as a kind of stream: rounds of one task (`task_rounds.py`).

The library (delta-rs) finds the newest version with its schema and files; commits of the log and
files are read from the bucket, where reading can go on in the middle of a file.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from botocore.exceptions import ClientError
from deltalake import DeltaTable

from fennel_core.connections.delta_log import DataFile, table_files
from fennel_core.connections.external_delta import (
    ExternalDelta,
    ExternalTableUnusable,
    source_place,
)
from fennel_core.connections.external_s3 import NOT_FOUND, ExternalBucket, FileBody, ListedFile
from fennel_core.settings.model import MIB, Settings
from fennel_core.sources.bucket_files import opened_bucket
from fennel_core.sources.delta_changes import DeltaStore, origin_of
from fennel_core.sources.delta_reader import DeltaReader
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.pace import step_rows
from fennel_core.sources.rounds import ROUND_ROWS, or_reason
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.task import task_process
from fennel_core.sources.task_rounds import ROUND_S, TaskRounds, rewinds_of, round_end
from fennel_core.sources.writer import PartitionWriter
from fennel_core.vocab.ids import Micros
from fennel_core.wire.connectors import JsonFormat, S3Table

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

READERS: Final = 64
"""Feeds of which a process keeps what it has open."""
COMMIT_BYTES: Final = 256 * MIB
"""Of one commit of the log, which is in memory while it is parsed: some 250,000 files."""
MICROS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class DeltaRound:
    """What a task needs to read; pickled. Hashed by what it reads. `rewinds`: as of `FileRound`."""

    settings: Settings
    partition: FeedPartition
    place: ExternalDelta
    table_id: str
    keys: tuple[str, ...]
    rewinds: int
    rows_per_s: float | None


def start(by: StartedBy, table: S3Table) -> TaskRounds:
    """Start to read a table. Raises `ConnectionsError` and `SourceError`; blocks."""
    feed = by.feed
    bucket = opened_bucket(
        table, by.settings, lambda secret: by.open_secret(feed.workspace, secret)
    )
    place, partition = source_place(bucket, table), feed.partition(0)
    head = place.head()
    rewinds = rewinds_of(by, partition)
    work = DeltaRound(
        by.settings, partition, place, head.shape.table_id, feed.keys, rewinds, feed.rows_per_s
    )
    return TaskRounds(by, partial(_read, work))


def delta_store(place: ExternalDelta) -> DeltaStore:
    """Return the log and the files of a table."""
    client, bucket = place.bucket.client(), place.bucket

    def snapshot(version: int) -> tuple[DataFile, ...]:
        with place.checked(f"cannot be opened at version {version}"):
            table = DeltaTable(place.uri, version=version, storage_options=place.options())
            return table_files(table)

    def commit(version: int) -> tuple[bytes, int] | None:
        key = f"{place.path}/_delta_log/{version:020}.json"
        file = _listed(bucket, client, key)
        if file is None:
            return None
        if file.size_bytes > COMMIT_BYTES:
            raise ExternalTableUnusable(
                f"{place.title}: `{key}` has more than {COMMIT_BYTES // MIB} MiB, and is read as a "
                "whole; write fewer, larger files with each commit"
            )
        with FileBody(bucket, client, file) as body:
            return io.BufferedReader(body).read(), file.modified_us

    def body(path: str) -> io.RawIOBase | None:
        file = _listed(bucket, client, f"{place.path}/{path}")
        return None if file is None else FileBody(bucket, client, file)

    return DeltaStore(f"Delta table `{place.uri}`", place.head, snapshot, commit, body)


def _listed(bucket: ExternalBucket, client: S3Client, key: str) -> ListedFile | None:
    """Return an object as a listing would; None if there is none. Raises
    `ExternalBucketUnusable`."""
    with bucket.checked("reading its files"):
        try:
            found = client.head_object(Bucket=bucket.bucket, Key=key)
        except ClientError as failed:
            status = failed.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status in NOT_FOUND:
                return None
            raise
    written_us = Micros(int(found["LastModified"].timestamp() * MICROS))
    return ListedFile(key, found["ETag"].strip('"'), found["ContentLength"], written_us)


def _read(work: DeltaRound) -> pa.RecordBatch:
    process = task_process(work.settings)
    origin = origin_of(work.table_id)
    writer, counts = process.writer(work.partition, origin, work.rewinds, JsonFormat())
    counts.found.clear()
    reader = _reader(work, writer)
    step = step_rows(work.rows_per_s, ROUND_ROWS)
    left = or_reason(lambda: process.run(reader.round(ROUND_S, step)), work.rows_per_s)
    return round_end(counts.batch(), reader.rows, left, {})


@lru_cache(maxsize=READERS)
def _reader(work: DeltaRound, writer: PartitionWriter) -> DeltaReader:
    return DeltaReader(writer, delta_store(work.place), work.table_id, work.keys)
