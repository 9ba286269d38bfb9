"""Write a dataset to a folder or a bucket, as Parquet or as a Delta table, without Spark.

Theory. Each part of a read becomes one file, so an export needs the memory of one part. Files have
names that no other export uses, and the last object that is written makes them a whole: `_SUCCESS`,
or version 0 of the table's log. A reader that waits for it sees all rows or none; an export that
fails deletes what it wrote.

The log of a Delta table names its files and its schema, which is Spark's own in JSON (Delta's
protocol, reader version 1, writer version 2).
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core import __version__
from fennel_core.dataframes.datasource import OpenedRead, schema_of
from fennel_core.dataframes.part_rows import rows_of_part
from fennel_core.dataframes.parts import parts_of

WRITTEN_ROWS: Final = 100_000
"""Rows of a row group; smaller batches are collected first."""
SUCCESS: Final = "_SUCCESS"
DELTA_LOG: Final = "_delta_log/00000000000000000000.json"
TYPES: Final = {"compression": "zstd", "coerce_timestamps": "us"}


class ExportFormat(StrEnum):
    """What is written."""

    PARQUET = "parquet"
    DELTA = "delta"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export."""

    name: str
    rows: int
    size_bytes: int


class ExportPlace(Protocol):
    """A folder or a prefix of a bucket. Every method raises ExportFailed."""

    def require_empty(self) -> None:
        """Raise ExportFailed if anything is there."""
        ...

    def write(self, name: str, content: Path | bytes) -> None:
        """Write an object that does not exist yet."""
        ...

    def remove(self, name: str) -> None:
        """Remove what was written."""
        ...


def export(
    opened: OpenedRead, place: ExportPlace, kind: ExportFormat, part_rows: int, now: datetime
) -> tuple[ExportedFile, ...]:
    """Write all rows of a read and return the files. Raises ExportFailed, ReadFailed.

    `now`: when the export began.
    """
    place.require_empty()
    run = uuid.uuid4()
    schema = schema_of(opened.plan)
    files: list[ExportedFile] = []
    try:
        for made in _written(opened, place, schema, part_rows, run):
            files.append(made)  # noqa: PERF402  # those before a failure are removed
        match kind:
            case ExportFormat.PARQUET:
                place.write(SUCCESS, b"")
            case ExportFormat.DELTA:
                place.write(DELTA_LOG, delta_log(files, schema, run, now))
    except BaseException:
        for each in files:
            place.remove(each.name)
        raise
    return tuple(files)


def _written(
    opened: OpenedRead, place: ExportPlace, schema: StructType, part_rows: int, run: uuid.UUID
) -> Iterator[ExportedFile]:
    """Write the files that have rows, and at least one, which has the schema."""
    plan, arrow = opened.plan, to_arrow_schema(schema, timezone="UTC")
    parts = list(parts_of(plan.read, (), plan.topic, part_rows))
    with tempfile.TemporaryDirectory(prefix="fennel-export-") as folder:
        number = 0
        for each in [*parts, None]:
            batches = iter(()) if each is None else rows_of_part(opened.versions, plan.read, each)
            path = Path(folder) / "part.parquet"
            rows = _write_file(path, batches, arrow)
            if rows or (each is None and number == 0):
                name = f"part-{number:05}-{run}.parquet"
                size = path.stat().st_size
                place.write(name, path)
                yield ExportedFile(name, rows, size)
                number += 1


def _write_file(path: Path, batches: Iterator[pl.DataFrame], schema: pa.Schema) -> int:
    rows = 0
    with pq.ParquetWriter(path, schema, **TYPES) as writer:
        for table in _collected(batches):
            writer.write_table(table.to_arrow().cast(schema))
            rows += table.height
    return rows


def _collected(batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows of batches, `WRITTEN_ROWS` or more at once."""
    waiting: list[pl.DataFrame] = []
    for batch in batches:
        if not batch.is_empty():
            waiting.append(batch)
        if sum(each.height for each in waiting) >= WRITTEN_ROWS:
            yield pl.concat(waiting)
            waiting = []
    if waiting:
        yield pl.concat(waiting)


def delta_log(
    files: list[ExportedFile], schema: StructType, run: uuid.UUID, now: datetime
) -> bytes:
    """Return version 0 of the log of a Delta table that has these files."""
    at_ms = int(now.timestamp() * 1000)
    added: list[dict[str, object]] = [
        {
            "add": {
                "path": file.name,
                "partitionValues": {},
                "size": file.size_bytes,
                "modificationTime": at_ms,
                "dataChange": True,
                "stats": json.dumps({"numRecords": file.rows}),
            }
        }
        for file in files
    ]
    actions: list[dict[str, object]] = [
        {
            "commitInfo": {
                "timestamp": at_ms,
                "operation": "WRITE",
                "operationParameters": {"mode": "ErrorIfExists", "partitionBy": "[]"},
                "engineInfo": f"fennel-core/{__version__}",
            }
        },
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": str(run),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.json(),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": at_ms,
            }
        },
        *added,
    ]
    return "".join(f"{json.dumps(action)}\n" for action in actions).encode()
