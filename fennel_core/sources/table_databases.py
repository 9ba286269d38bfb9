"""The databases whose tables are read on a schedule, behind one interface.

A kind of database is a connection (`connections/external_*`), its queries, what a run asks about a
table, and one class here. How rows become pages, batches and positions is the same for all.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

import pyarrow as pa

from fennel_core.connections import external_mysql, external_postgres
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_mysql import ExternalMySQL, ExternalMySQLUnusable
from fennel_core.connections.external_postgres import ExternalPostgres, ExternalPostgresUnusable
from fennel_core.connections.stored_connectors import required
from fennel_core.sources import (
    mysql_inspection,
    mysql_queries,
    table_inspection,
    table_queries,
)
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS
from fennel_core.sources.table_pages import even_parts
from fennel_core.sources.table_reads import TableCursor, TableRead, at_page
from fennel_core.wire.connectors import MySQL, MySQLTable, Postgres, PostgresTable

TableUnusable: Final = (ExternalPostgresUnusable, ExternalMySQLUnusable)
"""What a database raises that cannot be reached or read."""
ScheduledTable = PostgresTable | MySQLTable


@dataclass(frozen=True, slots=True)
class JdbcQuery:
    """A query that Spark's `jdbc` source reads, with these options."""

    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ArrowQuery:
    """A query that a task reads itself, from a driver that returns Arrow."""

    at: ExternalPostgres
    query: str

    def batches(
        self, rows: int = TRANSACTION_ROWS, size_bytes: int = TRANSACTION_BYTES
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows in order, in batches of at most `rows` and about `size_bytes`; blocks.

        Raises `ExternalPostgresUnusable`.
        """
        for batch in self.at.batches(self.query, size_bytes):
            yield from even_parts(batch, rows)


PageReading = JdbcQuery | ArrowQuery


class TableDatabase(Protocol):
    """A database with opened credentials. Methods that take a `connection` block."""

    @property
    def name(self) -> str:
        """The name of the connector."""

    def connect(self, statement_ms: int = ...) -> AbstractContextManager[Any]:
        """Return a connection that only reads; raises one of `TableUnusable`."""

    def reading(self, query: str) -> PageReading:
        """Return how the rows of a query are read."""

    def begun(self, connection: Any, table: str, cursor: str, disorder_us: int) -> TableRead:
        """Return a read that begins now. Raises `SourceError`."""

    def continued(
        self,
        connection: Any,
        read: TableRead,
        before: TableCursor | None,
        title: str,
        *,
        versioned: bool,
    ) -> tuple[TableRead, TableCursor | None]:
        """Return the read, and what was read before; None: all is read. Raises `SourceError`."""

    def at_page(self, connection: Any, read: TableRead) -> TableRead:
        """Return the read for its next page."""

    def page_query(self, read: TableRead, before: TableCursor | None, rows: int) -> str:
        """Return the query of a page: at most `rows`, in order, with the columns of `OWN`."""

    def settlement(
        self, connection: Any, read: TableRead, before: TableCursor, title: str
    ) -> TableCursor | None:
        """Return the cursor to store after the last page; None if it is stored well enough."""

    def complaint(self, connection: Any, read: TableRead, title: str) -> str | None:
        """Return what of a table that was read to its end could not be read, or is slow."""

    def newest(self, connection: Any, read: TableRead, rows: int) -> Sequence[tuple[Any, ...]]:
        """Return the rows with the highest values of the cursor, as `read.columns`."""


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """Implement `TableDatabase` for Postgres."""

    at: ExternalPostgres

    @property
    def name(self) -> str:
        return self.at.name

    def connect(
        self, statement_ms: int = external_postgres.STATEMENT_MS
    ) -> AbstractContextManager[Any]:
        """See `TableDatabase.connect`."""
        return self.at.connect(statement_ms)

    def reading(self, query: str) -> PageReading:
        """See `TableDatabase.reading`."""
        return ArrowQuery(self.at, query)

    def begun(self, connection: Any, table: str, cursor: str, disorder_us: int) -> TableRead:
        """See `TableDatabase.begun`."""
        return table_inspection.begun(self.at, connection, table, cursor, disorder_us)

    def continued(
        self,
        connection: Any,
        read: TableRead,
        before: TableCursor | None,
        title: str,
        *,
        versioned: bool,
    ) -> tuple[TableRead, TableCursor | None]:
        """See `TableDatabase.continued`."""
        return table_inspection.continued(connection, read, before, title, versioned=versioned)

    def at_page(self, connection: Any, read: TableRead) -> TableRead:
        """See `TableDatabase.at_page`."""
        return at_page(read, external_postgres.transaction_clock(connection))

    def page_query(self, read: TableRead, before: TableCursor | None, rows: int) -> str:
        """See `TableDatabase.page_query`."""
        return table_queries.page_query(read, before, rows).as_string(None)

    def settlement(
        self, connection: Any, read: TableRead, before: TableCursor, title: str
    ) -> TableCursor | None:
        """See `TableDatabase.settlement`."""
        return table_inspection.settlement(self.at, connection, read, before, title)

    def complaint(self, connection: Any, read: TableRead, title: str) -> str | None:
        """See `TableDatabase.complaint`."""
        return table_inspection.complaint(connection, read, title)

    def newest(self, connection: Any, read: TableRead, rows: int) -> Sequence[tuple[Any, ...]]:
        """See `TableDatabase.newest`."""
        found: Sequence[tuple[Any, ...]] = connection.execute(
            table_queries.newest_query(read, rows)
        ).fetchall()
        return found


@dataclass(frozen=True, slots=True)
class MySQLDatabase:
    """Implement `TableDatabase` for MySQL and MariaDB."""

    at: ExternalMySQL

    @property
    def name(self) -> str:
        return self.at.name

    def connect(
        self, statement_ms: int = external_postgres.STATEMENT_MS
    ) -> AbstractContextManager[Any]:
        """See `TableDatabase.connect`."""
        return self.at.connect(statement_ms)

    def reading(self, query: str) -> PageReading:
        """See `TableDatabase.reading`."""
        return JdbcQuery({**self.at.jdbc_options(), "dbtable": f"({query}) AS page"})

    def begun(
        self,
        connection: Any,
        table: str,
        cursor: str,
        disorder_us: int,  # noqa: ARG002  # of the interface
    ) -> TableRead:
        """See `TableDatabase.begun`. The `disorder` has no effect on what is read."""
        return mysql_inspection.begun(self.at, connection, table, cursor)

    def continued(
        self,
        connection: Any,  # noqa: ARG002  # of the interface
        read: TableRead,
        before: TableCursor | None,
        title: str,
        *,
        versioned: bool,  # noqa: ARG002  # of the interface
    ) -> tuple[TableRead, TableCursor | None]:
        """See `TableDatabase.continued`."""
        return mysql_inspection.continued(read, before, title)

    def at_page(self, connection: Any, read: TableRead) -> TableRead:  # noqa: ARG002  # of the interface
        """See `TableDatabase.at_page`. The horizon is that of the run."""
        return read

    def page_query(self, read: TableRead, before: TableCursor | None, rows: int) -> str:
        """See `TableDatabase.page_query`."""
        return mysql_queries.page_query(read, before, rows)

    def settlement(
        self,
        connection: Any,  # noqa: ARG002  # of the interface
        read: TableRead,
        before: TableCursor,
        title: str,  # noqa: ARG002  # of the interface
    ) -> TableCursor | None:
        """See `TableDatabase.settlement`."""
        return mysql_inspection.settlement(read, before)

    def complaint(self, connection: Any, read: TableRead, title: str) -> str | None:
        """See `TableDatabase.complaint`."""
        return mysql_inspection.complaint(connection, read, title)

    def newest(self, connection: Any, read: TableRead, rows: int) -> Sequence[tuple[Any, ...]]:
        """See `TableDatabase.newest`."""
        return external_mysql.rows_of(connection, mysql_queries.newest_query(read, rows))


def read_delay_us(table: object) -> int:
    """Return how old rows of a table are at least when they are read."""
    return external_mysql.DELAY_US if isinstance(table, MySQLTable) else 0


def opened(table: ScheduledTable, open_secret: OpenSecret) -> TableDatabase:
    """Return the database of a table. Raises `SecretUnreadable`, and one of `TableUnusable`."""
    match table:
        case PostgresTable(db=db):
            return PostgresDatabase(external_postgres.opened(required(Postgres, db), open_secret))
        case MySQLTable(db=mysql):
            return MySQLDatabase(external_mysql.opened(required(MySQL, mysql), open_secret))
        case unreachable:
            assert_never(unreachable)
