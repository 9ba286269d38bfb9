"""What a run asks MySQL or MariaDB about a table; as `table_inspection` does of Postgres."""

from __future__ import annotations

from pymysql.connections import Connection

from fennel_core.connections.external_mysql import (
    ExternalMySQL,
    describe_table,
    rows_of,
    time_clock,
)
from fennel_core.connections.external_postgres import (
    CursorKind,
    cursor_kind,
    served_columns,
    without_index,
)
from fennel_core.sources.errors import SourceError
from fennel_core.sources.mysql_queries import unordered_query
from fennel_core.sources.table_reads import (
    FIRST_READS,
    HorizonWentBack,
    TableCursor,
    TableRead,
    as_taken,
    require_same_columns,
    settled,
    shown,
)

UNORDERED_SHOWN = 1_000
CURSOR = "a TIMESTAMP that the server sets, as `TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)`"


def begun(database: ExternalMySQL, connection: Connection, table: str, cursor: str) -> TableRead:
    """Return a read of the table that begins now; blocks."""
    clock = time_clock(database, connection)
    found = describe_table(database, connection, table)
    column = found.column(cursor)
    if column is None or cursor_kind(column) is not CursorKind.TIME:
        raise SourceError(
            f"connector `{database.name}`: table `{table}` has no column `{cursor}` of type "
            f"TIMESTAMP, which is its cursor; commit the source with {CURSOR}"
        )
    return TableRead(found, column, CursorKind.TIME, served_columns(found), clock, 0)


def continued(
    read: TableRead, before: TableCursor | None, title: str
) -> tuple[TableRead, TableCursor | None]:
    """Return the read, and what was read before. Raises `TableChanged` and `HorizonWentBack`."""
    require_same_columns(read, before, title)
    if before is None:
        return read, None
    if read.clock.now_us <= before.highest:
        raise HorizonWentBack(
            f"{title}: rows up to {shown(read.kind, before.highest)} were read, and the clock of "
            f"its server is at {shown(read.kind, read.clock.now_us)}: it went back, or the server "
            "is another one. Correct the clock, or wait for it; rows that are written until then "
            "are not read"
        )
    return read, as_taken(read, before)


def settlement(read: TableRead, before: TableCursor) -> TableCursor | None:
    """Return the cursor to store after the last page; None if it is stored well enough."""
    if before.reads >= FIRST_READS and not before.partial and not before.taken:
        return None
    return settled(before, read, None, None)


def complaint(connection: Connection, read: TableRead, title: str) -> str | None:
    """Return what of a table that was read to its end could not be read, or is slow; blocks."""
    if not read.cursor.not_null:
        [(without,)] = rows_of(connection, unordered_query(read, UNORDERED_SHOWN))
        if without:
            count = f"{without} rows" + (" or more" if without >= UNORDERED_SHOWN else "")
            return (
                f"{title}: {count} have no `{read.cursor.name}` (null), so they are not read, and "
                "all others are; give them a value"
            )
    slow = without_index(read.table, read.cursor.name)
    return None if slow is None else f"{title} {slow}"
