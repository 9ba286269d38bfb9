"""The work of Spark's Python worker: write one page of a table, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fennel_core.settings.model import Settings
from fennel_core.sources.read_rows import RowBatch, StreamPlace
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.table_databases import ArrowQuery
from fennel_core.sources.table_pages import chunks, cursor_batch, row_batch, short_floats
from fennel_core.sources.table_reads import TableCursor, TableRead
from fennel_core.sources.task import task_process
from fennel_core.wire.connectors import JsonFormat

WRITTEN: Final = pa.schema(
    [
        ("rows", pa.int64()),
        ("next", pa.int64()),
        ("cursor", pa.string()),
        ("complete", pa.bool_()),
        ("accepted", pa.int64()),
        ("late", pa.int64()),
        ("dead", pa.int64()),
    ]
)
WRITTEN_DDL: Final = (
    "rows bigint, next bigint, cursor string, complete boolean, accepted bigint, late bigint, "
    "dead bigint"
)


@dataclass(frozen=True, slots=True)
class PageWork:
    """A page to write: of which table, where it continues, and how many rows it may have.

    `before`: what was read by `after`; None if the table is read from its beginning.
    """

    settings: Settings
    partition: FeedPartition
    rewinds: int
    read: TableRead
    after: StreamPlace
    before: TableCursor | None
    rows: int
    query: ArrowQuery | None = None
    """What the task reads; None: the rows of the page are its input."""


def page_task(work: PageWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs over the rows of a page, in order.

    It returns a row of `WRITTEN` for each transaction.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        after, before = work.after, work.before
        title = work.partition.title
        with _rows(work, batches) as rows:
            for chunk in chunks(rows, work.rows, work.read.table.file, title):
                batch, before = row_batch(chunk, work.read, title, after, before)
                after = batch.end
                yield _written(work, batch, chunk.rows.num_rows, complete=chunk.complete)

    return write


@contextmanager
def _rows(work: PageWork, batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows of a page; a connection that they are read by is closed behind the block."""
    if work.query is None:
        yield (short_floats(batch, work.read.columns) for batch in batches)
        return
    for _ in batches:  # Spark's task is done when its input is
        pass
    with closing(work.query.batches()) as rows:
        yield rows


def settling_task(
    work: PageWork, cursor: TableCursor
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which a worker stores the cursor of a read that has ended."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # Spark's task is done when its input is
            pass
        yield _written(work, cursor_batch(work.after, cursor), 0, complete=True)

    return write


def _written(work: PageWork, batch: RowBatch, rows: int, *, complete: bool) -> pa.RecordBatch:
    """Write a batch in a transaction; return what became of its rows."""
    process = task_process(work.settings)
    # Typed rows have no format that the writer would decode.
    writer, counts = process.writer(
        work.partition, work.read.table.origin, work.rewinds, JsonFormat()
    )
    counts.found.clear()
    process.run(writer.write_rows(batch))
    found = counts.batch()
    row = {
        "rows": rows,
        "next": batch.end.next,
        "cursor": batch.end.cursor,
        "complete": complete,
        **{name: sum(found.column(name).to_pylist()) for name in ("accepted", "late", "dead")},
    }
    return pa.RecordBatch.from_pylist([row], schema=WRITTEN)
