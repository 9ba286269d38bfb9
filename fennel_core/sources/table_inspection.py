"""What a run asks the database about a table before its first page and after its last one."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from fennel_core.connections.external_postgres import (
    ExternalPostgres,
    cursor_kind,
    describe_table,
    served_columns,
    timeline,
    transaction_clock,
    without_index,
)
from fennel_core.sources.errors import SourceError, StreamReplaced
from fennel_core.sources.table_queries import (
    highest_query,
    read_rows_query,
    unordered_query,
    waiting_query,
)
from fennel_core.sources.table_reads import (
    FoundRows,
    TableCursor,
    TableRead,
    as_taken,
    at_page,
    begins_again,
    going_on,
    look_back_of,
    require_readable,
    require_same_columns,
    require_same_file,
    settled,
)

Connection = psycopg.Connection[tuple[Any, ...]]
UNORDERED_SHOWN: Final = 1_000


def begun(
    database: ExternalPostgres, connection: Connection, table: str, cursor: str, disorder_us: int
) -> TableRead:
    """Return a read of the table that begins now; blocks."""
    found = describe_table(database, connection, table)
    column = found.column(cursor)
    kind = None if column is None else cursor_kind(column)
    if column is None or kind is None:
        raise SourceError(
            f"connector `{database.name}`: table `{table}` has no column `{cursor}` of integers, "
            "dates or times, which is its cursor; commit the source with another cursor"
        )
    # Before the clock: a promotion between them is then seen by the next run.
    number = timeline(connection)
    return TableRead(
        found,
        column,
        kind,
        served_columns(found),
        transaction_clock(connection),
        look_back_of(kind, disorder_us),
        timeline=number,
    )


def continued(
    connection: Connection,
    read: TableRead,
    before: TableCursor | None,
    title: str,
    *,
    versioned: bool,
) -> tuple[TableRead, TableCursor | None]:
    """Return the read, and what was read before; None if the table is read from its beginning.

    Blocks. `versioned`: see `begins_again`. Raises what the user has to decide.
    """
    if before is None:
        return read, None
    require_same_columns(read, before, title)
    before = as_taken(read, before)
    found = FoundRows(witness=True, older=True)
    if read.table.file != before.file or before.emptied is not None:
        row = connection.execute(read_rows_query(read, before)).fetchone()
        assert row is not None, "the query has one row"
        found = FoundRows(*row)
    if begins_again(read, before, found, title, versioned=versioned):
        return read, None
    read = going_on(read, before, found)
    require_readable(read, before, _number(connection, read, 1), title)
    return read, before


def settlement(
    database: ExternalPostgres,
    connection: Connection,
    read: TableRead,
    before: TableCursor,
    title: str,
) -> TableCursor | None:
    """Return the cursor to store after the last page; None if it is stored well enough; blocks.

    A page without rows does not show which file it was of. Raises `TableMoved`, `StreamReplaced`.
    """
    now = describe_table(database, connection, f"{read.table.schema}.{read.table.name}")
    if now.origin != read.table.origin:
        raise StreamReplaced(title, read.table.origin, now.origin)
    require_same_file(read, now, title)
    waiting = connection.execute(
        waiting_query(at_page(read, transaction_clock(connection)), before)
    ).fetchone()
    near = _number(connection, read, read.near)
    return settled(before, read, near, None if waiting is None else waiting[0])


def complaint(connection: Connection, read: TableRead, title: str) -> str | None:
    """Return what of a table that was read to its end could not be read, or is slow; blocks."""
    if not read.cursor.not_null or read.latest is not None:
        row = connection.execute(unordered_query(read, UNORDERED_SHOWN)).fetchone()
        without, ahead = (0, 0) if row is None else row
        name = read.cursor.name
        if without:
            return (
                f"{title}: {_many(without)} have no `{name}` (null or infinite), so they are not "
                "read, and all others are; give them a value"
            )
        if ahead:
            return (
                f"{title}: {_many(ahead)} have a `{name}` more than a day in the future, so they "
                "are not read before it, and all others are; correct their values"
            )
    slow = without_index(read.table, read.cursor.name)
    return None if slow is None else f"{title} {slow}"


def _number(connection: Connection, read: TableRead, nth: int) -> int | None:
    row = connection.execute(highest_query(read, nth)).fetchone()
    return None if row is None else int(row[0])


def _many(count: int) -> str:
    return f"{count} rows" if count < UNORDERED_SHOWN else f"{count} rows or more"
