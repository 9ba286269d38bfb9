"""Where a reader of the changes of MySQL or MariaDB is: pure functions over what the engine says.

Theory. With each record the engine says where it is: a file of the binary log, the beginning of a
transaction in it, the transactions (GTIDs) before it, and how many events and rows of it are done.
An engine that is given such a place goes on behind it. But the two changes of a row whose key
changes share one, those of statements (DDL, TRUNCATE) and of transactions in two phases (XA) lead
elsewhere, and another server, as after a failover, may write the rows of a transaction into other
events. So a place of ours is the beginning of a transaction, the number of changes since, which are
left out, and what the tables looked like there.

Heartbeats are places, too, when they are between two transactions; behind a statement they are not
before the next transaction, because the statement is not among their GTIDs.

Before the changes comes the first read of the rows, as in `change_cursor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.external_binlog import LogPlace
from fennel_core.connections.external_changes import KeyColumn
from fennel_core.sources.binlog_schema import (
    DatabaseSchema,
    SchemaChange,
    Statement,
    after_statement,
    packed,
    unpacked,
)
from fennel_core.sources.change_cursor import ReadChanges, first_rows, key_of

CHANGES: Final = frozenset("cudt")
BEAT_MS: Final = 60_000
"""How often the position of a table moves that does not change."""


class BinlogCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place: `passed` changes behind `at`, where the tables are `schema` (packed).

    `first`: the first read goes on behind `key`, the texts of the last key that it has written.
    """

    at: LogPlace
    schema: str
    passed: int = 0
    first: bool = False
    key: tuple[str, ...] | None = None


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(BinlogCursor).decode


def encode_cursor(cursor: BinlogCursor) -> str:
    """Return a cursor as the position has it."""
    return _encode(cursor).decode()


def decode_cursor(text: str) -> BinlogCursor | None:
    """Return the cursor in a position; None for a table that was not read yet."""
    return _decode(text) if text else None


class _Origin(msgspec.Struct):
    file: str | None = None
    pos: int = 0
    ts_ms: int = 0
    gtid: str | None = None


class _Event(msgspec.Struct, rename="camel"):
    """What is read of a record here; the rest is the row's."""

    op: str = ""
    source: _Origin | None = None
    ddl: str | None = None
    table_changes: list[SchemaChange] | None = None
    database_name: str | None = None
    ts_ms: int = msgspec.field(default=0, name="ts_ms")


_event: Final = msgspec.json.Decoder(_Event).decode
_place: Final = msgspec.json.Decoder(LogPlace).decode


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """Where a reader is: the cursor to write, and what its engine has delivered since it began.

    `skip`: changes to leave out. `at`, `passed`, `schema`: as of the cursor, without regard to what
    is left out. `pending`: the schema behind the last statement. `unsafe`: the GTIDs of a
    statement, which is not among them. `beaten_ms`: when the last heartbeat came that has moved the
    place. `statement`: the GTID of the last statement.
    """

    cursor: BinlogCursor
    at: LogPlace
    schema: str
    pending: str
    skip: int = 0
    passed: int = 0
    unsafe: str | None = None
    beaten_ms: int = 0
    statement: str | None = None

    @classmethod
    def of(cls, cursor: BinlogCursor) -> BinlogPlace:
        """Return the place of an engine that begins at a cursor."""
        return cls(cursor, cursor.at, cursor.schema, cursor.schema, cursor.passed)

    @property
    def is_first(self) -> bool:
        return self.cursor.first


@dataclass(frozen=True, slots=True)
class BinlogReading:
    """How the records of a table are read; `key`: its primary key.

    `beat_ms`: how often a heartbeat moves the place, which is a write.
    """

    database: str
    table: str
    key: tuple[KeyColumn, ...]
    beat_ms: int = BEAT_MS

    def read(self, place: BinlogPlace, lines: Sequence[str]) -> tuple[BinlogPlace, ReadChanges]:
        """Return what records of the engine hold, and the place behind them.

        Raises `ChangesLost` if the table is another one, and `ChangeEngineFailed`.
        """
        if place.cursor.first:
            return self._first_rows(place, lines)
        taken: list[bytes] = []
        names: list[str] = []
        token: str | None = None
        newest_ms: int | None = None
        for line in lines:
            where, _, value = line.partition("\t")
            text = value.encode()
            at, event = _place(where), _event(text)
            if event.source is not None and (event.ddl is not None or event.op == "t"):
                place = replace(place, statement=event.source.gtid)
            token = ",".join(filter(None, (at.gtids, place.statement)))
            if event.ddl is not None:
                place = self._behind_statement(place, at, event)
            elif event.op in CHANGES:
                skipped = place.skip > 0
                place = _behind_change(place, at, event.op)
                if not skipped:
                    taken.append(text)
                    source = event.source or _Origin()
                    names.append(f"{source.file}:{source.pos}")
                    newest_ms = source.ts_ms
            elif event.op:
                raise ChangeEngineFailed(
                    f"the engine delivered something that is no change: {value}"
                )
            elif event.ts_ms >= place.beaten_ms + self.beat_ms:
                place = _behind_heartbeat(place, at, event.ts_ms)
        if not place.skip:
            cursor = BinlogCursor(place.at, place.schema, place.passed)
            place = replace(place, cursor=cursor)
        return place, ReadChanges(taken, names, token, newest_ms)

    def encode(self, place: BinlogPlace) -> str:
        """Return the cursor of a place as the position has it."""
        return encode_cursor(place.cursor)

    def confirms(self, before: BinlogPlace, after: BinlogPlace) -> bool:
        """Return False: the server forgets by its own rules."""
        del before, after
        return False

    def _behind_statement(self, place: BinlogPlace, at: LogPlace, event: _Event) -> BinlogPlace:
        pending, unsafe = place.pending, at.gtids
        statement = Statement(event.ddl or "", event.table_changes or (), event.database_name or "")
        schema: DatabaseSchema = unpacked(pending)
        after = after_statement(schema, statement, self.database, self.table)
        pending = pending if after == schema else packed(after)
        return replace(place, pending=pending, unsafe=unsafe)

    def _first_rows(
        self, place: BinlogPlace, lines: Sequence[str]
    ) -> tuple[BinlogPlace, ReadChanges]:
        read, cursor = first_rows(line.partition("\t")[2] for line in lines), place.cursor
        if read.lines:
            cursor = msgspec.structs.replace(cursor, key=key_of(read.lines[-1], self.key))
        if read.ended:
            cursor = BinlogCursor(cursor.at, cursor.schema)
        return replace(place, cursor=cursor), read


def _behind_change(place: BinlogPlace, at: LogPlace, op: str) -> BinlogPlace:
    begin, truncates = _begin(at), op == "t"
    # Without a number of events a change is outside of a transaction.
    if not truncates and at.event is not None and begin != _begin(place.at):
        place = replace(place, at=begin, passed=0, schema=place.pending)
    return replace(
        place,
        passed=place.passed + 1,
        skip=max(0, place.skip - 1),
        unsafe=at.gtids if truncates else place.unsafe,
    )


def _begin(at: LogPlace) -> LogPlace:
    """Return the beginning of a transaction, by a place within it."""
    return LogPlace(at.file, at.pos, at.gtids)


def _behind_heartbeat(place: BinlogPlace, at: LogPlace, at_ms: int) -> BinlogPlace:
    is_between = at.event is None and at.row is None
    if not is_between or (place.unsafe is not None and _same(at.gtids, place.unsafe)):
        return place
    return replace(place, at=at, passed=0, schema=place.pending, unsafe=None, beaten_ms=at_ms)


def _same(gtids: str | None, others: str) -> bool:
    return set((gtids or "").split(",")) == set(others.split(","))
