"""Bring rows from a user's bucket into the form of a stored input, once per run.

Theory. The number of a row is its place in the files, in the order of their names, which is known
when all files were read. So a first Spark job reads each file as one stream, converts its values to
the types of the features, and writes them as parts with the time and inputs of each row; its rows
are what the driver needs to know: the parts, how many rows they have, and the bounds of their
times.
The query then reads parts as it reads an input that came with the request (`request_input`).

What is wrong with a file is a result of its task, not its failure: it fails the request, and no run
repeats it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from fennel_core.connections import s3
from fennel_core.offline.buckets import Bucket, BucketRefused
from fennel_core.offline.request_body import without_no_times
from fennel_core.offline.request_files import INPUT_ROWS
from fennel_core.offline.request_input import InputPart
from fennel_core.offline.rows import AT
from fennel_core.offline.s3_files import Columns, InputInvalid, SourceFile, file_rows
from fennel_core.offline.s3_places import S3Source
from fennel_core.offline.task_folders import task_folder
from fennel_core.query.errors import QueryError
from fennel_core.query.values import input_column
from fennel_core.settings.model import Settings
from fennel_core.vocab.dtypes import Dtype, List, Map, Str, Struct, Timestamp, base, optional
from fennel_core.vocab.ids import Micros

PART_ROWS: Final = 500_000
TASKS: Final = 64
"""Tasks that read files; each reads many, one after the other."""
_STAGED: Final = (
    "file int, part int, object_key string, row_count long, earliest long, latest long,"
    " code string, reason string"
)


@dataclass(frozen=True, slots=True)
class Staged:
    """A part of a file, or why the file cannot be read (`code` and `reason`)."""

    file: int
    part: int
    object_key: str = ""
    row_count: int = 0
    earliest: int | None = None
    latest: int | None = None
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StagedInput:
    """The parts of an input in order, and the latest time of a row."""

    parts: tuple[InputPart, ...]
    latest: Micros

    @property
    def row_count(self) -> int:
        return sum(part.row_count for part in self.parts)


@dataclass(frozen=True, slots=True)
class StageWork:
    """Reads files in a task; the rows of its own input are their numbers. `prefix`: of the parts,
    in the bucket of the platform. `types`: of the inputs by name.
    """

    settings: Settings
    bucket: Bucket
    source: S3Source
    files: tuple[SourceFile, ...]
    types: Mapping[str, Dtype]
    timestamp: str
    prefix: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for staged in self.staged(number):
                    yield pa.RecordBatch.from_pylist([asdict(staged)], schema=_SCHEMA)

    def staged(self, number: int) -> Iterator[Staged]:
        """Write the parts of file `number`, and yield them."""
        file = self.files[number]
        columns = {name: self.source.columns.get(name, name) for name in self.types}
        wanted = list(dict.fromkeys([self.timestamp, *columns.values()]))
        writer = _PartWriter(self, number)
        try:
            first = 0
            for rows in file_rows(self.bucket, self.source, file, wanted):
                try:
                    typed = self._typed(rows, columns)
                except (QueryError, json.JSONDecodeError) as wrong:
                    raise InputInvalid(
                        f"file `{file.key}` of bucket `{self.bucket.name}`, rows from {first} on: "
                        f"{wrong}. Correct the file, and send the request again"
                    ) from wrong
                yield from writer.add(typed)
                first += typed.height
            yield from writer.finish()
        except (InputInvalid, BucketRefused) as wrong:
            yield Staged(number, 0, code=wrong.code, reason=str(wrong))
        finally:
            writer.close()

    def _typed(self, rows: Columns, columns: Mapping[str, str]) -> pl.DataFrame:
        found = {AT: (self.timestamp, optional(Timestamp()))}
        found |= {name: (columns[name], dtype) for name, dtype in self.types.items()}
        is_csv = self.source.format == "csv"
        made: list[pl.Series] = []
        for name, (column, dtype) in found.items():
            values = rows[column]
            if is_csv:
                values = _of_cells(values, dtype)
            if name == AT:
                values = without_no_times(values)
            made.append(input_column(values, dtype, column).series.alias(name))
        return pl.DataFrame(made)


class _PartWriter:
    """Writes the rows of one file as parts, whose row groups are full but for the last."""

    def __init__(self, work: StageWork, file: int) -> None:
        self._work, self._file = work, file
        self._stack = ExitStack()
        self._path = self._stack.enter_context(task_folder("input")) / "part"
        self._waiting: pl.DataFrame | None = None
        self._writer: pq.ParquetWriter | None = None
        self._staged = Staged(file, 0)

    def add(self, rows: pl.DataFrame) -> Iterator[Staged]:
        """Append rows, and yield a part that is full."""
        waiting = rows if self._waiting is None else pl.concat([self._waiting, rows])
        while waiting.height >= INPUT_ROWS:
            self._write(waiting[:INPUT_ROWS])
            waiting = waiting[INPUT_ROWS:]
            if self._staged.row_count >= PART_ROWS:
                yield self._end()
        self._waiting = waiting

    def finish(self) -> Iterator[Staged]:
        """Yield the last part, if it has rows."""
        if self._waiting is not None and not self._waiting.is_empty():
            self._write(self._waiting)
        if self._staged.row_count:
            yield self._end()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stack.close()

    def _write(self, rows: pl.DataFrame) -> None:
        table = rows.to_arrow()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._writer.write_table(table, row_group_size=INPUT_ROWS)
        times = [each for each in (self._staged.earliest, self._staged.latest) if each is not None]
        known = rows[AT].drop_nulls().to_physical()
        times += [int(end) for end in (known.min(), known.max()) if isinstance(end, int)]
        self._staged = replace(
            self._staged,
            row_count=self._staged.row_count + rows.height,
            earliest=min(times, default=None),
            latest=max(times, default=None),
        )

    def _end(self) -> Staged:
        assert self._writer is not None, "a part has rows"
        self._writer.close()
        self._writer = None
        settings = self._work.settings
        name = f"{self._file:06}-{self._staged.part:06}-{uuid.uuid4().hex}.parquet"
        made = replace(self._staged, object_key=f"{self._work.prefix}/{name}")
        with self._path.open("rb") as body:
            s3.put_new(s3.client(settings), settings.s3_bucket, made.object_key, body)
        self._staged = Staged(self._file, made.part + 1)
        return made


def stage(spark: SparkSession, work: StageWork) -> StagedInput:
    """Read all files; raises `InputInvalid` and `BucketRefused` for the first that cannot be."""
    numbers = spark.range(0, len(work.files), 1, min(len(work.files), TASKS))
    rows = numbers.mapInArrow(work.run, _STAGED).toArrow().to_pylist()
    return staged_input([Staged(**row) for row in rows])


def staged_input(found: Sequence[Staged]) -> StagedInput:
    """Return the parts in order, with the number of the first row of each."""
    ordered = sorted(found, key=lambda each: (each.file, each.part))
    for each in ordered:
        if each.code:
            refused = InputInvalid if each.code == InputInvalid.code else BucketRefused
            raise refused(each.reason)
    parts: list[InputPart] = []
    first = 0
    for each in ordered:
        parts.append(InputPart(each.object_key, first, each.row_count))
        first += each.row_count
    if not parts:
        raise InputInvalid("the files of the input have no rows; store at least one")
    latest = max((each.latest for each in ordered if each.latest is not None), default=0)
    return StagedInput(tuple(parts), Micros(latest))


def _of_cells(cells: Sequence[str], dtype: Dtype) -> Sequence[Any]:
    """Return cells of csv as JSON values: an empty one is null, unless it must be a text."""
    kind = base(dtype)
    if isinstance(kind, Str) and kind == dtype:
        return cells
    parsed = json.loads if isinstance(kind, List | Map | Struct) else str
    return [parsed(cell) if cell else None for cell in cells]


_SCHEMA: Final = pa.schema(
    [
        ("file", pa.int32()),
        ("part", pa.int32()),
        ("object_key", pa.string()),
        ("row_count", pa.int64()),
        ("earliest", pa.int64()),
        ("latest", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
    ]
)
