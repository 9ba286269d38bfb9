"""A Postgres database of the user's own: how it is reached, and what one of its tables is.

The connector of a definition names the database; its credentials are opened here and nowhere else.
Two clients read it: psycopg (checks, metadata, a few rows) and Arrow's ADBC (all rows).

The *origin* of a table is the identifier of the cluster and the ids of database and table: a table
that was dropped and created again, or another one that took its name, has another origin. Its
*file* changes when all rows are written again, as by ALTER TABLE … TYPE or VACUUM FULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, LiteralString

import adbc_driver_manager as adbc  # its `dbapi` would import pandas
import adbc_driver_postgresql
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.abc import RV, PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_databases import (
    first_line,
    parameters_of,
    unreadable,
    unused_parameter,
)
from fennel_core.connections.external_kafka import OpenSecret, secret_text
from fennel_core.wire.connectors import Postgres

CONNECT_S: Final = 5
STATEMENT_MS: Final = 10_000
"""Of a check: a commit waits for it, and clients wait for a commit."""
LOCK_S: Final = 30
"""How long a statement waits for a table that is written again: other sources need the worker."""
PAGE_S: Final = 3_600
"""How long a page may take, and be silent."""
LOOK_S: Final = 0.1
"""How long a wait for a server lasts before signals are seen."""
KEEPALIVE_S: Final = 60
"""After so long without data a connection is probed: a page may be sorted for long."""
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SSL_MODE: Final = "sslmode"
"""The parameter of a connection that may be given in `jdbc_params`."""
FORMS: Final = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 "
    "-c lc_monetary=C -c quote_all_identifiers=off"
)
"""The forms of values and names as text, whatever the server, a database or a user has set."""
OWN_PREFIX: Final = "__fennel_"
"""How the names of the platform's own columns of a query begin."""
INDEX_ROWS: Final = 100_000
"""A table with more rows needs an index on its cursor: each page of a read sorts them."""
READABLE_KINDS: Final = {"r": "a table"}
KINDS: Final = {
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
}
TABLE: Final[LiteralString] = """
    SELECT c.oid::bigint, c.relkind::text, c.relhassubclass, pg_relation_filenode(c.oid)::bigint,
        n.nspname, c.relname,
        (SELECT system_identifier::text FROM pg_control_system()),
        (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()),
        c.reltuples::bigint,
        (SELECT array_agg(a.attname::text) FROM pg_index i
         JOIN pg_class o ON o.oid = i.indexrelid JOIN pg_am m ON m.oid = o.relam
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
         WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%(name)s)
"""
COLUMNS: Final[LiteralString] = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.atttypid AS type, a.atttypmod AS mod FROM pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.mod END
        FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
    )
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(t.oid, NULL),
        t.typcategory::text, a.attnotnull
    FROM base b JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
    JOIN pg_attribute a ON a.attrelid = %(oid)s AND a.attnum = b.attnum
    ORDER BY a.attnum
"""
CLOCK: Final[LiteralString] = """
    SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    FROM pg_current_snapshot() s
"""
TIMELINE: Final[LiteralString] = """
    SELECT CASE WHEN pg_is_in_recovery()
        THEN (SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)::bigint
              FROM pg_control_checkpoint() c, pg_control_recovery() r)
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END
"""
"""Of a primary the one that it writes: its last checkpoint may be of before its promotion."""
HIDDEN: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UndefinedFunction,
)
"""How managed servers refuse to show their timeline."""


class ExternalPostgresUnusable(ConnectionsError):
    """A database of the user's own cannot be reached, refuses the credentials or lacks the table.

    The text names the connector and what to change. A retry helps if the database was down.
    """

    code: ClassVar[str] = "source-unreachable"


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Ends a statement that a server does not answer: its own limit needs a process that runs."""

    answered_s: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = LOOK_S, timeout: float | None = None) -> RV:
        """See `psycopg.Connection`; all that it sends waits here."""
        try:
            return super().wait(gen, interval, self.answered_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as silent:
            self.pgconn.finish()  # no order of it would be answered
            raise psycopg.OperationalError("the server does not answer") from silent


@dataclass(frozen=True, slots=True)
class ExternalPostgres:
    """An external database with opened credentials."""

    name: str
    """Of the connector."""
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    parameters: Mapping[str, str]
    """`SSL_MODE`, if it is set."""

    @contextmanager
    def connect(
        self, statement_ms: int = STATEMENT_MS, *, writes: bool = False
    ) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Yield a connection that only reads unless it `writes`; each statement takes at most
        `statement_ms`.

        Raises `ExternalPostgresUnusable`, also for what fails within the block.
        """
        try:
            address = self._address(statement_ms, writes=writes)
            with _BoundedConnection.connect(address, autocommit=True) as connection:
                connection.answered_s = statement_ms / 1000 + CONNECT_S
                yield connection
        except psycopg.Error as failed:
            raise ExternalPostgresUnusable(unreadable(self, failed)) from failed

    def batches(self, query: str, size_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query in its order, in batches of about `size_bytes`; blocks.

        The server sends them in the binary format of COPY, which becomes Arrow without Python.
        Raises `ExternalPostgresUnusable`; what was yielded by then are rows of the query.
        """
        size = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
        try:
            with (
                adbc_driver_postgresql.connect(self._address(1000 * PAGE_S)) as database,
                adbc.AdbcConnection(database) as connection,
                adbc.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{size: str(size_bytes)})
                statement.set_sql_query(query)
                found, _ = statement.execute_query()
                with pa.RecordBatchReader.from_stream(found) as rows:
                    yield from rows
        except (adbc.Error, pa.ArrowException, OSError) as failed:
            raise ExternalPostgresUnusable(unreadable(self, failed)) from failed

    def require_replication(self) -> None:
        """Open a connection of the replication protocol. Raises `ExternalPostgresUnusable`."""
        address = make_conninfo(self._address(STATEMENT_MS), replication="database")
        try:
            with psycopg.connect(address, autocommit=True) as connection:
                found = connection.pgconn.exec_(b"IDENTIFY_SYSTEM")
                if found.status != ExecStatus.TUPLES_OK:
                    raise psycopg.OperationalError(found.error_message.decode(errors="replace"))
        except psycopg.Error as failed:
            raise ExternalPostgresUnusable(
                f"connector `{self.name}`: user `{self.user}` may not read changes of database "
                f"`{self.database}`: {first_line(failed)}; run `ALTER ROLE {self.user} "
                "REPLICATION`, and let the server accept replication connections (pg_hba.conf)"
            ) from failed

    def _address(self, statement_ms: int, *, writes: bool = False) -> str:
        reads_only = "off" if writes else "on"
        # Nothing that is written waits for standbys: `statement_timeout` does not end such a wait.
        return make_conninfo(
            "",
            host=self.host,
            port=self.port,
            dbname=self.database,
            user=self.user,
            password=self.password,
            connect_timeout=CONNECT_S,
            application_name="fennel-core",
            client_encoding="UTF8",
            tcp_user_timeout=STATEMENT_MS + 1000 * CONNECT_S,
            keepalives_idle=KEEPALIVE_S,
            options=f"-c statement_timeout={statement_ms} "
            f"-c default_transaction_read_only={reads_only} "
            f"-c lock_timeout={LOCK_S}s -c synchronous_commit=local {FORMS}",
            **self.parameters,
        )


@dataclass(frozen=True, slots=True)
class ExternalColumn:
    """A column: its type as it is declared, and without length, precision and domains."""

    name: str
    declared: str
    type: str
    category: str
    """Of Postgres: `A` array, `B` boolean, `D` date and time, `N` number, `S` text, …"""
    not_null: bool


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """What a database says about one of its tables."""

    schema: str
    name: str
    origin: str
    oid: int
    file: int
    columns: tuple[ExternalColumn, ...]
    rows: int
    """About how many there are, as when the table was last analyzed; -1: not known."""
    indexed: frozenset[str]
    """Columns by which an index returns the rows of the table in order."""
    key: str = ""
    """The column that orders rows of one value; empty: their place in the file does."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str) -> ExternalColumn | None:
        """Return the column of this name; names are compared as they are."""
        return next((each for each in self.columns if each.name == name), None)


def without_index(table: ExternalTable, cursor: str) -> str | None:
    """Return what is wrong with a large table that has no index on its cursor, else None."""
    if table.rows <= INDEX_ROWS or cursor in table.indexed:
        return None
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))
    column = cursor.replace('"', '""')
    statement = f'CREATE INDEX CONCURRENTLY ON {name} ("{column}")'
    if table.key:  # of MySQL
        statement = f"CREATE INDEX by_{cursor} ON {table.schema}.{table.name} ({cursor})"
    return (
        f"has about {table.rows} rows and no index on its cursor `{cursor}`, so each page of a "
        f"read sorts all of them; run `{statement}`"
    )


class CursorKind(StrEnum):
    """Types of columns that may be a cursor; values are kept as integers."""

    INTEGER = "integer"
    DATE = "date"
    LOCAL_TIME = "timestamp without time zone"
    TIME = "timestamp with time zone"


_INTEGERS: Final = ("smallint", "integer", "bigint")


def cursor_kind(column: ExternalColumn) -> CursorKind | None:
    """Return how the values of a cursor column are read; None for a column that can be none."""
    if column.type in _INTEGERS:
        return CursorKind.INTEGER
    return next((kind for kind in CursorKind if kind.value == column.type), None)


@dataclass(frozen=True, slots=True)
class TransactionClock:
    """Ids of transactions at one moment: all below `horizon` have ended, none is at `end` yet."""

    horizon: int
    end: int
    now_us: int
    """Of the database's clock."""


def opened(connector: Postgres, open_secret: OpenSecret) -> ExternalPostgres:
    """Return the database of a connector. Raises `SecretUnreadable`, `ExternalPostgresUnusable`."""
    return ExternalPostgres(
        connector.name,
        connector.host,
        connector.port,
        connector.database,
        secret_text(connector.login.user, open_secret),
        secret_text(connector.login.password, open_secret),
        _parameters(connector, open_secret),
    )


def describe_table(
    database: ExternalPostgres, connection: psycopg.Connection[tuple[Any, ...]], table: str
) -> ExternalTable:
    """Return what the database says about a table, as `orders` or `shop.orders`; blocks.

    Raises `ExternalPostgresUnusable`, also for what is no plain table.
    """
    found = connection.execute(TABLE, {"name": _quoted(table)}).fetchone()
    if found is None:
        raise ExternalPostgresUnusable(
            f"connector `{database.name}`: database `{database.database}` has no table `{table}`; "
            "create it, or write its schema before it, as `shop.orders`"
        )
    oid, kind, has_children, file, schema, name, system, number, rows, indexed = found
    if kind not in READABLE_KINDS or has_children:
        what = "a table that others inherit from" if kind in READABLE_KINDS else KINDS.get(kind)
        raise ExternalPostgresUnusable(
            f"connector `{database.name}`: `{table}` is {what or 'no table'}, which has no order "
            "of transactions to read by; read a plain table (of a partitioned one, each partition)"
        )
    columns = connection.execute(COLUMNS, {"oid": oid}).fetchall()
    return ExternalTable(
        schema,
        name,
        f"{system}/{number}/{oid}",
        oid,
        file,
        tuple(ExternalColumn(*c) for c in columns),
        rows,
        frozenset(indexed or ()),
    )


def served_columns(table: ExternalTable) -> tuple[ExternalColumn, ...]:
    """Return the columns that are carried: all but raw bytes, which JSON cannot have."""
    return tuple(each for each in table.columns if each.type not in ("bytea", "bytea[]"))


def transaction_clock(connection: psycopg.Connection[tuple[Any, ...]]) -> TransactionClock:
    """Return which transactions have ended; blocks."""
    found = connection.execute(CLOCK).fetchone()
    assert found is not None, "the database has a snapshot"
    return TransactionClock(*found)


def timeline(connection: psycopg.Connection[tuple[Any, ...]]) -> int | None:
    """Return the timeline of the server, which a promotion or a restore changes; blocks.

    None if the server does not show it.
    """
    try:
        found = connection.execute(TIMELINE).fetchone()
    except HIDDEN:
        return None
    assert found is not None, "the query has one row"
    return int(found[0])


def _quoted(table: str) -> str:
    """Return the name as `to_regclass` reads it, with upper case and other characters kept."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split(".", 1))


def _parameters(connector: Postgres, open_secret: OpenSecret) -> dict[str, str]:
    found = parameters_of(connector, open_secret)
    if any(name != SSL_MODE or value not in SSL_MODES for name, value in found.items()):
        raise ExternalPostgresUnusable(unused_parameter(connector, SSL_MODE, SSL_MODES))
    return found
