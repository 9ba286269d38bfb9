"""Read one file as rows, from any row on, in pieces that fit into a transaction.

A file is a sequence of rows, numbered from 0: what is no row (a line that is not JSON, a line of
csv with too many fields) has a number, too. So the number of rows that were passed is all that is
needed to go on in the middle. Parquet skips row groups that were passed; csv and JSON lines are
read again from the start and their first rows dropped, because lines have no index.

Values of csv are text, typed by the dataset's fields as every other value is: what a value becomes
must not depend on the others in its column. An empty field without quotes is null.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from fennel_core.connections.errors import ConnectionsError
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
"""What is parsed of csv at once."""
LARGE_BLOCK_BYTES: Final = 2 * MESSAGE_BYTES + BLOCK_BYTES
"""Of files with rows that do not fit into a block: the longest row, each byte as Latin-1."""
STRADDLING: Final = "straddling"
"""What Arrow says if a row does not fit into a block."""
FIRST_LINE: Final = 2
READ_BYTES: Final = 4 * 1024 * 1024
"""What a request for a part of a file transfers."""
GZIP: Final = ".gz"
Plain = io.BufferedReader | gzip.GzipFile
BREAKS_OFF: Final = (ConnectionsError, EOFError, OSError, zlib.error)
"""What reading raises in the middle of a file: the rows before are read all the same."""


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
                yield from _lines(title, _plain(name, _buffered(body)), first)
            case "csv":
                yield from _csv(title, form, name, _buffered(body), first)
            case other:
                raise AssertionError(f"validation refuses the format {other}")
    except MemoryError:
        raise  # Arrow's is an error of Arrow, too; it says nothing about the file
    except (pa.ArrowException, MalformedData, csv.Error, zlib.error, EOFError) as wrong:
        raise FileUnreadable(str(wrong).partition("\n")[0]) from wrong
    except OSError as wrong:
        # Arrow reports damaged content as an I/O error; those of S3 have classes of their own.
        raise FileUnreadable(str(wrong).partition("\n")[0]) from wrong


def _buffered(body: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(body, READ_BYTES)


def _plain(name: str, body: io.BufferedReader) -> Plain:
    """Return a file from its start, decompressed."""
    body.seek(0)
    return gzip.GzipFile(fileobj=body, mode="rb") if name.endswith(GZIP) else body


def _parquet(title: str, body: io.RawIOBase, first: int) -> Iterator[FilePiece]:
    with open_parquet(body) as file:
        json_columns(_none(file))
        at = 0
        for group in range(file.num_row_groups):
            meta = file.metadata.row_group(group)
            count = meta.num_rows
            if at + count <= first:
                at += count
                continue
            fitting = TRANSACTION_BYTES * count // max(1, meta.total_byte_size)
            size = max(1, min(TRANSACTION_ROWS, fitting))
            for rows in file.iter_batches(batch_size=size, row_groups=[group]):
                kept = rows.slice(max(0, min(first - at, rows.num_rows)))
                at += rows.num_rows
                if kept.num_rows:
                    yield from _arrow_pieces(title, kept, at - kept.num_rows)


def open_parquet(body: io.RawIOBase) -> pq.ParquetFile:
    """Return a file of Parquet, which is read in small parts.

    INT96, the timestamps of Spark and Hive, has all years: as nanoseconds, those outside of 1677
    to 2262 would become other times.
    """
    return pq.ParquetFile(
        pa.PythonFile(body, mode="r"), buffer_size=READ_BYTES, coerce_int96_timestamp_unit="us"
    )


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


def _lines(title: str, body: Plain, first: int) -> Iterator[FilePiece]:
    numbered = itertools.islice(enumerate(_split(body)), first, None)
    values: list[bytes] = []
    start, size = first, 0
    failure: Exception | None = None
    try:
        for number, line in numbered:
            if values and (len(values) == TRANSACTION_ROWS or size + len(line) > TRANSACTION_BYTES):
                yield _line_piece(title, values, start, size)
                values, start, size = [], number, 0
            values.append(line)
            size += len(line)
    except BREAKS_OFF as failed:
        failure = failed
    if values:
        yield _line_piece(title, values, start, size)
    if failure is not None:
        raise failure


def _line_piece(title: str, values: list[bytes], first: int, size: int) -> FilePiece:
    # An empty line has a number and no row: it is left out, as at the end of many files.
    kept = [place for place, value in enumerate(values) if value.strip()]
    offsets = np.array(kept, dtype=np.int64) + first
    messages = MessageBatch(offsets, [values[place] for place in kept])
    parts = (MessageRows(title, messages),) if kept else ()
    return FilePiece(parts, first + len(values), size)


def _split(body: Plain) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long for a row is cut there."""
    rest, begins = b"", True
    while block := body.read1(READ_BYTES):
        whole = block.removeprefix(codecs.BOM_UTF8) if begins else rest + block
        begins = False
        *lines, last = whole.split(b"\n")
        yield from lines
        # What is kept of a long line is longer than a row may be, so it stays no row.
        rest = last[: MESSAGE_BYTES + 1]
    if rest:
        yield rest


@dataclass(slots=True)
class _InvalidLines:
    """Lines of csv with another number of fields, by the number of their row."""

    text: _CsvText
    found: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __call__(self, row: Any) -> str:
        line = row.text.encode("latin-1")
        reason = f"the line has {row.actual_columns} fields, not {row.expected_columns}"
        # Arrow counts from 1, and the first row is none of the file, or its header.
        self.add(row.number - FIRST_LINE, reason, line)
        return "skip"

    def add(self, number: int, reason: str, line: bytes) -> bool:
        """Note an invalid line; return False if it is no row: the end mark alone, or a row that a
        failure has cut.
        """
        body = line.removesuffix(self.text.mark)
        if len(body) < len(line):
            if self.text.failed is not None or not body:
                return False
            reason = "a quote that this row opens is not closed by the end of the file"
        self.found[number] = reason, body[:SHOWN_BYTES].decode("utf-8", errors="replace")
        return True

    def parts(self, title: str, first: int, end: int) -> Iterator[UnreadableRows]:
        """Yield the rows from `first` to `end`, those of one reason together."""
        by_reason: dict[str, list[int]] = {}
        for number in self.numbers(first, end):
            by_reason.setdefault(self.found[number][0], []).append(number)
        for reason, numbers in by_reason.items():
            texts = [self.found[number][1] for number in numbers]
            yield UnreadableRows(title, reason, texts, np.array(numbers, dtype=np.int64))

    def numbers(self, first: int, end: int) -> list[int]:
        """Return the invalid rows from `first` to `end`."""
        return [number for number in self.found if first <= number < end]

    def forget(self, end: int) -> None:
        """Forget the rows before `end`."""
        self.found = {number: row for number, row in self.found.items() if number >= end}


class _CsvText(io.RawIOBase):
    """A csv file for Arrow: from its first line on, and with a mark behind its end.

    Arrow stops at a text that is not UTF-8, so each byte is given as the character of Latin-1. It
    takes a line feed that begins a block for a part of the line end before, and drops it, also
    inside of a field: so no block ends between the two.

    Arrow takes what follows an open quote for one row, whatever it is: the mark is a line of its
    own only if all quotes are closed. Where reading fails, the rows before are read all the same:
    the mark is then in the row that was cut. `failed`: what happened.
    """

    def __init__(self, body: Plain) -> None:
        self.mark: Final = f"end of file {uuid4().hex}".encode()
        self.failed: Exception | None = None
        self._body, self._left, self._ended, self._marked = body, b"", False, False

    def readable(self) -> bool:
        return True

    def begin(self) -> bytes:
        """Skip a byte order mark and empty lines; return how the file begins then."""
        while len(self._left) < BLOCK_BYTES and self._fill():
            self._left = self._left.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
        return self._left[:BLOCK_BYTES]

    def put_first(self, line: bytes) -> None:
        """Put a line before what is left."""
        self._left = line + b"\n" + self._left

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "Arrow reads blocks"
        while len(self._left) <= size and self._fill():
            pass
        if self._ended and not self._marked:
            self._marked = True
            self._left += self.mark if self.failed is not None else b"\n" + self.mark
        at = size if self._left[:size].isascii() else size // 2
        if self._left[at - 1 : at + 1] == b"\r\n":
            at -= 1
        found, self._left = self._left[:at], self._left[at:]
        return found if found.isascii() else found.decode("latin-1").encode()

    def _fill(self) -> bool:
        """Read on; return False at the end."""
        if not self._ended:
            more = b""
            try:
                more = self._body.read1(READ_BYTES)
            except BREAKS_OFF as failed:
                self.failed = failed
            self._left += more
            self._ended = not more
        return not self._ended


def _csv(
    title: str, form: FileFormat, name: str, body: io.BufferedReader, first: int
) -> Iterator[FilePiece]:
    """Yield rows. Small blocks bound the memory; large ones are for files with large fields."""
    for block_bytes in (BLOCK_BYTES, LARGE_BLOCK_BYTES):
        try:
            for piece in _csv_blocks(title, form, _plain(name, body), first, block_bytes):
                yield piece
                first = piece.end
            return
        except pa.ArrowInvalid as wrong:
            if STRADDLING not in str(wrong) or block_bytes == LARGE_BLOCK_BYTES:
                raise


def _csv_blocks(
    title: str, form: FileFormat, body: Plain, first: int, block_bytes: int
) -> Iterator[FilePiece]:
    text = _CsvText(body)
    begin = text.begin()
    names = list(form.headers) or _header(begin, form.delimiter)
    if len(set(names)) < len(names):
        raise MalformedData("a column is there twice")
    if begin:
        if form.headers:
            # Arrow reads on until a row is valid, whatever it takes: this one is.
            text.put_first(b'""' + form.delimiter.encode() * (len(names) - 1))
        yield from _csv_rows(title, text, _arrow_csv(text, form, names, block_bytes), first)
    if text.failed is not None:
        raise text.failed


def _arrow_csv(
    text: _CsvText, form: FileFormat, names: list[str], block_bytes: int
) -> tuple[pcsv.CSVStreamingReader, _InvalidLines]:
    """Return a reader of texts, each byte one character, and where it puts invalid lines."""
    invalid = _InvalidLines(text)
    reader = pcsv.open_csv(
        pa.PythonFile(text, mode="r"),
        read_options=pcsv.ReadOptions(
            use_threads=False,
            block_size=block_bytes,
            column_names=names,
        ),
        parse_options=pcsv.ParseOptions(
            delimiter=form.delimiter, newlines_in_values=True, invalid_row_handler=invalid
        ),
        convert_options=pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return reader, invalid


def _csv_rows(
    title: str, text: _CsvText, opened: tuple[pcsv.CSVStreamingReader, _InvalidLines], first: int
) -> Iterator[FilePiece]:
    reader, invalid = opened
    at = -1
    for texts in reader:
        rows = pa.RecordBatch.from_arrays([_bytes(c) for c in texts.columns], texts.schema.names)
        numbers = _numbers(at, rows.num_rows, invalid.found)
        if rows.num_rows:
            at = int(numbers[-1]) + 1
            last = rows.slice(rows.num_rows - 1).to_pylist()[0]
            if (list(last.values())[-1] or b"").endswith(text.mark):
                shown = [value for value in last.values() if value is not None]
                at -= not invalid.add(at - 1, "", b",".join(shown))
                rows, numbers = rows.slice(0, rows.num_rows - 1), numbers[:-1]
        while at in invalid.found:
            at += 1
        kept = int(np.searchsorted(numbers, first))
        yield from _csv_pieces(title, rows.slice(kept), numbers[kept:], invalid, (first, at))
        invalid.forget(at)
        first = max(first, at)
    end = max(invalid.found, default=-1) + 1
    yield from _csv_pieces(title, None, np.array([], dtype=np.int64), invalid, (first, end))


def _csv_pieces(
    title: str,
    rows: pa.RecordBatch | None,
    numbers: np.ndarray,
    invalid: _InvalidLines,
    between: tuple[int, int],
) -> Iterator[FilePiece]:
    """Yield the rows between two numbers, in pieces that fit into a transaction, or of one row."""
    first, end = between
    refused = tuple(invalid.parts(title, first, end))
    if not len(numbers) and not refused:
        return
    size_bytes = sum(len(text) for part in refused for text in part.texts)
    size_bytes += rows.nbytes if rows is not None and len(numbers) else 0
    if end - first > TRANSACTION_ROWS or (size_bytes > TRANSACTION_BYTES and end - first > 1):
        middle = (first + end) // 2
        cut = int(np.searchsorted(numbers, middle))
        left = None if rows is None else rows.slice(0, cut)
        right = None if rows is None else rows.slice(cut)
        yield from _csv_pieces(title, left, numbers[:cut], invalid, (first, middle))
        yield from _csv_pieces(title, right, numbers[cut:], invalid, (middle, end))
        return
    good = () if rows is None or not len(numbers) else (ArrowRows(title, rows, numbers),)
    yield FilePiece((*good, *refused), end, size_bytes)


def _bytes(column: pa.StringArray) -> pa.BinaryArray:
    """Return the bytes that were read as Latin-1."""
    lengths = pc.utf8_length(column).fill_null(0).to_numpy()
    if int(lengths.sum()) == (pc.sum(pc.binary_length(column)).as_py() or 0):
        return column.view(pa.binary())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    given = pc.drop_null(column)
    one = pa.ListArray.from_arrays(pa.array([0, len(given)], pa.int32()), given)
    joined = pc.binary_join(one, "")[0].as_py().encode("latin-1")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    values = pa.Array.from_buffers(pa.binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), values, pa.scalar(None, pa.binary()))


def _numbers(first: int, count: int, invalid: dict[int, tuple[str, str]]) -> np.ndarray:
    """Return the numbers of `count` good rows from row `first` on, past those of invalid ones."""
    numbers = np.arange(first, first + count + len(invalid), dtype=np.int64)
    taken = np.isin(numbers, list(invalid), invert=True)
    return numbers[taken][:count]


def _header(begin: bytes, delimiter: str) -> list[str]:
    """Return the column names in the first line of a csv file; none of an empty file."""
    text = begin.decode("utf-8", errors="replace")
    return next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
