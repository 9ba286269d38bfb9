"""The changes of a Postgres table: the publication that names it, and the slot that keeps its log.

Theory. A *replication slot* makes the server keep its write-ahead log (WAL) from a place on, the
slot's confirmed place, and send the transactions that commit behind it, whole and in the order of
their commits. So a place in the changes is the end of a commit, and a number of changes of the
transaction that follows. The server forgets what is before the confirmed place: it is moved behind
what the platform has written, and never further.

A slot begins at a place of its own choice: a transaction is either seen by every snapshot that is
taken later, or it is sent. The publication has to be there before, as the server looks it up as of
each transaction.

Each reader that begins makes a slot of its own, and the position names the one that counts: of two
that begin at once, the second to write the position has none. So no reader touches the slot of
another before the position is its own; then it drops those of the source that do not count. Readers
that fail again and again before they write would leave one slot each, so a reader that begins drops
all but the newest of them.

A slot that is not dropped fills the disk of the user's server, so the platform remembers the name
that all of a source have in common before it makes one (`sources/change_slots.py`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, LiteralString

import psycopg
from psycopg import sql

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_postgres import (
    STATEMENT_MS,
    ExternalPostgres,
    ExternalPostgresUnusable,
    ExternalTable,
    describe_table,
)

Connection = psycopg.Connection[tuple[Any, ...]]
MIN_VERSION: Final = 140_000
"""The first server that sends marks (`pg_logical_emit_message`) with the changes."""
FILTERS_VERSION: Final = 150_000
"""The first server whose publications may leave out rows and columns."""
LOG_MS: Final = 600_000
"""How long a slot may take to begin, which waits for running transactions, or to be moved."""
TAKE_OVER_S: Final = 10.0
"""How long the reader before may take to give a slot up, once its connection was ended."""
LOOK_S: Final = 0.1
SIMPLE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$")
"""Characters of names that mean nothing to the engine, which reads names as patterns."""
ADDRESS: Final = frozenset("%+/?")
"""Characters of a database's name that the engine's driver reads as parts of an address."""
WAITING: Final = 2
"""Slots of readers that have written nothing yet: more are left of readers that have failed."""
KEY_CASTS: Final[Mapping[str, sql.SQL]] = {
    "smallint": sql.SQL("smallint"),
    "integer": sql.SQL("integer"),
    "bigint": sql.SQL("bigint"),
    "numeric": sql.SQL("numeric"),
    "text": sql.SQL("text"),
    "character varying": sql.SQL("character varying"),
    "uuid": sql.SQL("uuid"),
    "date": sql.SQL("date"),
    "timestamp with time zone": sql.SQL("timestamp with time zone"),
    "timestamp without time zone": sql.SQL("timestamp without time zone"),
}
"""Types of primary keys: the first read goes on behind the last key that was written."""
SENT: Final = frozenset(
    {
        *("smallint", "integer", "bigint", "numeric", "real", "double precision", "money", "oid"),
        *("text", "character varying", "character", "citext", "ltree", "boolean", "uuid", "xml"),
        *("json", "jsonb", "hstore", "inet", "cidr", "macaddr", "macaddr8", "tsvector"),
        *("date", "timestamp with time zone", "timestamp without time zone", "interval"),
        *("time with time zone", "time without time zone"),
        *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    }
)
"""Types whose values changes have, beside enums and arrays; of others the engine sends nothing."""
MARKED_ARRAYS: Final = frozenset(
    {"integer[]", "bigint[]", "text[]", "character varying[]", "json[]", "jsonb[]", "uuid[]"}
)
"""Arrays that a change says it does not have if they are large and unchanged; others are null."""
KEY: Final[LiteralString] = """
    SELECT c.relreplident::text, c.relpersistence::text,
        (SELECT i.indimmediate FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
        (SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i
         CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts),
        (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated <> '')
    FROM pg_class c WHERE c.oid = %(oid)s
"""
RIGHTS: Final[LiteralString] = """
    SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
        pg_is_in_recovery(),
        (SELECT count(*) FROM pg_replication_slots)
            < current_setting('max_replication_slots')::int,
        has_database_privilege(current_database(), 'CREATE')
            AND pg_has_role((SELECT relowner FROM pg_class WHERE oid = %(oid)s), 'USAGE')
"""
UNREADABLE: Final[LiteralString] = """
    SELECT t.oid::regtype::text FROM pg_type t
    WHERE t.typcategory = 'E' AND NOT EXISTS (SELECT FROM pg_enum e WHERE e.enumtypid = t.oid)
    ORDER BY 1 LIMIT 1
"""
PUBLICATIONS: Final[LiteralString] = """
    SELECT p.pubname::text FROM pg_publication p
    JOIN pg_publication_tables t ON t.pubname = p.pubname
    WHERE t.schemaname = %(schema)s AND t.tablename = %(table)s
        AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate
"""
PUBLISHED: Final[LiteralString] = """
    SELECT concat_ws('/', p.oid, r.oid) FROM pg_publication p
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(oid)s
    WHERE p.pubname = %(publication)s
"""
STILL_PUBLISHED: Final[LiteralString] = """
    SELECT (SELECT count(*) FROM pg_publication WHERE oid = ANY (%(ids)s))
        + (SELECT count(*) FROM pg_publication_rel WHERE oid = ANY (%(ids)s))
"""
WHOLE: Final[LiteralString] = """
        AND t.rowfilter IS NULL AND NOT EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' AND a.attname <> ALL (t.attnames))
"""
BEGIN: Final[LiteralString] = """
    SELECT (lsn - '0/0')::bigint FROM pg_create_logical_replication_slot(%(slot)s, 'pgoutput')
"""
OF_SOURCE: Final[LiteralString] = """
    SELECT slot_name::text FROM pg_replication_slots
    WHERE starts_with(slot_name::text, %(base)s || '_') AND database = current_database()
    ORDER BY 1
"""
LEFT: Final[LiteralString] = """
    SELECT slot_name::text FROM (
        SELECT slot_name, wal_status, row_number() OVER (
            ORDER BY wal_status = 'lost', confirmed_flush_lsn DESC NULLS FIRST) AS place
        FROM pg_replication_slots
        WHERE starts_with(slot_name::text, %(base)s || '_') AND database = current_database()
    ) AS own WHERE wal_status = 'lost' OR place > %(waiting)s
"""
"""Slots of a source that was not written yet: those that lost their log, and all but the newest."""
SLOT: Final[LiteralString] = """
    SELECT active_pid, wal_status::text, (confirmed_flush_lsn - '0/0')::bigint,
        pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
        (pg_current_wal_flush_lsn() - '0/0')::bigint
    FROM pg_replication_slots WHERE slot_name = %(slot)s AND database = current_database()
"""
ADVANCE: Final[LiteralString] = "SELECT pg_replication_slot_advance(%(slot)s, %(lsn)s)"
DROP: Final[LiteralString] = "SELECT pg_drop_replication_slot(%(slot)s)"
MARK: Final[LiteralString] = "SELECT pg_logical_emit_message(true, %(base)s, %(token)s)"


class ChangesLost(ConnectionsError):
    """The server has not kept the changes that follow those that were read.

    Its slot was dropped, moved by another program, or went beyond `max_slot_wal_keep_size`. Read
    the table again: `fennel-core source rewind NAME --to earliest`.
    """

    code: ClassVar[str] = "source-changes-lost"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a primary key, and its type without length and domains."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table whose changes can be read; `key`: its primary key, in the order of its index.

    `whole`: changes have the old row and large values that did not change (REPLICA IDENTITY FULL).
    `generated`: columns that changes do not have.
    """

    table: ExternalTable
    key: tuple[KeyColumn, ...]
    whole: bool
    generated: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.table.schema}.{self.table.name}"


@dataclass(frozen=True, slots=True)
class LogBegin:
    """A new slot: where it begins, and the publication that it is read with.

    `published`: the ids of the publication, and of the table in it.
    """

    slot: str
    lsn: int
    publication: str
    published: str


@dataclass(frozen=True, slots=True)
class LogState:
    """What a slot keeps of the log."""

    retained_bytes: int


def lsn_text(lsn: int) -> str:
    """Return a place in the log as Postgres writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def first_read(table: LoggedTable, after: Sequence[str] | None) -> str:
    """Return the query of the rows behind the key `after`, in the order of the primary key."""
    names = [sql.Identifier(each.name) for each in table.key]
    query: sql.Composed = sql.SQL("SELECT * FROM {}").format(table.table.identifier)
    comma = sql.SQL(", ")
    if after is not None:
        values = [
            sql.SQL("{}::{}").format(sql.Literal(text), KEY_CASTS[each.type])
            for text, each in zip(after, table.key, strict=True)
        ]
        query += sql.SQL(" WHERE ({}) > ({})").format(comma.join(names), comma.join(values))
    return (query + sql.SQL(" ORDER BY {}").format(comma.join(names))).as_string(None)


def newest_rows(table: LoggedTable, count: int) -> str:
    """Return the query of the rows with the highest keys."""
    query = sql.SQL("SELECT * FROM {} ORDER BY {} LIMIT {}").format(
        table.table.identifier,
        sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(c.name)) for c in table.key),
        sql.Literal(count),
    )
    return query.as_string(None)


class PostgresLog:
    """The log of a database, for one source; `base`: how the names of its slots begin.

    The calls block. Raises `ExternalPostgresUnusable` for what can be mended, and `ChangesLost`.
    """

    def __init__(
        self,
        database: ExternalPostgres,
        table: str,
        base: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._database, self._table, self._base = database, table, base
        self._sleep = sleep

    def describe(self) -> LoggedTable:
        """Return what the table is, if its changes can be read."""
        with self._connected(writes=False) as connection:
            require_types(self._database, connection)
            return logged_table(self._database, connection, self._table)

    def begin(self, table: LoggedTable) -> LogBegin:
        """Make a slot, and a publication if there is none.

        The newest of the other slots are left alone: they may be of readers that begin now.
        """
        slot = f"{self._base}_{uuid.uuid4().hex[:8]}"
        with self._connected(LOG_MS) as connection:
            publication = self._published(connection, table)
            given = {"base": self._base, "waiting": WAITING}
            for (left,) in connection.execute(LEFT, given).fetchall():
                self._taken_over(connection, left, DROP)
            # It waits for the transactions that run, as for locks; that is limited as a statement.
            connection.execute("SET lock_timeout = 0")
            try:
                row = connection.execute(BEGIN, {"slot": slot}).fetchone()
            except psycopg.errors.QueryCanceled as late:
                raise self._unusable(
                    f"slot `{slot}` could not begin in {LOG_MS // 1000} s, because a transaction "
                    "is open for so long, also of the first read of another source; wait for it, "
                    "or end it (`pg_stat_activity` shows it)"
                ) from late
            assert row is not None, "a slot that is made has a place"
            given = {"publication": publication, "oid": table.table.oid}
            ids = connection.execute(PUBLISHED, given).fetchone()
            if ids is None:
                raise self._unusable(f"publication `{publication}` was dropped at this moment")
            return LogBegin(slot, int(row[0]), publication, ids[0])

    def resume(self, slot: str, lsn: int, published: str, *, streams: bool) -> None:
        """Take a slot over from the reader before; if it `streams`, move it to `lsn`.

        Raises `ChangesLost` if it has not kept the changes from there on.
        """
        with self._connected(LOG_MS) as connection:
            self._require_published(connection, published)
            confirmed, end = self._kept(connection, slot)
            if confirmed > lsn:
                raise ChangesLost(
                    f"{self._title()}: slot `{slot}` was moved to {lsn_text(confirmed)} by "
                    f"another program, and changes were read up to {lsn_text(lsn)}; let the table "
                    "be read again with `fennel-core source rewind NAME --to earliest`"
                )
            if lsn > end:
                raise ChangesLost(
                    f"{self._title()}: changes were read up to {lsn_text(lsn)}, and the log of the "
                    f"server ends at {lsn_text(end)}, as after a restore; let the table be read "
                    "again with `fennel-core source rewind NAME --to earliest`"
                )
            self._taken_over(connection, slot, ADVANCE, lsn if streams else confirmed)

    def look(self, table: LoggedTable, at: LogBegin, token: str) -> LogState:
        """Write a mark into the log, which comes behind all changes before; return what is kept.

        Raises `ExternalPostgresUnusable` if the table is not published any more, and `ChangesLost`
        if that was so since the beginning.
        """
        with self._connected() as connection:
            found = logged_table(self._database, connection, self._table)
            if found.table.oid != table.table.oid:
                raise self._unusable("the table was created again; its changes are others")
            if at.publication not in _publications(connection, table):
                raise self._unusable(
                    f"publication `{at.publication}` has not all changes of `{table.name}` any "
                    "more; put them back, and read the table again with `fennel-core source rewind "
                    "NAME --to earliest`"
                )
            self._require_published(connection, at.published)
            self._kept(connection, at.slot)
            connection.execute(MARK, {"base": self._base, "token": token})
            row = connection.execute(SLOT, {"slot": at.slot}).fetchone()
            return LogState(int(row[3] or 0) if row is not None else 0)

    def keep_only(self, slot: str) -> None:
        """Drop the slots of the source that do not count."""
        with self._connected() as connection:
            self._drop(connection, slot)

    def drop(self) -> None:
        """Drop all slots of the source, and its publication, if they are there."""
        with self._connected() as connection:
            self._drop(connection, None)
            query = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self._base))
            connection.execute(query)

    def _require_published(self, connection: Connection, published: str) -> None:
        """Raise `ChangesLost` if a publication is another one than at the beginning."""
        ids = [int(each) for each in published.split("/") if each]
        row = connection.execute(STILL_PUBLISHED, {"ids": ids}).fetchone()
        if row is None or row[0] != len(ids):
            raise ChangesLost(
                f"{self._title()}: its publication was made again, or the table was out of it; "
                "what was changed by then was not sent; let the table be read again with "
                "`fennel-core source rewind NAME --to earliest`"
            )

    def _published(self, connection: Connection, table: LoggedTable) -> str:
        """Return a publication with all changes of the table; make one if there is none."""
        found = _publications(connection, table)
        if found:
            return self._base if self._base in found else found[0]
        own = sql.Identifier(self._base)  # one that lacks the table is of one before it
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(own))
        connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE ONLY {}").format(own, table.table.identifier)
        )
        return self._base

    @contextmanager
    def _connected(
        self, statement_ms: int = STATEMENT_MS, *, writes: bool = True
    ) -> Iterator[Connection]:
        """Yield a connection that is cut in the end: the server itself limits its statements, and
        it may be frozen, or wait for its disk.
        """
        with self._database.connect(statement_ms, writes=writes) as connection:
            socket_ = socket.socket(fileno=os.dup(connection.fileno()))
            late = threading.Timer(2 * statement_ms / 1000 + TAKE_OVER_S, _cut, [socket_])
            late.daemon = True
            late.start()
            try:
                yield connection
            finally:
                late.cancel()
                socket_.close()

    def _kept(self, connection: Connection, slot: str) -> tuple[int, int]:
        """Return the confirmed place of a slot, and the end of the log. Raises `ChangesLost`."""
        row = connection.execute(SLOT, {"slot": slot}).fetchone()
        if row is None or row[1] == "lost":
            what = "is gone" if row is None else "has lost its log (`max_slot_wal_keep_size`)"
            raise ChangesLost(
                f"{self._title()}: slot `{slot}` {what}, so changes may be missing; let the "
                "table be read again with `fennel-core source rewind NAME --to earliest`"
            )
        return int(row[2]), int(row[4])

    def _drop(self, connection: Connection, kept: str | None) -> None:
        for (slot,) in connection.execute(OF_SOURCE, {"base": self._base}).fetchall():
            if slot != kept:
                self._taken_over(connection, slot, DROP)

    def _taken_over(
        self, connection: Connection, slot: str, query: LiteralString, lsn: int = 0
    ) -> None:
        """Run a query about a slot, whose reader is ended. What it still delivers is fenced.

        One that begins late may take the slot once more.
        """
        deadline_s = time.monotonic() + TAKE_OVER_S
        while True:
            row = connection.execute(SLOT, {"slot": slot}).fetchone()
            if row is not None and row[0] is not None:
                connection.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": row[0]})
                self._sleep(LOOK_S)
            try:
                connection.execute(query, {"slot": slot, "lsn": lsn_text(lsn)})
                return
            except psycopg.errors.UndefinedObject:
                if query == DROP:
                    return
                raise
            except psycopg.errors.ObjectInUse as used:
                if time.monotonic() > deadline_s:
                    raise self._unusable(f"slot `{slot}` is still read: {used}") from used

    def _title(self) -> str:
        return f"connector `{self._database.name}`, changes of table `{self._table}`"

    def _unusable(self, text: str) -> ExternalPostgresUnusable:
        return ExternalPostgresUnusable(f"{self._title()}: {text}")


def logged_table(database: ExternalPostgres, connection: Connection, name: str) -> LoggedTable:
    """Return what a table is, if its changes can be read. Raises `ExternalPostgresUnusable`."""
    table = describe_table(database, connection, name)
    row = connection.execute(KEY, {"oid": table.oid}).fetchone()
    assert row is not None, "the table was there a moment ago"
    identity, persistence, immediate, names, generated = row
    title = f"connector `{database.name}`: table `{table.schema}.{table.name}`"
    types = {column.name: column.type for column in table.columns}
    key = tuple(KeyColumn(each, types[each]) for each in names or ())
    if not key:
        raise ExternalPostgresUnusable(
            f"{title} has no primary key, by which its changes name rows; add one"
        )
    if persistence != "p":
        raise ExternalPostgresUnusable(
            f"{title} is unlogged or temporary, so its changes are in no log; run `ALTER TABLE "
            f"{table.schema}.{table.name} SET LOGGED`"
        )
    if identity == "d" and not immediate:
        # The server would refuse every update and delete of a published table.
        raise ExternalPostgresUnusable(
            f"{title} has a deferrable primary key, which names no rows in changes; run `ALTER "
            f"TABLE {table.schema}.{table.name} REPLICA IDENTITY FULL`"
        )
    if identity not in "df":
        raise ExternalPostgresUnusable(
            f"{title} has a REPLICA IDENTITY that lacks the primary key; run `ALTER TABLE "
            f"{table.schema}.{table.name} REPLICA IDENTITY DEFAULT`, or FULL"
        )
    odd = [column for column in key if column.type not in KEY_CASTS]
    if odd:
        raise ExternalPostgresUnusable(
            f"{title} has `{odd[0].name}` of type {odd[0].type} in its primary key; the first read "
            f"goes on behind keys of the types {', '.join(sorted(KEY_CASTS))}"
        )
    if ADDRESS.intersection(database.database):
        raise ExternalPostgresUnusable(
            f"connector `{database.name}`: the name of database `{database.database}` has one of "
            f"the characters {' '.join(sorted(ADDRESS))}, which the engine would read as a part of "
            "its address; give it another name"
        )
    for part in (table.schema, table.name):
        if not SIMPLE.issuperset(part):
            raise ExternalPostgresUnusable(
                f"{title} has a name with other characters than letters, digits, `_` and `$`, "
                "which the engine would read as a pattern; give it another name"
            )
    return LoggedTable(table, key, identity == "f", frozenset(generated or ()))


def require_log(
    database: ExternalPostgres,
    connection: Connection,
    table: LoggedTable,
    *,
    has_slot: bool = False,
) -> None:
    """Raise `ExternalPostgresUnusable` unless the user may read the changes of the table.

    `has_slot`: they are read already.
    """
    row = connection.execute(RIGHTS, {"oid": table.table.oid}).fetchone()
    assert row is not None, "the query has one row"
    version, level, standby, free, may_publish = row
    title = f"connector `{database.name}`, changes of table `{table.name}`"
    if version < MIN_VERSION:
        raise ExternalPostgresUnusable(f"{title} need Postgres 14 or newer")
    if standby:
        raise ExternalPostgresUnusable(
            f"{title} are read from the server that is written to, and {database.host} is a "
            "standby; give the address of the primary"
        )
    if level != "logical":
        raise ExternalPostgresUnusable(
            f"{title} need `wal_level=logical`, and the server has `{level}`; run `ALTER SYSTEM "
            "SET wal_level = logical` and restart it"
        )
    if not (free or has_slot):
        raise ExternalPostgresUnusable(
            f"{title} need a replication slot, and all are in use; set `max_replication_slots` "
            "higher, or drop slots that are not needed (`pg_replication_slots` shows them)"
        )
    if not may_publish and not _publications(connection, table):
        raise ExternalPostgresUnusable(
            f"{title} need a publication, and the user may make none; let the owner of the table "
            f"run `CREATE PUBLICATION fennel_{table.table.name} FOR TABLE {table.name}`"
        )
    require_types(database, connection)
    database.require_replication()


def require_types(database: ExternalPostgres, connection: Connection) -> None:
    """Raise `ExternalPostgresUnusable` for types of the database at which the engine ends."""
    found = connection.execute(UNREADABLE).fetchone()
    if found is not None:
        raise ExternalPostgresUnusable(
            f"connector `{database.name}`: database `{database.database}` has the type "
            f"`{found[0]}`, an enum without values or a domain over an enum, and the engine of "
            "changes cannot read a database with such a type; replace it"
        )


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _publications(connection: Connection, table: LoggedTable) -> list[str]:
    """Return the publications that have all changes of all columns of a table, by name."""
    whole = WHOLE if connection.info.server_version >= FILTERS_VERSION else ""
    given = {"schema": table.table.schema, "table": table.table.name, "oid": table.table.oid}
    rows = connection.execute(PUBLICATIONS + whole, given).fetchall()
    return sorted(row[0] for row in rows)
