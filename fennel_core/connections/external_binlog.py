"""The changes of a table of MySQL or MariaDB: the binary log of the server, and places in it.

Theory. The server writes what transactions change into its *binary log*, in the order of their
commits, and gives each transaction an id (GTID). A reader says which transactions it has, and gets
the others; the server keeps nothing for it beyond the days that its owner has set.

A place must hold no transaction that a query does not see yet, or its rows would be neither read
nor sent. The log is written before rows are visible: so the place of MySQL is the set of GTIDs,
which grows behind that, and the one of MariaDB is that of a snapshot, which the server gives.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from pymysql.connections import Connection

from fennel_core.connections.change_engine import BinlogTask, ChangeEngineFailed
from fennel_core.connections.external_changes import SIMPLE, ChangesLost, KeyColumn
from fennel_core.connections.external_mysql import (
    COLUMNS,
    ExternalMySQL,
    ExternalMySQLUnusable,
    as_column,
    rows_of,
)
from fennel_core.connections.external_postgres import ExternalColumn, ExternalTable

MYSQL: Final = "io.debezium.connector.mysql.MySqlConnector"
MARIADB: Final = "io.debezium.connector.mariadb.MariaDbConnector"
REWIND: Final = "let the table be read again with `fennel-core source rewind NAME --to earliest`"
NOTES: Final = 20
"""How often a table may be altered while its place is noted."""
INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
TEXTS: Final = ("char", "varchar")
NOT_DECODED: Final = re.compile(r"^(?:uuid|inet4|inet6)$|\bCOMPRESSED\b", re.IGNORECASE)
"""Types of MariaDB whose values the engine delivers wrongly, or not at all."""
ESCAPED: Final = re.compile(r"[,\\\x00-\x1f]")
"""Within options of ENUM and SET, of which changes have other text."""
LOST: Final = (
    "no longer available on the server",
    "Could not find GTID state requested",
    "Could not find first log file name",
    "requested to start from GTID",
    "master has purged",
    "start replication from position > file size",
)
"""What the engine and servers say about a place that is not there any more."""
TABLE: Final = """
    SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, CREATE_OPTIONS, TABLE_ROWS
    FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s
"""
KEY: Final = """
    SELECT k.COLUMN_NAME, c.DATA_TYPE, c.CHARACTER_SET_NAME, c.COLLATION_NAME
    FROM information_schema.STATISTICS k JOIN information_schema.COLUMNS c
        USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)
    WHERE k.TABLE_SCHEMA = %s AND k.TABLE_NAME = %s AND k.INDEX_NAME = 'PRIMARY'
    ORDER BY k.SEQ_IN_INDEX
"""
CASCADES: Final = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")
"""In the statement that makes a table: views of MariaDB hide it from a user who may only read."""
LOGGED: Final = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "lower_case_table_names": "0",
    # Of MySQL.
    "gtid_mode": "ON",
    "binlog_row_value_options": "",  # parts of values
    # Of MariaDB.
    "binlog_alter_two_phase": "OFF",  # a statement is in the log before rows that are older
}
"""Settings that a server needs, if it has them."""
DEFAULTS: Final = """
    SELECT @@global.character_set_server, @@global.collation_server, DEFAULT_CHARACTER_SET_NAME,
        DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s
"""


class LogPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place as the engine says it: a transaction's beginning, and what is done of it.

    `gtids`: the transactions before it. `event`, `row`: of the transaction, how many are done.
    """

    file: str
    pos: int
    gtids: str | None = None
    event: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class NotedSchema:
    """A table at a place: the statement that makes it, and those of its server and database."""

    table: str
    columns: int
    statement: str
    server: str
    database: str


@dataclass(frozen=True, slots=True)
class LogNote:
    """Where a source begins."""

    at: LogPlace
    schema: NotedSchema


@dataclass(frozen=True, slots=True)
class TextKey:
    """How the text of a key column is compared."""

    charset: str
    collation: str


@dataclass(frozen=True, slots=True)
class BinlogTable:
    """A table whose changes can be read.

    `key`: its primary key, in the order of the index; `texts`: of its columns that are text.
    """

    table: ExternalTable
    key: tuple[KeyColumn, ...]
    texts: tuple[TextKey | None, ...]
    connector: str

    @property
    def name(self) -> str:
        return f"{self.table.schema}.{self.table.name}"


class TableTask(BinlogTask):
    """A task that reads a table's changes; its calls raise `ChangesLost`, too."""

    def look(self) -> bool:
        with losses():
            return super().look()

    def take(self) -> list[str]:
        with losses():
            return super().take()


@contextmanager
def losses() -> Iterator[None]:
    """Raise `ChangesLost` where the engine says that the place is not in the log any more."""
    try:
        yield
    except ChangeEngineFailed as failed:
        if any(words in str(failed) for words in LOST):
            raise ChangesLost(f"the server has not kept its log ({failed}); {REWIND}") from failed
        raise


def holds(gtids: str, others: str) -> bool:
    """Return whether transactions hold others. Both are texts of one server."""
    of = _of_mysql if ":" in gtids + others else _of_mariadb
    held, wanted = of(gtids), of(others)
    return all(
        any(low <= first and last <= high for low, high in held.get(source, ()))
        for source, spans in wanted.items()
        for first, last in spans
    )


def _of_mariadb(gtids: str) -> dict[str, list[tuple[int, int]]]:
    """Return the numbers of transactions of each domain: the last one counts, of any server."""
    found: dict[str, list[tuple[int, int]]] = {}
    for domain, _, number in (each.strip().split("-") for each in gtids.split(",") if each.strip()):
        highest = max([int(number), *(high for _, high in found.get(domain, ()))])
        found[domain] = [(0, highest)]
    # Only the last transaction of each domain is wanted: those before it come before it.
    return found


def _of_mysql(gtids: str) -> dict[str, list[tuple[int, int]]]:
    """Return the numbers of transactions of each server, joined."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in filter(None, gtids.replace("\n", "").split(",")):
        source, *spans = each.strip().split(":")
        for span in spans:
            first, _, last = span.partition("-")
            found.setdefault(source.lower(), []).append((int(first), int(last or first)))
    return {source: _joined(sorted(spans)) for source, spans in found.items()}


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def server_id(base: str) -> int:
    """Return the id of a source among the server's replicas, which must differ: theirs are small.

    A second reader of the source has the same one, and the server ends the connection of the first.
    """
    hashed = int.from_bytes(hashlib.sha256(base.encode()).digest()[:8], "big")
    return 1_000_000_000 + hashed % 3_000_000_000


def first_read(table: BinlogTable, after: Sequence[str] | None) -> str:
    """Return the query of the rows behind the key `after`, in the order of the primary key."""
    keys = [_quoted(each.name) for each in table.key]
    where = ""
    if after is not None:
        values = [_literal(text, how) for text, how in zip(after, table.texts, strict=True)]
        # Servers look only this form up in the index.
        each_behind = (
            " AND ".join(
                [f"{key} = {value}" for key, value in zip(keys[:n], values[:n], strict=True)]
                + [f"{keys[n]} > {values[n]}"]
            )
            for n in range(len(keys))
        )
        where = " WHERE " + " OR ".join(f"({behind})" for behind in each_behind)
    return f"{_selected(table)}{where} ORDER BY {', '.join(keys)}"  # quoted above


def newest_rows(table: BinlogTable, count: int) -> str:
    """Return the query of the rows with the highest keys."""
    keys = ", ".join(f"{_quoted(each.name)} DESC" for each in table.key)
    return f"{_selected(table)} ORDER BY {keys} LIMIT {count}"


class Binlog:
    """The binary log of a database's server, for one table. The calls block.

    Raises `ExternalMySQLUnusable`.
    """

    def __init__(self, database: ExternalMySQL, table: str) -> None:
        self._database, self._table = database, table

    def describe(self) -> BinlogTable:
        """Return what the table is, if its changes can be read."""
        with self._database.connect() as connection:
            found = logged_table(self._database, connection, self._table)
            require_rows(self._database, connection, found)
            return found

    def note(self, table: BinlogTable) -> LogNote:
        """Return where a source begins: rows that are read from now on hold all before it."""
        with self._database.connect() as connection:
            # Else names are quoted in another way.
            rows_of(connection, "SET SESSION sql_mode = ''")
            [(server, order, charset, collation)] = rows_of(
                connection, DEFAULTS, (table.table.schema,)
            )
            schema, names = _quoted(table.table.schema), (table.table.schema, table.table.name)
            for _ in range(NOTES):
                before, at = _statement(connection, *names), _place(connection, table)
                if _statement(connection, *names) == before and at is not None:
                    noted = NotedSchema(
                        table.table.name,
                        len(table.table.columns),
                        before,
                        f"SET character_set_server={server}, collation_server={order}",
                        f"CREATE DATABASE {schema} CHARSET {charset} COLLATE {collation}",
                    )
                    return LogNote(at, noted)
        raise ExternalMySQLUnusable(
            f"connector `{self._database.name}`: the binary log of the server has no transaction "
            f"yet, or table `{table.name}` is altered all the time; it is tried again"
        )

    def end(self) -> str:
        """Return the GTIDs that are in the log at this moment.

        Raises `ExternalMySQLUnusable` also if the table cannot be read any more.
        """
        with self._database.connect() as connection:
            found = logged_table(self._database, connection, self._table)
            require_rows(self._database, connection, found)
            _require_plain_gtids(self._database, connection, found.connector)
            where = "gtid_binlog_pos" if found.connector == MARIADB else "gtid_executed"
            [(gtids,)] = rows_of(connection, f"SELECT @@global.{where}")
            return str(gtids)


def logged_table(database: ExternalMySQL, connection: Connection, name: str) -> BinlogTable:
    """Return what a table is, if its changes can be read. Raises `ExternalMySQLUnusable`."""
    where = f"connector `{database.name}`"
    found = rows_of(connection, TABLE, (name,))
    if not found:
        raise ExternalMySQLUnusable(
            f"{where}: database `{database.database}` has no table `{name}`; create it, or give "
            "the user the right to read it"
        )
    [(schema, own, kind, options, rows)] = found
    title = f"{where}: table `{schema}.{own}`"
    if kind != "BASE TABLE" or "partitioned" in str(options or "").lower():
        what = (
            "a view" if "VIEW" in kind else f"a table of the kind {kind.lower()}, or has partitions"
        )
        raise ExternalMySQLUnusable(
            f"{title} is {what}, which changes without rows in the log; read a plain table"
        )
    columns = tuple(
        _as_sent(as_column(each)) for each in rows_of(connection, COLUMNS, (schema, own))
    )
    odd = [each for each in columns if NOT_DECODED.search(each.declared)]
    if odd:
        raise ExternalMySQLUnusable(
            f"{title} has column `{odd[0].name}` of type {odd[0].declared}, which the engine does "
            "not read; give it another type"
        )
    for part in (schema, own):
        if not SIMPLE.issuperset(part):
            raise ExternalMySQLUnusable(
                f"{title} has a name with other characters than letters, digits, `_` and `$`, "
                "which the engine would read as a pattern; give it another name"
            )
    if CASCADES.search(_statement(connection, schema, own)):
        raise ExternalMySQLUnusable(
            f"{title} has a foreign key that cascades or sets null, by which the server changes "
            "rows without a word in its log; let it restrict, and change the rows by statements"
        )
    key, texts = _key(title, rows_of(connection, KEY, (schema, own)))
    connector = connector_of(connection)
    kind = "mariadb" if connector == MARIADB else "mysql"
    origin = f"{kind}/{schema}/{own}"
    table = ExternalTable(schema, own, origin, 0, 0, columns, rows or 0, frozenset(), key[0].name)
    return BinlogTable(table, key, texts, connector)


def connector_of(connection: Connection) -> str:
    """Return the engine's connector for a server: neither reads the other's log in full."""
    [(version,)] = rows_of(connection, "SELECT VERSION()")
    return MARIADB if "mariadb" in version.lower() else MYSQL


def require_log(database: ExternalMySQL, connection: Connection, table: BinlogTable) -> None:
    """Raise `ExternalMySQLUnusable` unless the user may read the changes of the table."""
    title = f"connector `{database.name}`, changes of table `{table.name}`"
    [(version,)] = rows_of(connection, "SELECT VERSION()")
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers < ((10, 5) if table.connector == MARIADB else (8, 0)):
        raise ExternalMySQLUnusable(f"{title} need MySQL 8.0 or MariaDB 10.5, or newer")
    require_rows(database, connection, table)
    _require_plain_gtids(database, connection, table.connector)
    grants = " ".join(row[0].upper() for row in rows_of(connection, "SHOW GRANTS"))
    if "REPLICATION SLAVE" not in grants and "ALL PRIVILEGES ON *.*" not in grants:
        raise ExternalMySQLUnusable(
            f"{title} need a right; run `GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "
            f"{database.user}`"
        )
    try:
        _status(connection, table.connector)
    except Exception as refused:
        if "denied" not in str(refused):
            raise
        raise ExternalMySQLUnusable(
            f"{title} need a right; run `GRANT REPLICATION CLIENT ON *.* TO {database.user}`"
        ) from refused
    rows_of(connection, f"{_selected(table)} LIMIT 0")


def require_rows(database: ExternalMySQL, connection: Connection, table: BinlogTable) -> None:
    """Raise `ExternalMySQLUnusable` unless the server writes all changes into its log, as rows.

    What it does not write so, the engine passes over without a word.
    """
    found = rows_of(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (list(LOGGED),))
    wrong = [
        f"{name}={LOGGED[name] or repr('')}"
        for name, value in sorted(found)
        if value.upper() != LOGGED[name]
    ]
    if wrong:
        raise ExternalMySQLUnusable(
            f"connector `{database.name}`, changes of table `{table.name}` need a server with "
            f"{', '.join(wrong)}; set it, and let a table be read again that was changed without"
        )


def _as_sent(column: ExternalColumn) -> ExternalColumn:
    """Return a column as its changes have it: they know no times of whole days."""
    options = column.declared.replace("','", "")
    is_odd = options.startswith(("enum(", "set(")) and ESCAPED.search(options)
    if is_odd or column.type.startswith("time without"):
        return replace(column, type="bytea", category="U")
    return column


def _require_plain_gtids(database: ExternalMySQL, connection: Connection, connector: str) -> None:
    if connector == MARIADB:
        return
    [(gtids,)] = rows_of(connection, "SELECT @@global.gtid_executed")
    if re.search(r":[A-Za-z_]", gtids):
        raise ExternalMySQLUnusable(
            f"connector `{database.name}`: transactions of the server have GTIDs with tags, which "
            "the engine does not follow; do not use tags (`gtid_next`)"
        )


def _key(
    title: str, found: Sequence[tuple[Any, ...]]
) -> tuple[tuple[KeyColumn, ...], tuple[TextKey | None, ...]]:
    if not found:
        raise ExternalMySQLUnusable(
            f"{title} has no primary key, by which its changes name rows; add one"
        )
    key, texts = [], []
    for name, type_, charset, collation in found:
        if type_.lower() not in (*INTEGERS, *TEXTS):
            raise ExternalMySQLUnusable(
                f"{title} has `{name}` of type {type_} in its primary key; the first read goes on "
                f"behind keys of the types {', '.join((*INTEGERS, *TEXTS))}"
            )
        key.append(KeyColumn(name, type_.lower()))
        texts.append(None if charset is None else TextKey(charset, collation))
    return tuple(key), tuple(texts)


def _statement(connection: Connection, schema: str, table: str) -> str:
    at = f"{_quoted(schema)}.{_quoted(table)}"
    [(_, statement)] = rows_of(connection, f"SHOW CREATE TABLE {at}")
    return str(statement)


def _place(connection: Connection, table: BinlogTable) -> LogPlace | None:
    """Return a place before which all is visible to queries from now on; None if it has no GTID."""
    if table.connector == MYSQL:
        file, pos, gtids = _status(connection, MYSQL)
        return LogPlace(file, pos, gtids) if gtids else None
    rows_of(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    file, pos, _ = _snapshot(connection)
    rows_of(connection, "COMMIT")
    [(gtids,)] = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, pos))
    return LogPlace(file, pos, gtids) if gtids else None


def _snapshot(connection: Connection) -> tuple[str, int, str]:
    query = "SHOW STATUS LIKE 'binlog_snapshot_%'"
    found = {name.lower(): value for name, value in rows_of(connection, query)}
    return found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]), ""


def _status(connection: Connection, connector: str) -> tuple[str, int, str]:
    """Return the end of the log: file, position, and of MySQL the GTIDs."""
    if connector == MARIADB:
        [row] = rows_of(connection, "SHOW MASTER STATUS")
        return row[0], int(row[1]), ""
    [(version,)] = rows_of(connection, "SELECT VERSION()")
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    what = "SHOW BINARY LOG STATUS" if numbers >= (8, 2) else "SHOW MASTER STATUS"
    [row] = rows_of(connection, what)
    return row[0], int(row[1]), str(row[4]).replace("\n", "")


def _selected(table: BinlogTable) -> str:
    """Return the query of all rows; columns by name, as `*` leaves invisible ones out."""
    columns = ", ".join(_value(each) for each in table.table.columns)
    at = f"{_quoted(table.table.schema)}.{_quoted(table.table.name)}"
    return f"SELECT {columns} FROM {at}"  # noqa: S608  # quoted


def _value(column: ExternalColumn) -> str:
    """Return what is read of a column first, so that it is as its changes have it."""
    name = _quoted(column.name)
    if column.declared.startswith("year"):
        # The year zero, which a driver does not read, or as 2000.
        return f"CAST(IF({name} = 0, 1900, {name}) AS UNSIGNED) AS {name}"
    return name


def _literal(text: str, how: TextKey | None) -> str:
    if how is None:
        return str(int(text))
    held = f"CONVERT(0x{text.encode().hex()} USING utf8mb4)" if text else "''"
    return f"CONVERT({held} USING {how.charset}) COLLATE {how.collation}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
