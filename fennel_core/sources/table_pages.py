"""Cut the rows of a page of a table into batches that are written, each with its cursor.

A page arrives in order, as Arrow batches of bounded size, with one row more than it may have if the
table has more. Each batch becomes one transaction; the last one of the last page completes the
read. That is known only at its end, so one batch is always held back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fennel_core.sources.errors import SourceError
from fennel_core.sources.read_rows import ArrowRows, RowBatch, StreamPlace
from fennel_core.sources.table_reads import (
    BLOCK,
    OFFSET,
    OWN,
    PLACE,
    VALUE,
    ReadLevel,
    TableCursor,
    TableRead,
    encode,
    following,
    unchanged,
)


class PageUnordered(SourceError):
    """The rows of a page did not arrive in its order; nothing of the batch was written."""

    code = "source-page-unordered"


@dataclass(frozen=True, slots=True)
class PageChunk:
    """Rows of a page that are written together. `complete`: no more are left in the table."""

    rows: pa.RecordBatch
    complete: bool


def chunks(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[PageChunk]:
    """Yield the first `most` rows of a page. Raises `PageUnordered`."""
    held: pa.RecordBatch | None = None
    place, more = 1, False
    for batch in batches:
        if not batch.num_rows:
            continue
        places = batch.column(batch.schema.get_field_index(PLACE)).to_numpy()
        if not (places == np.arange(place, place + batch.num_rows)).all():
            raise PageUnordered(
                f"a page was read out of order at row {place}; read the source again"
            )
        kept = batch.slice(0, max(0, most + 1 - place))
        more = more or kept.num_rows < batch.num_rows
        place += batch.num_rows
        if kept.num_rows:
            if held is not None:
                yield PageChunk(held, complete=False)
            held = kept
    if held is not None:
        yield PageChunk(held, complete=not more)


def row_batch(
    chunk: PageChunk, read: TableRead, title: str, after: StreamPlace, before: TableCursor | None
) -> tuple[RowBatch, TableCursor]:
    """Return the rows behind `after` as they are written, and the cursor behind them."""
    rows = chunk.rows
    last = rows.slice(rows.num_rows - 1).select([VALUE, BLOCK, OFFSET]).to_pylist()[0]
    level = ReadLevel(last[VALUE], (last[BLOCK], last[OFFSET]), read.clock.horizon)
    cursor = following(before, read, level, complete=chunk.complete)
    end = StreamPlace(after.next + rows.num_rows, encode(cursor).decode())
    places = np.arange(after.next, end.next, dtype=np.int64)
    own = rows.drop_columns(list(OWN))
    never_late = before is None or not before.full
    return RowBatch(after, end, (ArrowRows(title, own, places),), never_late=never_late), cursor


def empty_batch(read: TableRead, after: StreamPlace, before: TableCursor | None) -> RowBatch | None:
    """Return what is written after a complete page without rows: a cursor, or nothing (None)."""
    cursor = unchanged(before, read)
    if cursor is None:
        return None
    return RowBatch(after, StreamPlace(after.next, encode(cursor).decode()), ())
