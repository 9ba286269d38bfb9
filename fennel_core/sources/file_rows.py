"""Read one file as rows, from any row on, in pieces that fit into a transaction.

A file is a sequence of rows, numbered from 0: what is no row (a line that is not JSON, a line of
csv with too many fields) has a number, too. So the number of rows that were passed is all that is
needed to go on in the middle. Parquet skips row groups that were passed; csv and JSON lines are
read again from the start and their first rows dropped, because lines have no index.

Values of csv are text, typed by the dataset's fields as every other value is: what a value becomes
must not depend on the others in its column. An empty field without quotes is null.
"""

from __future__ import annotations

import csv
import io
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from fennel_core.sources.errors import SourceError
from fennel_core.sources.messages import (
    MESSAGE_BYTES,
    SHOWN_BYTES,
    TRANSACTION_BYTES,
    TRANSACTION_ROWS,
    MessageBatch,
)
from fennel_core.sources.read_rows import ArrowRows, MessageRows, ReadPart, UnreadableRows
from fennel_core.wire.arrow_json import json_columns
from fennel_core.wire.errors import MalformedData

BLOCK_BYTES: Final = 1024 * 1024
"""What is read of csv and lines at once."""
READ_BYTES: Final = 4 * 1024 * 1024
"""What a request for a part of a file transfers."""
GZIP: Final = ".gz"


class FileUnreadable(SourceError):
    """The file is not of its format, from some row on; it becomes a dead letter there."""

    code: ClassVar[str] = "source-file-unreadable"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """`kind`: parquet, json (lines) or csv. `headers`: of csv files without a line of their own."""

    kind: str
    delimiter: str = ","
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Rows of a file, up to row `end`."""

    parts: tuple[ReadPart, ...]
    end: int
    size_bytes: int


def file_pieces(
    form: FileFormat, title: str, name: str, body: io.RawIOBase, first: int
) -> Iterator[FilePiece]:
    """Yield the rows of a file from row `first` on. Blocks; raises `FileUnreadable`.

    `name`: its key, whose ending says whether it is compressed.
    """
    try:
        match form.kind:
            case "parquet":
                yield from _parquet(title, body, first)
            case "json":
                yield from _lines(title, _plain(name, body), first)
            case "csv":
                yield from _csv(title, form, name, body, first)
            case other:
                raise AssertionError(f"validation refuses the format {other}")
    except (pa.ArrowException, MalformedData, csv.Error, zlib.error) as wrong:
        raise FileUnreadable(str(wrong).partition("\n")[0]) from wrong
    except OSError as wrong:
        # Arrow reports damaged content as an I/O error; those of S3 have classes of their own.
        raise FileUnreadable(str(wrong).partition("\n")[0]) from wrong


def _plain(name: str, body: io.RawIOBase) -> Any:
    """Return a file from its start, decompressed."""
    body.seek(0)
    whole = io.BufferedReader(body, READ_BYTES)
    if not name.endswith(GZIP):
        return whole
    return pa.CompressedInputStream(pa.PythonFile(whole, mode="r"), "gzip")


def _parquet(title: str, body: io.RawIOBase, first: int) -> Iterator[FilePiece]:
    with pq.ParquetFile(pa.PythonFile(body, mode="r"), buffer_size=READ_BYTES) as file:
        json_columns(_none(file))
        at = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if at + count <= first:
                at += count
                continue
            for rows in file.iter_batches(batch_size=TRANSACTION_ROWS, row_groups=[group]):
                kept = rows.slice(max(0, min(first - at, rows.num_rows)))
                at += rows.num_rows
                if kept.num_rows:
                    yield from _arrow_pieces(title, kept, at - kept.num_rows)


def _none(file: pq.ParquetFile) -> pa.RecordBatch:
    """Return a batch without rows; columns that have no JSON form are found by it."""
    schema = file.schema_arrow
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _arrow_pieces(title: str, rows: pa.RecordBatch, first: int) -> Iterator[FilePiece]:
    """Yield rows in pieces of at most `TRANSACTION_BYTES`, or one row."""
    if rows.nbytes > TRANSACTION_BYTES and rows.num_rows > 1:
        middle = rows.num_rows // 2
        yield from _arrow_pieces(title, rows.slice(0, middle), first)
        yield from _arrow_pieces(title, rows.slice(middle), first + middle)
        return
    places = np.arange(first, first + rows.num_rows, dtype=np.int64)
    yield FilePiece((ArrowRows(title, rows, places),), first + rows.num_rows, rows.nbytes)


def _lines(title: str, body: Any, first: int) -> Iterator[FilePiece]:
    numbered = itertools.islice(enumerate(_split(body)), first, None)
    values: list[bytes] = []
    start, size = first, 0
    for number, line in numbered:
        if values and (len(values) == TRANSACTION_ROWS or size + len(line) > TRANSACTION_BYTES):
            yield _line_piece(title, values, start, size)
            values, start, size = [], number, 0
        values.append(line)
        size += len(line)
    if values:
        yield _line_piece(title, values, start, size)


def _line_piece(title: str, values: list[bytes], first: int, size: int) -> FilePiece:
    # An empty line has a number and no row: it is left out, as at the end of many files.
    kept = [place for place, value in enumerate(values) if value.strip()]
    offsets = np.array(kept, dtype=np.int64) + first
    messages = MessageBatch(offsets, [values[place] for place in kept])
    parts = (MessageRows(title, messages),) if kept else ()
    return FilePiece(parts, first + len(values), size)


def _split(body: Any) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long for a row is cut there."""
    rest = b""
    while block := body.read(BLOCK_BYTES):
        *lines, last = (rest + block).split(b"\n")
        yield from lines
        # What is kept of a long line is longer than a row may be, so it stays no row.
        rest = last[: MESSAGE_BYTES + 1]
    if rest:
        yield rest


@dataclass(slots=True)
class _InvalidLines:
    """Lines of csv with another number of fields, by the number of their row."""

    first_line: int
    found: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __call__(self, row: Any) -> str:
        number = row.number - self.first_line
        reason = f"the line has {row.actual_columns} fields, not {row.expected_columns}"
        self.found[number] = (reason, str(row.text)[:SHOWN_BYTES])
        return "skip"

    def taken(self, title: str, until: int) -> Iterator[UnreadableRows]:
        """Yield the lines before row `until`, and forget them."""
        for number in sorted(n for n in self.found if n < until):
            reason, text = self.found.pop(number)
            yield UnreadableRows(title, reason, [text], np.array([number], dtype=np.int64))


def _csv(
    title: str, form: FileFormat, name: str, body: io.RawIOBase, first: int
) -> Iterator[FilePiece]:
    begin = _head(name, body)
    names = list(form.headers) or _header(begin, form.delimiter)
    if not names or not begin:
        return
    if len(set(names)) < len(names):
        raise MalformedData("a column is there twice")
    skipped = 0 if form.headers else 1
    invalid = _InvalidLines(1 + skipped)
    reader = pc.open_csv(
        _plain(name, body),
        read_options=pc.ReadOptions(
            use_threads=False,
            block_size=BLOCK_BYTES,
            column_names=names,
            skip_rows_after_names=skipped,
        ),
        parse_options=pc.ParseOptions(
            delimiter=form.delimiter, newlines_in_values=True, invalid_row_handler=invalid
        ),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    at = 0
    for rows in reader:
        for offset in range(0, rows.num_rows, TRANSACTION_ROWS):
            part = rows.slice(offset, TRANSACTION_ROWS)
            numbers = _numbers(at, part.num_rows, invalid.found)
            end = int(numbers[-1]) + 1
            kept = int(np.searchsorted(numbers, first))
            refused = tuple(r for r in invalid.taken(title, end) if r.places[0] >= first)
            at = end
            good = ArrowRows(title, part.slice(kept), numbers[kept:])
            parts: tuple[ReadPart, ...] = (good, *refused) if kept < part.num_rows else refused
            if parts:
                yield FilePiece(parts, end, part.nbytes)
    rest = tuple(r for r in invalid.taken(title, 1 << 62) if r.places[0] >= first)
    if rest:
        yield FilePiece(rest, int(rest[-1].places[0]) + 1, 0)


def _numbers(first: int, count: int, invalid: dict[int, tuple[str, str]]) -> np.ndarray:
    """Return the numbers of `count` good rows from row `first` on, past those of invalid ones."""
    numbers = np.arange(first, first + count + len(invalid), dtype=np.int64)
    taken = np.isin(numbers, list(invalid), invert=True)
    return numbers[taken][:count]


def _head(name: str, body: io.RawIOBase) -> bytes:
    """Return how a file begins, decompressed."""
    body.seek(0)
    found = body.read(BLOCK_BYTES) or b""
    if not name.endswith(GZIP) or not found:
        return found
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(found, BLOCK_BYTES)


def _header(begin: bytes, delimiter: str) -> list[str]:
    """Return the column names in the first line of a csv file; none of an empty file."""
    text = begin.decode("utf-8-sig", errors="replace")
    return next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
