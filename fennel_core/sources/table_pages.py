"""Cut the rows of a page of a table into batches that are written, each with its cursor.

A page arrives in order, as Arrow batches of bounded size, with one row more than it may have if the
table has more. Each batch becomes one transaction; the last one of the last page completes the
read. That is known only at its end, so one batch is always held back. The row behind a batch also
says whether a value was read in part: only then does the place in the file matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from fennel_core.connections.external_postgres import ExternalColumn
from fennel_core.sources.errors import SourceError
from fennel_core.sources.read_rows import ArrowRows, RowBatch, StreamPlace
from fennel_core.sources.table_reads import (
    BLOCK,
    FILE,
    OFFSET,
    OWN,
    PLACE,
    VALUE,
    WRITER,
    ReadLevel,
    TableCursor,
    TableRead,
    Witness,
    encode,
    following,
    moved,
)


class PageUnordered(SourceError):
    """The rows of a page did not arrive in its order; nothing of the batch was written."""

    code = "source-page-unordered"


@dataclass(frozen=True, slots=True)
class PageChunk:
    """Rows of a page that are written together. `complete`: no more are left in the table.

    `parted`: the next row has the value of the last one.
    """

    rows: pa.RecordBatch
    complete: bool
    parted: bool


def short_floats(rows: pa.RecordBatch, columns: Iterable[ExternalColumn]) -> pa.RecordBatch:
    """Return rows whose numbers of four bytes have no digits that their column does not have."""
    for column in columns:
        if column.type == "real":
            at = rows.schema.get_field_index(column.name)
            shortest = rows.column(at).cast(pa.float32()).cast(pa.string()).cast(pa.float64())
            rows = rows.set_column(at, column.name, shortest)
    return rows


def even_parts(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in as few parts of at most `most` as there can be, of one size."""
    parts = -(-batch.num_rows // most)
    ends = [batch.num_rows * part // parts for part in range(parts + 1)]
    for start, end in pairwise(ends):
        yield batch.slice(start, end - start)


def chunks(
    batches: Iterator[pa.RecordBatch], most: int, file: int, title: str
) -> Iterator[PageChunk]:
    """Yield the first `most` rows of a page of the table's `file`.

    Raises `PageUnordered` and `TableMoved` before it yields the rows that they are about.
    """
    held: pa.RecordBatch | None = None
    place = 1
    for batch in _checked(batches, file, title):
        kept = batch.slice(0, max(0, most + 1 - place))
        place += batch.num_rows
        if held is not None:
            yield PageChunk(held, complete=False, parted=_value(held, -1) == _value(batch, 0))
        if kept.num_rows < batch.num_rows:  # there is a row more than the page may have
            if kept.num_rows:
                behind = _value(batch, kept.num_rows)
                yield PageChunk(kept, complete=False, parted=_value(kept, -1) == behind)
            return
        held = kept
    if held is not None:
        yield PageChunk(held, complete=True, parted=False)


def _checked(batches: Iterator[pa.RecordBatch], file: int, title: str) -> Iterator[pa.RecordBatch]:
    place = 1
    for batch in batches:
        if not batch.num_rows:
            continue
        places = batch.column(PLACE).to_numpy()
        if not (places == np.arange(place, place + batch.num_rows)).all():
            raise PageUnordered(
                f"a page was read out of order at row {place}; read the source again"
            )
        files = batch.column(FILE)
        if files.null_count or not (files.to_numpy() == file).all():
            raise moved(title)
        place += batch.num_rows
        yield batch


def _value(rows: pa.RecordBatch, at: int) -> int:
    return int(rows.column(VALUE)[at].as_py())


def row_batch(
    chunk: PageChunk, read: TableRead, title: str, after: StreamPlace, before: TableCursor | None
) -> tuple[RowBatch, TableCursor]:
    """Return the rows behind `after` as they are written, and the cursor behind them."""
    rows = chunk.rows
    [last] = rows.slice(rows.num_rows - 1).select([VALUE, BLOCK, OFFSET, WRITER]).to_pylist()
    place = (last[BLOCK], last[OFFSET]) if chunk.parted else None
    level = ReadLevel(last[VALUE], place, read.clock.horizon)
    witness = Witness(last[VALUE], last[WRITER])
    cursor = following(before, read, level, witness, complete=chunk.complete)
    end = StreamPlace(after.next + rows.num_rows, encode(cursor).decode())
    places = np.arange(after.next, end.next, dtype=np.int64)
    own = rows.drop_columns(list(OWN))
    never_late = before is None or not before.full
    return RowBatch(after, end, (ArrowRows(title, own, places),), never_late=never_late), cursor


def cursor_batch(after: StreamPlace, cursor: TableCursor) -> RowBatch:
    """Return what is written to store a cursor without rows."""
    return RowBatch(after, StreamPlace(after.next, encode(cursor).decode()), ())
