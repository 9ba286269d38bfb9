"""A MySQL or MariaDB database of the user's own: how it is reached, and what one of its tables is.

As `external_postgres`, whose descriptions of tables and columns it returns: the type of a column is
the one of Postgres that is carried alike. Two clients read it: PyMySQL and Spark's JDBC source.

All sessions are in UTC. A TIMESTAMP is a moment; a DATETIME has no zone and is taken for UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pymysql
import sqlalchemy as sa
from pymysql.connections import Connection
from sqlalchemy.dialects import mysql

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_databases import (
    parameters_of,
    unreadable,
    unused_parameter,
)
from fennel_core.connections.external_kafka import OpenSecret, secret_text
from fennel_core.connections.external_postgres import (
    CONNECT_S,
    LOCK_S,
    PAGE_S,
    STATEMENT_MS,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.wire.connectors import MySQL

# Another style of parameters would double each percent sign of a format.
DIALECT: Final = mysql.dialect(paramstyle="named")
TLS_MODE: Final = "sslMode"
TLS_MODES: Final = ("disable", "trust", "verify-full")
"""Its values, as MariaDB's JDBC driver reads them."""
DELAY_US: Final = 60_000_000
"""How much older than every statement and transaction a row is before it is read."""
TABLE: Final = """
    SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.TABLE_TYPE, t.ENGINE, t.TABLE_ROWS
    FROM information_schema.TABLES t
    WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = %s
"""
COLUMNS: Final = """
    SELECT COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, IS_NULLABLE FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
INDEXES: Final = """
    SELECT INDEX_NAME, COLUMN_NAME, SEQ_IN_INDEX, INDEX_TYPE FROM information_schema.STATISTICS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""
CLOCK: Final = """
    SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED),
        (SELECT CAST(UNIX_TIMESTAMP(MIN(IF(
             CONVERT_TZ(begun.utc - INTERVAL 1 HOUR, '+00:00', 'SYSTEM') = begun.local,
             begun.utc - INTERVAL 1 HOUR, begun.utc))) * 1000000 AS SIGNED)
         FROM (SELECT trx_started AS local, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') AS utc
               FROM information_schema.INNODB_TRX) begun),
        (SELECT MAX(TIME) FROM information_schema.PROCESSLIST
         WHERE ID <> CONNECTION_ID() AND INFO IS NOT NULL
         AND COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')),
        @@global.read_only
"""
"""Times of statements are whole seconds, which the delay covers. Those of transactions are in the
zone of the server's machine, whatever a session has; of the two of an hour that the clocks repeat,
the earlier one counts."""
SESSION: Final = (
    f"time_zone='+00:00',lock_wait_timeout={LOCK_S},sql_mode='',"
    "sql_select_limit=18446744073709551615"
)
"""How sessions differ from what the server has set: a limit would cut a page, which would then be
taken for the last one, and modes change values (`EMPTY_STRING_IS_NULL`)."""
ISOLATION: Final = "READ-COMMITTED"
"""A change that is rolled back later must not be seen: its row would not be read by its old time.
"""
TYPES: Final = {
    "tinyint": ("bigint", "N"),
    "smallint": ("bigint", "N"),
    "mediumint": ("bigint", "N"),
    "int": ("bigint", "N"),
    "bigint": ("bigint", "N"),
    "year": ("bigint", "N"),
    "float": ("real", "N"),
    "double": ("double precision", "N"),
    "decimal": ("numeric", "N"),
    "timestamp": ("timestamp with time zone", "D"),
    "datetime": ("timestamp without time zone", "D"),
    "date": ("date", "D"),
    "time": ("time without time zone", "D"),
}
RAW: Final = (
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"),
    "vector",  # is no text
)
SPATIAL: Final = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
)


class ExternalMySQLUnusable(ConnectionsError):
    """A database of the user's own cannot be reached, refuses the credentials or lacks the table.

    The text names the connector and what to change. A retry helps if the database was down.
    """

    code: ClassVar[str] = "source-unreachable"


@dataclass(frozen=True, slots=True)
class ExternalMySQL:
    """An external database with opened credentials. `tls`: one of `TLS_MODES`."""

    name: str
    """Of the connector."""
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls: str = TLS_MODES[0]

    def jdbc_options(self) -> dict[str, str]:
        """Return the options of Spark's `jdbc` source that connect to the database.

        Spark knows the SQL of MySQL by the scheme `mysql`. The address has no database, whose name
        the driver would not decode: queries name it.
        """
        return {
            "url": f"jdbc:mysql://{self.host}:{self.port}/?permitMysqlScheme",
            "driver": "org.mariadb.jdbc.Driver",
            "user": self.user,
            "password": self.password,
            "connectTimeout": str(CONNECT_S * 1000),
            "socketTimeout": str(PAGE_S * 1000),
            "tcpKeepAlive": "true",
            "sslMode": self.tls,
            "allowPublicKeyRetrieval": "true",
            "sessionVariables": SESSION,
            "transactionIsolation": ISOLATION,
            "allowLocalInfile": "false",
        }

    @contextmanager
    def connect(self, statement_ms: int = STATEMENT_MS) -> Iterator[Connection]:
        """Yield a connection that only reads; each statement takes at most `statement_ms`.

        Raises `ExternalMySQLUnusable`, also for what fails within the block.
        """
        verified = self.tls == "verify-full"
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                database=self.database,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_S,
                read_timeout=CONNECT_S + statement_ms // 1000,
                write_timeout=CONNECT_S,
                init_command=f"SET {SESSION}",
                ssl_disabled=self.tls == "disable",
                ssl_verify_cert=verified,
                ssl_verify_identity=verified,
            )
            with connection:
                with connection.cursor() as cursor:
                    level = ISOLATION.replace("-", " ")
                    cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}, READ ONLY")
                yield connection
        except (pymysql.Error, OSError) as failed:
            raise ExternalMySQLUnusable(unreadable(self, failed)) from failed


def opened(connector: MySQL, open_secret: OpenSecret) -> ExternalMySQL:
    """Return the database of a connector. Raises `SecretUnreadable`, `ExternalMySQLUnusable`."""
    return ExternalMySQL(
        connector.name,
        connector.host,
        connector.port,
        connector.database,
        secret_text(connector.login.user, open_secret),
        secret_text(connector.login.password, open_secret),
        _tls(connector, open_secret),
    )


def rows_of(
    connection: Connection, query: str, values: tuple[Any, ...] | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a query; blocks."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def describe_table(database: ExternalMySQL, connection: Connection, table: str) -> ExternalTable:
    """Return what the database says about a table of it; blocks.

    Raises `ExternalMySQLUnusable`, also for what cannot be read in order.
    """
    where = f"connector `{database.name}`"
    found = rows_of(connection, TABLE, (table,))
    if not found:
        raise ExternalMySQLUnusable(
            f"{where}: database `{database.database}` has no table `{table}`; create it, or give "
            "the user the right to read it"
        )
    [(schema, name, kind, engine, rows)] = found
    if kind != "BASE TABLE" or str(engine).lower() != "innodb":
        what = "a view" if "VIEW" in kind else f"a table of the engine {engine}"
        raise ExternalMySQLUnusable(
            f"{where}: `{table}` is {what}, which does not show its transactions; read a table of "
            "InnoDB"
        )
    columns = tuple(as_column(each) for each in rows_of(connection, COLUMNS, (schema, name)))
    indexes = rows_of(connection, INDEXES, (schema, name))
    primary = [column for index, column, _, _ in indexes if index == "PRIMARY"]
    types = {each.name: each.type for each in columns}
    if len(primary) != 1 or types[primary[0]] != "bigint":
        raise ExternalMySQLUnusable(
            f"{where}: `{table}` has no primary key of one integer column, which orders rows with "
            "equal cursor values; give it one, as `id bigint AUTO_INCREMENT PRIMARY KEY`"
        )
    first = (column for _, column, place, by in indexes if place == 1 and by == "BTREE")
    origin = f"mysql/{schema}/{name}"
    return ExternalTable(
        schema, name, origin, 0, 0, columns, rows or 0, frozenset(first), primary[0]
    )


def time_clock(database: ExternalMySQL, connection: Connection) -> TransactionClock:
    """Return as the horizon the time (µs since 1970) before which all rows are there; blocks.

    It is `DELAY_US` before the oldest transaction or statement that runs, of any user; `end` is so
    long before now, so they differ while something holds rows back. Raises
    `ExternalMySQLUnusable` of a replica, whose transactions run on another server.
    """
    [(now_us, started_us, statement_s, read_only)] = rows_of(connection, CLOCK)
    if read_only not in (0, "0", "OFF"):
        raise ExternalMySQLUnusable(
            f"connector `{database.name}`: the server at {database.host}:{database.port} is read "
            "only, as a replica is: rows appear there later than they are written, so some would "
            "not be read; give the connector the server that is written to"
        )
    oldest = min(now_us, now_us if started_us is None else started_us)
    if statement_s is not None:
        oldest = min(oldest, now_us - int(statement_s) * 1_000_000)
    return TransactionClock(oldest - DELAY_US, now_us - DELAY_US, now_us)


def require_readable(connection: Connection, table: ExternalTable) -> None:
    """Fail unless the user may read all columns of the table; blocks."""
    columns = (sa.column(each.name) for each in table.columns)  # type: ignore[var-annotated]  # columns without types
    query = sa.select(sa.table(table.name, *columns, schema=table.schema)).limit(0)
    literal = {"literal_binds": True}
    rows_of(connection, str(query.compile(dialect=DIALECT, compile_kwargs=literal)))


def as_column(described: tuple[Any, ...]) -> ExternalColumn:
    """Return a column, described as by `COLUMNS`."""
    name, declared, kind, nullable = described
    kind, declared = kind.lower(), declared.lower()
    if declared.startswith("tinyint(1)"):
        type_, category = "boolean", "B"
    elif kind == "bigint" and "unsigned" in declared:
        type_, category = "numeric", "N"
    elif kind in RAW or kind in SPATIAL:
        type_, category = "bytea", "U"
    else:
        type_, category = TYPES.get(kind, ("text", "S"))
    return ExternalColumn(name, declared, type_, category, nullable == "NO")


def _tls(connector: MySQL, open_secret: OpenSecret) -> str:
    parameters = parameters_of(connector, open_secret)
    mode = parameters.get(TLS_MODE, TLS_MODES[0])
    if set(parameters) - {TLS_MODE} or mode not in TLS_MODES:
        raise ExternalMySQLUnusable(unused_parameter(connector, TLS_MODE, TLS_MODES))
    return mode
