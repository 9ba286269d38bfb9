"""The changes of users' MySQL and MariaDB tables as a kind of stream (`change_rounds.py`).

The engine is a JVM of its own, with Debezium's connectors for both servers; which one reads follows
from what the server says it is. A connection that is cut is silent: so heartbeats are watched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fennel_core.connections import external_mysql
from fennel_core.connections.change_engine import (
    BINLOG_JARS,
    ChangeEngine,
    ChangeEngineFailed,
    ChangeTask,
    LogBegin,
    engine_of,
)
from fennel_core.connections.external_binlog import (
    MARIADB,
    Binlog,
    BinlogTable,
    TableTask,
    first_read,
    holds,
    losses,
    newest_rows,
    server_id,
)
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.sources.binlog_cursor import (
    BEAT_MS,
    BinlogCursor,
    BinlogPlace,
    BinlogReading,
    decode_cursor,
)
from fennel_core.sources.binlog_schema import history_of, noted_schema, packed, unpacked
from fennel_core.sources.change_reader import ChangeRoundEnd
from fennel_core.sources.change_rounds import (
    ChangeRounds,
    LogMark,
    batches,
    position_of,
    rows_only,
)
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.wire.connectors import MySQL, MySQLChanges

HEARTBEAT_MS: Final = 60_000
"""How often the engine says where it is although nothing changes; each is a round."""
CUT_S: Final = 60.0
"""A server that sends nothing for so long, not even its heartbeats, is cut off."""
WAIT_S: Final = 3600
"""The server waits for so long for a reader that takes nothing."""
LOOK_S: Final = 20.0
"""A task that delivers nothing for so long is asked about its connection."""
MARK_LATE_S: Final = 30.0
"""A mark that is not shown for so long shows that changes are left."""
TLS: Final = {
    "mysql": {"disable": "disabled", "trust": "required", "verify-full": "verify_identity"},
    "mariadb": {"disable": "disable", "trust": "trust", "verify-full": "verify-full"},
}
_decode_end: Final = msgspec.json.Decoder(ChangeRoundEnd[BinlogPlace]).decode


@dataclass(frozen=True, slots=True)
class BinlogSource:
    """A table whose changes are read; `base`: its name among the replicas of the server.

    `rows_per_s`: the limit of its reader, if there is one.
    """

    database: ExternalMySQL
    log: Binlog
    table: BinlogTable
    base: str
    heartbeat_ms: int = HEARTBEAT_MS
    beat_ms: int = BEAT_MS
    rows_per_s: float | None = None

    @property
    def reading(self) -> BinlogReading:
        at = self.table.table
        return BinlogReading(at.schema, at.name, self.table.key, self.beat_ms)

    @property
    def task_type(self) -> type[ChangeTask]:
        return TableTask

    @property
    def mark_late_s(self) -> float:
        return MARK_LATE_S

    @property
    def kind(self) -> str:
        return "mariadb" if self.table.connector == MARIADB else "mysql"

    def begin(self, position: SourcePosition) -> ChangeRoundEnd[BinlogPlace]:
        """Begin at a position, or at the end of the log; blocks.

        Raises `ExternalMySQLUnusable`.
        """
        cursor = decode_cursor(position.cursor) or self.first_cursor()
        stream = StreamPlace(position.next, position.cursor)
        return ChangeRoundEnd(stream, BinlogPlace.of(cursor))

    def first_cursor(self) -> BinlogCursor:
        """Return the cursor of a source that begins now; blocks."""
        noted = self.log.note(self.table)
        return BinlogCursor(noted.at, packed(noted_schema(noted.schema)), first=True)

    def follow(self, end: ChangeRoundEnd[BinlogPlace]) -> ChangeRoundEnd[BinlogPlace]:
        """Let the changes follow the end of the first read."""
        return replace(end, at=BinlogPlace.of(end.at.cursor), more=True)

    def started(self, engine: ChangeEngine, name: str, place: BinlogPlace) -> ChangeTask:
        """Start a task of the engine. Raises `ChangesLost` if the log is not there any more."""
        cursor, task = place.cursor, f"{self.table.connector}Task"
        begin = None
        if not cursor.first:
            offset = {k: v for k, v in msgspec.to_builtins(cursor.at).items() if v is not None}
            history = history_of(unpacked(cursor.schema), self.table.table.schema)
            begin = LogBegin(offset, list(history))
        with losses():
            started = engine.start_binlog(name, task, self.properties(cursor), begin)
        return TableTask(engine.address, started.name)

    def mark(self, place: BinlogPlace) -> LogMark:
        """Return which transactions are in the log."""
        del place
        return LogMark(self.log.end())

    def shows(self, token: str, mark: str) -> bool:
        return holds(token, mark)

    def claim(self, place: BinlogPlace) -> None:
        """Do nothing: the server keeps nothing for a reader."""

    def watch(self, task: ChangeTask, silent_s: float) -> str | None:
        """Raise `ChangeEngineFailed` for a connection that was cut, also by another reader."""
        assert isinstance(task, TableTask)
        if silent_s > LOOK_S:
            sent_s = task.silent_s(self.kind)
            if sent_s > CUT_S or not task.is_connected(self.kind):
                raise ChangeEngineFailed(
                    f"nothing came from the binary log of {self.database.host}:"
                    f"{self.database.port} for {sent_s:.0f} s; the connection is made again"
                )
        return task.received(self.kind) or None

    def decode_end(self, text: bytes) -> ChangeRoundEnd[BinlogPlace]:
        return _decode_end(text)

    def properties(self, cursor: BinlogCursor) -> dict[str, str]:
        """Return what the engine needs to read rows first, or changes."""
        database, at = self.database, self.table.table
        given = {
            "connector.class": self.table.connector,
            "database.hostname": database.host,
            "database.port": str(database.port),
            "database.user": database.user,
            "database.password": database.password,
            "database.server.id": str(server_id(self.base)),
            "database.ssl.mode": TLS[self.kind][database.tls],
            "database.include.list": re.escape(at.schema),
            "table.include.list": re.escape(self.table.name),
            "connect.keep.alive": "false",  # it would read transactions again by itself
            # The server's own heartbeats, which carry the engine's.
            "connect.keep.alive.interval.ms": str(self.heartbeat_ms // 3),
            "heartbeat.interval.ms": str(self.heartbeat_ms),
            "enable.time.adjuster": "false",  # of years below 100
            "bigint.unsigned.handling.mode": "precise",
            "converter.decimal.format": "NUMERIC",
            "snapshot.locking.mode": "none",
            # Nothing is read from the server while a reader waits for its turn and its limit.
            "binlog.net.write.timeout": str(WAIT_S),
            **batches(self.rows_per_s),
            # As the server means TINYINT(1).
            "converters": "boolean",
            "boolean.type": "io.debezium.connector.binlog.converters.TinyIntOneToBooleanConverter",
            "boolean.selector": f"{re.escape(self.table.name)}\\..*",
        }
        if self.kind == "mysql":
            given["database.allowPublicKeyRetrieval"] = "true"
        else:
            # Wrong after a failover; the server itself refuses what it does not have.
            given["internal.log.position.check.enable"] = "false"
        if cursor.first:
            return {**given, **self._rows(first_read(self.table, cursor.key))}
        return {
            **given,
            "snapshot.mode": "no_data",
            "include.schema.changes": "true",
            # Of all tables of the database: another one may be renamed to this one.
            "schema.history.internal.store.only.captured.tables.ddl": "false",
            # Of all databases, with those that it cannot read: `binlog_schema` judges them.
            "schema.history.internal.store.only.captured.databases.ddl": "false",
            "schema.history.internal.skip.unparseable.ddl": "true",
        }

    def newest(self, cursor: BinlogCursor, count: int) -> dict[str, str]:
        """Return what the engine needs to deliver the rows with the highest keys, and no more."""
        return {**self.properties(cursor), **self._rows(newest_rows(self.table, count))}

    def _rows(self, query: str) -> dict[str, str]:
        return {
            **rows_only(self.table.name, query),
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
            "include.schema.changes": "false",
            # Else the tables of all databases are looked at.
            "schema.history.internal.store.only.captured.tables.ddl": "true",
            "schema.history.internal.store.only.captured.databases.ddl": "true",
        }


def opened_log(table: MySQLChanges, open_secret: OpenSecret) -> tuple[ExternalMySQL, Binlog]:
    """Return the database of a table, and its log."""
    assert isinstance(table.db, MySQL), "names are resolved before"
    database = external_mysql.opened(table.db, open_secret)
    return database, Binlog(database, table.table)


def start(by: StartedBy, table: MySQLChanges) -> ChangeRounds[BinlogPlace]:
    """Start to read the changes of a table at their position; blocks.

    Raises `ConnectionsError` and `SourceError`.
    """
    feed = by.feed
    database, log = opened_log(table, lambda secret: by.open_secret(feed.workspace, secret))
    described = log.describe()
    position = position_of(by, described.table.origin)
    # Two platforms may read one server.
    base = f"{by.settings.kafka_bootstrap}/{by.settings.s3_bucket}/{feed.raw_topic}"
    name, rows_per_s = f"fennel-{server_id(base)}", feed.rows_per_s
    source = BinlogSource(database, log, described, name, rows_per_s=rows_per_s)
    return ChangeRounds(by, engine_of(by.settings, BINLOG_JARS), source, position)
