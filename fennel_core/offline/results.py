"""The result of an offline query on S3: Parquet files in the order of the input, and failed rows.

Theory. Partition n of the result has the n-th run of rows (`spark.in_row_order`); its task writes a
local file, row group by row group, and uploads it once. A repeated task writes under another
name, so a file is never half-written or overwritten; the files that count are those that the tasks
of the finished job return, and the others are deleted (`delete_others`).

    <prefix>/00000-<attempt>.parquet     timestamp column, outputs; a failed row has nulls
    <prefix>/failed/00000-<attempt>.parquet    number of the row, reason
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from fennel_core.connections import s3
from fennel_core.offline.rows import AT, REASON, ROW, failed_rows
from fennel_core.offline.spark import in_row_order
from fennel_core.offline.spark_layouts import SparkLayout
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FILE_ROWS: Final = 500_000
"""Rows of a result file: tens of megabytes, so that one PUT suffices."""
FAILED: Final = "failed"
NUMBER: Final = "row_number"
_SCHEMA: Final = "number int, object_key string, failed_key string, row_count long, failed long"


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One file of a result; `failed_key` is empty if none of its rows failed."""

    number: int
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


def write_result(
    frame: DataFrame, layout: SparkLayout, rows: int, place: ResultPlace
) -> ResultFiles:
    """Write finished rows, numbered 0 to `rows` - 1, and return the files."""
    partitions = max(1, -(-rows // FILE_ROWS))
    ordered = in_row_order(frame, rows, partitions)
    work = WriteWork(place, layout, rows, partitions)
    written = ordered.mapInArrow(work.run, _SCHEMA).toArrow()
    files = [ResultFile(**row) for row in written.to_pylist()]
    found = ResultFiles(tuple(sorted(files, key=lambda file: file.number)))
    assert found.row_count == rows, "a result has a row per row of the query"
    return found


def delete_others(client: S3Client, bucket: str, place: ResultPlace, result: ResultFiles) -> None:
    """Delete what repeated tasks of a finished job have left below its prefix."""
    for stored in s3.list_objects(client, bucket, f"{place.prefix}/"):
        if stored.key not in result.keys:
            s3.delete(client, bucket, stored.key)


@dataclass(frozen=True, slots=True)
class WriteWork:
    """Writes the file of a partition in a task; the rows come in order."""

    place: ResultPlace
    layout: SparkLayout
    rows: int
    partitions: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="fennel-result-")))
            file = _LocalFile(folder, self.layout, self.place.timestamp)
            stack.callback(file.close)
            for frame in self.layout.decode(batches):
                file.add(frame)
            if file.first is None:
                return
            file.close()
            number = file.first * self.partitions // self.rows
            made = self._upload(file, number)
            yield pa.RecordBatch.from_pylist([asdict(made)], schema=_MADE)

    def _upload(self, file: _LocalFile, number: int) -> ResultFile:
        place = self.place
        client, bucket = s3.client(place.settings), place.settings.s3_bucket
        name = f"{number:05}-{uuid.uuid4().hex}.parquet"
        key, failed_key = f"{place.prefix}/{name}", ""
        with file.path.open("rb") as body:
            s3.put_new(client, bucket, key, body)
        if file.failed:
            failed_key = f"{place.prefix}/{FAILED}/{name}"
            with file.failed_path.open("rb") as body:
                s3.put_new(client, bucket, failed_key, body)
        return ResultFile(number, key, failed_key, file.row_count, file.failed)


_MADE: Final = pa.schema(
    [
        ("number", pa.int32()),
        ("object_key", pa.string()),
        ("failed_key", pa.string()),
        ("row_count", pa.int64()),
        ("failed", pa.int64()),
    ]
)


class _LocalFile:
    """The rows of one partition in a local file, and the failed ones in another."""

    def __init__(self, folder: Path, layout: SparkLayout, timestamp: str) -> None:
        self.path, self.failed_path = folder / "rows", folder / "failed"
        self.first: int | None = None
        self.row_count = self.failed = 0
        self._last = -1
        outputs = [name for name in layout.columns if name not in {ROW, AT, REASON}]
        self._columns: Sequence[pl.Expr] = [pl.col(AT).alias(timestamp), *map(pl.col, outputs)]
        self._writer: pq.ParquetWriter | None = None
        self._failures: pq.ParquetWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Append rows, which follow those before."""
        if frame.is_empty():
            return
        numbers = frame[ROW]
        if self.first is None:
            self.first = self._last = numbers.item(0)
            self._last -= 1
        assert numbers.item(0) == self._last + 1, "the rows of a partition follow each other"
        assert (numbers.diff().drop_nulls() == 1).all(), "the rows of a batch follow each other"
        self._last = numbers.item(-1)
        self.row_count += frame.height
        self._writer = _written(self._writer, self.path, frame.select(self._columns))
        failed = failed_rows(frame.filter(pl.col(REASON).is_not_null())).rename({ROW: NUMBER})
        if not failed.is_empty():
            self.failed += failed.height
            self._failures = _written(self._failures, self.failed_path, failed)

    def close(self) -> None:
        """Finish the files; again without effect."""
        for writer in (self._writer, self._failures):
            if writer is not None:
                writer.close()


def _written(writer: pq.ParquetWriter | None, path: Path, frame: pl.DataFrame) -> pq.ParquetWriter:
    """Append rows to a file as a row group, and return its writer."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    opened = pq.ParquetWriter(path, table.schema, compression="zstd") if writer is None else writer
    opened.write_table(table)
    return opened
