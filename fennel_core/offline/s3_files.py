"""Files of a user's bucket: which there are, and their rows as JSON values by column.

Theory. The objects below a prefix are read in the order of their names; those whose name begins
with `_` or `.` are markers of other programs and left out, as Spark does. A file is read as a
stream of batches of `BATCH_ROWS`, so its size does not matter. Values are those that a request
could send itself, and the same code converts them to the types of features (`query.values`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fennel_core.connections import s3
from fennel_core.offline.buckets import Bucket
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_files import INPUT_ROWS
from fennel_core.offline.s3_places import S3Source

BATCH_ROWS: Final = INPUT_ROWS
BUFFER_BYTES: Final = 4 << 20
"""What one request to S3 reads of a file of text."""
FILES_MAX: Final = 100_000
FIELD_BYTES: Final = 16 << 20
"""The longest cell of csv, and the longest line of JSON."""
Columns = Mapping[str, Sequence[Any]]


class InputInvalid(OfflineError):
    """Files of the input cannot be read as rows of the request. Correct them, and send it again."""

    code = "offline-input-invalid"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An object of the input."""

    key: str
    size_bytes: int


def list_files(bucket: Bucket, source: S3Source) -> tuple[SourceFile, ...]:
    """Return the files of an input in their order.

    Raises `BucketRefused`, `InputInvalid` without any or with too many, and botocore's errors.
    """
    found: list[SourceFile] = []
    with bucket.checked("listing"):
        pages = bucket.client().get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=source.bucket, Prefix=source.prefix):
            stored = page.get("Contents", [])
            found += [SourceFile(one["Key"], one["Size"]) for one in stored if _is_data(one["Key"])]
            if len(found) > FILES_MAX:
                raise InputInvalid(
                    f"bucket `{source.bucket}` has more than {FILES_MAX} objects below "
                    f"`{source.prefix}`; name a longer prefix, or store fewer, larger files"
                )
    files = tuple(sorted((each for each in found if each.size_bytes), key=lambda each: each.key))
    if not files:
        raise InputInvalid(
            f"bucket `{source.bucket}` has no file with rows below `{source.prefix}`; "
            "correct the prefix, or store the rows there"
        )
    return files


def _is_data(key: str) -> bool:
    name = key.rpartition("/")[2]
    return bool(name) and name[0] not in "_."


def file_columns(bucket: Bucket, source: S3Source, file: SourceFile) -> list[str]:
    """Return the names of the columns of a file; raises as `file_rows`."""
    with _readable(bucket, file), _opened(bucket, file) as body:
        match source.format:
            case "parquet":
                return list(pq.ParquetFile(body).schema_arrow.names)
            case "csv":
                return list(source.headers or next(filter(None, _csv_lines(body, source)), []))
            case _:
                line = body.readline(FIELD_BYTES)
                return list(msgspec.json.decode(line, type=dict[str, Any]))


def file_rows(
    bucket: Bucket, source: S3Source, file: SourceFile, columns: Sequence[str]
) -> Iterator[Columns]:
    """Yield the rows of a file in batches, `columns` by name; a column that it lacks is refused.

    Raises `BucketRefused`, `InputInvalid` for a file of another format, and botocore's errors.
    """
    with _readable(bucket, file), _opened(bucket, file) as body:
        match source.format:
            case "parquet":
                yield from _parquet_rows(body, file, columns)
            case "csv":
                yield from _csv_rows(body, source, columns)
            case other:
                assert other == "json", "other formats are refused before"
                yield from _json_rows(body, columns)


@contextmanager
def _opened(bucket: Bucket, file: SourceFile) -> Iterator[BinaryIO]:
    raw = s3.RangedObject(bucket.client(), bucket.name, file.key, file.size_bytes)
    with io.BufferedReader(raw, BUFFER_BYTES) as body:
        yield cast(BinaryIO, body)


@contextmanager
def _readable(bucket: Bucket, file: SourceFile) -> Iterator[None]:
    """Raise `InputInvalid` for a file that is not what the request says."""
    try:
        with bucket.checked("reading"):
            yield
    except (
        pa.ArrowException,
        csv.Error,
        UnicodeDecodeError,
        msgspec.DecodeError,
        _Malformed,
    ) as wrong:
        raise InputInvalid(
            f"file `{file.key}` of bucket `{bucket.name}` cannot be read: {wrong}. "
            "Correct it, or the format of `input_s3`"
        ) from wrong


class _Malformed(InputInvalid):
    """A line does not have the form of its format."""


def _parquet_rows(body: BinaryIO, file: SourceFile, columns: Sequence[str]) -> Iterator[Columns]:
    table = pq.ParquetFile(body)
    _require(columns, table.schema_arrow.names)
    assert file.size_bytes, "an empty object is no file"
    for batch in table.iter_batches(BATCH_ROWS, columns=list(columns)):
        yield {name: _json_values(batch.column(name)) for name in columns}


def _csv_rows(body: BinaryIO, source: S3Source, columns: Sequence[str]) -> Iterator[Columns]:
    lines = filter(None, _csv_lines(body, source))
    names = list(source.headers or next(lines, []))
    _require(columns, names)
    places = [names.index(name) for name in columns]
    number = 0
    while batch := list(islice(lines, BATCH_ROWS)):
        for line in batch:
            number += 1
            if len(line) != len(names):
                raise _Malformed(f"row {number} has {len(line)} cells instead of {len(names)}")
        yield {
            name: [line[place] for line in batch]
            for name, place in zip(columns, places, strict=True)
        }


def _csv_lines(body: BinaryIO, source: S3Source) -> Iterator[list[str]]:
    csv.field_size_limit(FIELD_BYTES)
    # A text with a byte order mark is what some spreadsheets write.
    text = io.TextIOWrapper(body, encoding="utf-8-sig", newline="")
    return csv.reader(text, delimiter=source.delimiter, strict=True)


def _json_rows(body: BinaryIO, columns: Sequence[str]) -> Iterator[Columns]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    lines = filter(bytes.strip, iter(lambda: body.readline(FIELD_BYTES), b""))
    while batch := list(map(decode, islice(lines, BATCH_ROWS))):
        for name in columns:
            if not any(name in row for row in batch):
                raise _Malformed(f"its rows have no column `{name}`")
        yield {name: [row.get(name) for row in batch] for name in columns}


def _require(columns: Sequence[str], found: Sequence[str]) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        raise _Malformed(f"it has no column `{missing[0]}`; its columns are {', '.join(found)}")


def _json_values(column: pa.Array) -> list[Any]:
    """Return values of Parquet as JSON has them."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    plain = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, _is_text
    return values if any(is_(column.type) for is_ in plain) else list(map(_json_value, values))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _json_value(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {name: _json_value(each) for name, each in value.items()}
        case list() if value and isinstance(value[0], tuple):
            return {name: _json_value(each) for name, each in value}  # a map
        case list():
            return list(map(_json_value, value))
        case _:
            return value
