"""The changes of users' Postgres tables as a kind of stream (`change_rounds.py`).

Every minute a mark is written into the user's log. It comes behind all changes that were made
before, so it shows that none is left, and lets the server forget its log although the table does
not change.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fennel_core.connections import external_postgres
from fennel_core.connections.change_engine import ChangeEngine, ChangeTask, engine_of
from fennel_core.connections.external_changes import (
    LogBegin,
    LoggedTable,
    PostgresLog,
    first_read,
    newest_rows,
)
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.sources.change_cursor import (
    ChangeCursor,
    ChangePlace,
    SlotReading,
    decode_cursor,
)
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
from fennel_core.wire.connectors import Postgres, PostgresChanges

CONNECTOR: Final = "io.debezium.connector.postgresql.PostgresConnector"
TASK: Final = f"{CONNECTOR}Task"
SESSION: Final = (
    "-c wal_sender_timeout=1h -c intervalstyle=postgres -c extra_float_digits=1 -c lc_monetary=C"
)
"""How the engine's connections differ from what the server, a database or a user has set.

The engine says nothing to the server while its changes are not taken, as a reader waits for its
turn and its limit. And it reads values in these forms only.
"""
FETCH_ROWS: Final = 128
"""Rows that the first read fetches at once."""
FETCH_PERCENT: Final = 30
"""How much of the heap, which all sources share, they may need."""
MARK_LATE_S: Final = 10.0
"""A mark that is not delivered for so long shows that changes are left."""
_decode_end: Final = msgspec.json.Decoder(ChangeRoundEnd[ChangePlace]).decode


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """A table whose changes are read; `base`: how its slots begin, and the prefix of its marks.

    `rows_per_s`: the limit of its reader, if there is one.
    """

    database: ExternalPostgres
    log: PostgresLog
    table: LoggedTable
    base: str
    rows_per_s: float | None = None

    @property
    def reading(self) -> SlotReading:
        return SlotReading(self.base, self.table.key)

    @property
    def task_type(self) -> type[ChangeTask]:
        return ChangeTask

    @property
    def mark_late_s(self) -> float:
        return MARK_LATE_S

    def started(self, engine: ChangeEngine, name: str, place: ChangePlace) -> ChangeTask:
        return engine.start(name, TASK, self.properties(place.cursor))

    def mark(self, place: ChangePlace) -> LogMark:
        """Write a mark into the log."""
        token, cursor = uuid.uuid4().hex, place.cursor
        begun = LogBegin(cursor.slot, cursor.lsn, cursor.publication, cursor.published)
        state = self.log.look(self.table, begun, token)
        return LogMark(token, state.retained_bytes)

    def shows(self, token: str, mark: str) -> bool:
        return token == mark

    def claim(self, place: ChangePlace) -> None:
        """Drop the slots of readers that began beside this one."""
        self.log.keep_only(place.cursor.slot)

    def watch(self, task: ChangeTask, silent_s: float) -> None:
        """Do nothing: a task whose connection is cut fails."""

    def decode_end(self, text: bytes) -> ChangeRoundEnd[ChangePlace]:
        return _decode_end(text)

    def begin(self, position: SourcePosition) -> ChangeRoundEnd[ChangePlace]:
        """Take the log over at a position, or from a new slot on; blocks.

        Raises `ExternalPostgresUnusable` and `ChangesLost`.
        """
        cursor = decode_cursor(position.cursor)
        if cursor is None:
            begun = self.log.begin(self.table)
            cursor = ChangeCursor(
                begun.slot, begun.publication, begun.lsn, first=True, published=begun.published
            )
        else:
            self._resume(cursor, streams=not cursor.first)
        return ChangeRoundEnd(StreamPlace(position.next, position.cursor), ChangePlace.at(cursor))

    def follow(self, end: ChangeRoundEnd[ChangePlace]) -> ChangeRoundEnd[ChangePlace]:
        """Let the changes follow the end of the first read; blocks. Raises as `begin`."""
        cursor = end.at.cursor
        self._resume(cursor, streams=True)
        return replace(end, at=ChangePlace.at(cursor), more=True)

    def _resume(self, cursor: ChangeCursor, *, streams: bool) -> None:
        self.log.resume(cursor.slot, cursor.lsn, cursor.published, streams=streams)

    def properties(self, cursor: ChangeCursor) -> dict[str, str]:
        """Return what the engine needs to begin at a cursor."""
        database, name = self.database, self.table.name
        given = {
            "connector.class": CONNECTOR,
            "database.hostname": database.host,
            "database.port": str(database.port),
            "database.user": database.user,
            "database.password": database.password,
            "database.dbname": database.database,
            "database.sslmode": database.parameters.get("sslmode", "prefer"),
            "plugin.name": "pgoutput",
            "slot.name": cursor.slot,
            "slot.drop.on.stop": "false",
            "slot.max.retries": "1",
            "slot.retry.delay.ms": "1000",
            "publication.name": cursor.publication,
            "publication.autocreate.mode": "disabled",
            # Patterns ignore the case of letters, and names do not.
            "table.include.list": f"(?-i:{re.escape(name)})",
            "message.prefix.include.list": self.base,
            # The server forgets what `confirm` says, and nothing else.
            "lsn.flush.mode": "connector",
            "driver.options": SESSION,
            # Rows that are too large end this task, and not the JVM of all.
            "snapshot.fetch.size": str(FETCH_ROWS),
            "driver.maxResultBuffer": f"{FETCH_PERCENT}p",
            **batches(self.rows_per_s),
        }
        if cursor.first:
            return {**given, **rows_only(name, first_read(self.table, cursor.key))}
        return {**given, "snapshot.mode": "no_data"}

    def newest(self, count: int) -> dict[str, str]:
        """Return what the engine needs to deliver the rows with the highest keys, and no more."""
        query = newest_rows(self.table, count)
        cursor = ChangeCursor(self.base, self.base, 0, first=True)
        return {**self.properties(cursor), **rows_only(self.table.name, query)}


def opened_log(
    table: PostgresChanges, base: str, open_secret: OpenSecret
) -> tuple[ExternalPostgres, PostgresLog]:
    """Return the database of a table, and its log."""
    assert isinstance(table.db, Postgres), "names are resolved before"
    database = external_postgres.opened(table.db, open_secret)
    return database, PostgresLog(database, table.table, base)


def start(by: StartedBy, table: PostgresChanges) -> ChangeRounds[ChangePlace]:
    """Start to read the changes of a table at their position; blocks.

    Raises `ConnectionsError` and `SourceError`.
    """
    feed = by.feed
    database, changes = opened_log(
        table, by.slot, lambda secret: by.open_secret(feed.workspace, secret)
    )
    described = changes.describe()
    position = position_of(by, described.table.origin)
    source = LoggedSource(database, changes, described, by.slot, feed.rows_per_s)
    return ChangeRounds(by, engine_of(by.settings), source, position)
