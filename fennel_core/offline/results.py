"""The result of an offline query on S3: Parquet files in the order of the input, and failed rows.

Theory. Partition n of the result has the n-th run of rows (`result_runs`); its task writes a local
file, row group by row group, and uploads it once. A file with `FILE_BYTES` is full, and the
next one begins: S3 takes no more than 5 GB in one request, and wide rows may have any size. A
repeated task writes under another name, so a file is never half-written or overwritten; the files
that count are those that the tasks of the finished job return, and the others are deleted
(`delete_others`).

Files are named after their first row, from 0, so the order of their keys is that of the rows:

    <prefix>/000000000000-<attempt>.parquet     timestamp column, outputs; a failed row has nulls
    <prefix>/failed/000000000000-<attempt>.parquet    number of the row, reason
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from fennel_core.connections import s3
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import BlockLayout, ByRun
from fennel_core.offline.rows import AT, REASON, ROW, failed_rows
from fennel_core.offline.task_folders import task_folder
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FILE_ROWS: Final = 200_000
"""Rows of a result file, at most: few enough to be sorted in memory with some tens of features."""
FILE_BYTES: Final = 256 << 20
"""A file with so many bytes is full: one PUT takes seconds and is retried as a whole."""
FAILED: Final = "failed"
NUMBER: Final = "row_number"
_SCHEMA: Final = "first_row long, object_key string, failed_key string, row_count long, failed long"


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One file of a result; `failed_key` is empty if none of its rows failed."""

    first_row: int
    object_key: str
    failed_key: str
    row_count: int
    failed: int


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files of a result, in the order of the input."""

    files: tuple[ResultFile, ...]

    @property
    def row_count(self) -> int:
        return sum(file.row_count for file in self.files)

    @property
    def failed(self) -> int:
        return sum(file.failed for file in self.files)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all objects of the result."""
        both = (key for file in self.files for key in (file.object_key, file.failed_key))
        return frozenset(filter(None, both))


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Where a result is written: a prefix that no other query has. `timestamp`: the name of the
    column that has the time of a row.
    """

    settings: Settings
    prefix: str
    timestamp: str

    def put(self, key: str, path: Path) -> None:
        """Upload a file; blocks."""
        with path.open("rb") as body:
            s3.put_new(s3.client(self.settings), self.settings.s3_bucket, key, body)


def result_runs(rows: int) -> ByRun:
    """Return how the rows of a result are spread over its partitions."""
    return ByRun(rows, max(1, -(-rows // FILE_ROWS)))


def write_result(blocks: DataFrame, work: WriteWork) -> ResultFiles:
    """Write the finished rows of `spark.SparkRun.run`, and return the files."""
    written = blocks.mapInArrow(work.run, _SCHEMA).toArrow()
    files = [ResultFile(**row) for row in written.to_pylist()]
    found = ResultFiles(tuple(sorted(files, key=lambda file: file.first_row)))
    assert found.row_count == work.placement.rows, "a result has a row per row of the query"
    return found


def delete_others(client: S3Client, bucket: str, place: ResultPlace, result: ResultFiles) -> None:
    """Delete what repeated tasks of a finished job have left below its prefix."""
    for stored in s3.list_objects(client, bucket, f"{place.prefix}/"):
        if stored.key not in result.keys:
            s3.delete(client, bucket, stored.key)


@dataclass(frozen=True, slots=True)
class WriteWork:
    """Writes the files of a partition in a task."""

    place: ResultPlace
    layout: BlockLayout
    placement: ByRun

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is known of each file, given the blocks of the partition."""
        return self.write(BlockSort(self.layout, self.placement).rows(batches))

    def write(self, frames: Iterator[pl.DataFrame]) -> Iterator[pa.RecordBatch]:
        """Write rows that come in order."""
        with ExitStack() as stack:
            folder = stack.enter_context(task_folder("result"))
            file: _LocalFile | None = None
            for frame in frames:
                if frame.is_empty():
                    continue
                if file is None or file.size_bytes >= FILE_BYTES:
                    if file is not None:
                        yield self._uploaded(file)
                    following = frame.item(0, ROW) if file is None else file.next_row
                    file = _LocalFile(folder, self.layout, self.place.timestamp, following)
                    stack.callback(file.close)
                file.add(frame)
            if file is not None:
                yield self._uploaded(file)

    def _uploaded(self, file: _LocalFile) -> pa.RecordBatch:
        file.close()
        place = self.place
        name = f"{file.first_row:012}-{uuid.uuid4().hex}.parquet"
        key, failed_key = f"{place.prefix}/{name}", ""
        place.put(key, file.path)
        if file.failed:
            failed_key = f"{place.prefix}/{FAILED}/{name}"
            place.put(failed_key, file.failed_path)
        made = ResultFile(file.first_row, key, failed_key, file.row_count, file.failed)
        return pa.RecordBatch.from_pylist([asdict(made)], schema=_MADE)


_MADE: Final = pa.schema(
    [
        ("first_row", pa.int64()),
        ("object_key", pa.string()),
        ("failed_key", pa.string()),
        ("row_count", pa.int64()),
        ("failed", pa.int64()),
    ]
)


class _LocalFile:
    """Rows from `first_row` on in a local file, and the failed ones in another."""

    def __init__(self, folder: Path, layout: BlockLayout, timestamp: str, first_row: int) -> None:
        # The same names again: a file that was uploaded is overwritten.
        self.path, self.failed_path = folder / "rows", folder / "failed"
        self.first_row = self.next_row = first_row
        self.row_count = self.failed = 0
        outputs = [name for name in layout.columns if name not in {ROW, AT, REASON}]
        self._columns: Sequence[pl.Expr] = [pl.col(AT).alias(timestamp), *map(pl.col, outputs)]
        self._writer: pq.ParquetWriter | None = None
        self._failures: pq.ParquetWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Append rows, which follow those before."""
        numbers = frame[ROW]
        assert numbers.item(0) == self.next_row, "the rows of a partition follow each other"
        assert (numbers.diff().drop_nulls() == 1).all(), "the rows of a batch follow each other"
        self.next_row = numbers.item(-1) + 1
        self.row_count += frame.height
        self._writer = _written(self._writer, self.path, frame.select(self._columns))
        failed = failed_rows(frame.filter(pl.col(REASON).is_not_null())).rename({ROW: NUMBER})
        if not failed.is_empty():
            self.failed += failed.height
            self._failures = _written(self._failures, self.failed_path, failed)

    @property
    def size_bytes(self) -> int:
        """The bytes of the larger file so far."""
        paths = (self.path, self.failed_path) if self.failed else (self.path,)
        return max((path.stat().st_size for path in paths if self.row_count), default=0)

    def close(self) -> None:
        """Finish the files; again without effect."""
        for writer in (self._writer, self._failures):
            if writer is not None:
                writer.close()


def _written(writer: pq.ParquetWriter | None, path: Path, frame: pl.DataFrame) -> pq.ParquetWriter:
    """Append rows to a file as a row group, and return its writer."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if writer is None:
        # Numbers seldom repeat: a dictionary of them takes as long as all else, and saves nothing.
        texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
        writer = pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=texts)
    writer.write_table(table)
    return writer
