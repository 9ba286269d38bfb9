"""Where a reader of a table's changes is: pure functions over what the engine delivers.

Theory. The server sends transactions whole, in the order of their commits, and always begins with
the one that follows a commit. So a place is the end of a commit, and how many changes of what
follows it are written. A reader that begins there leaves out as many. Each change names the commit
before its transaction (`source.sequence`), or none before the first commit of this reader.

Before the changes comes the *first read* of the rows that are there, in the order of the primary
key, so that it goes on behind the last key that was written. What changes until then comes as a
change again, because the log is kept from before the first row on.

*Marks* are messages that the platform writes into the log itself: all changes before one were
delivered, and the place moves although the table does not change. They are not counted, and other
messages are neither: one that belongs to no transaction is not delivered twice.

Example: commit 100 wrote two rows, the next one three, and two of these are written. The place is
what has `"lsn": 100, "passed": 2`. A reader that begins there leaves two changes out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.external_changes import KeyColumn, lsn_text

COMPLETED: Final = "COMPLETED"
FIRST_READ: Final = frozenset({"STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", COMPLETED})
"""What the engine says about the first read, unless it fails."""
MESSAGE: Final = "m"


class ChangeCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place: `passed` changes behind the commit that ended at `lsn`; see the module.

    `slot` keeps the log, and `publication` is what it is read with, from its beginning on;
    `published`: its ids. `first`: the first read goes on behind `key`, the texts of the last key
    that it has written, if any.
    """

    slot: str
    publication: str
    lsn: int
    passed: int = 0
    first: bool = False
    key: tuple[str, ...] | None = None
    published: str = ""


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(ChangeCursor).decode


def encode_cursor(cursor: ChangeCursor) -> str:
    """Return a cursor as the position has it."""
    return _encode(cursor).decode()


def decode_cursor(text: str) -> ChangeCursor | None:
    """Return the cursor in a position; None for a table that was not read yet."""
    return _decode(text) if text else None


class _Origin(msgspec.Struct):
    sequence: str | None = None
    lsn: int | None = None
    ts_ms: int = 0


class _Message(msgspec.Struct):
    prefix: str = ""
    content: str = ""


class _Event(msgspec.Struct):
    """What is read of a line here; the rest is the row's."""

    op: str = ""
    source: _Origin | None = None
    message: _Message | None = None
    aggregate_type: str = ""
    type: str = ""


_event: Final = msgspec.json.Decoder(_Event).decode
_sequence: Final = msgspec.json.Decoder(tuple[str | None, str | None]).decode
_row: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class ChangePlace:
    """Where a reader is: its cursor, and what the engine has delivered since it began.

    `skip`: changes to leave out; `seen`: those since the commit at `lsn`, left out or not.
    `committed`: the engine has named a commit.
    """

    cursor: ChangeCursor
    lsn: int
    skip: int = 0
    seen: int = 0
    committed: bool = False

    @classmethod
    def at(cls, cursor: ChangeCursor) -> ChangePlace:
        """Return the place of an engine that begins at a cursor."""
        return cls(cursor, cursor.lsn, cursor.passed)

    @property
    def is_first(self) -> bool:
        return self.cursor.first


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """What lines hold: changes to write with the place of each in the log, and the rest.

    `token`: of the last mark. `newest_ms`: when the last change was made. `ended`: all rows of the
    first read are delivered.
    """

    lines: Sequence[bytes] = ()
    names: Sequence[str] = ()
    token: str | None = None
    newest_ms: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SlotReading:
    """How the changes of a Postgres table are read; see `change_reader.Reading`.

    `marks`: the prefix of its marks; `key`: its primary key.
    """

    marks: str
    key: tuple[KeyColumn, ...]

    def read(self, place: ChangePlace, lines: Sequence[str]) -> tuple[ChangePlace, ReadChanges]:
        return read_changes(place, lines, self.marks, self.key)

    def encode(self, place: ChangePlace) -> str:
        return encode_cursor(place.cursor)

    def confirms(self, before: ChangePlace, after: ChangePlace) -> bool:
        return not after.cursor.first and after.cursor.lsn > before.cursor.lsn


def read_changes(
    place: ChangePlace, lines: Sequence[str], marks: str, key: Sequence[KeyColumn]
) -> tuple[ChangePlace, ReadChanges]:
    """Return what lines of the engine hold, and the place behind them.

    `marks`: the prefix of marks of this source. Raises `ChangeEngineFailed` for an engine that has
    begun again by itself, or has given up.
    """
    if place.cursor.first:
        return _first_rows(place, lines, key)
    taken: list[bytes] = []
    names: list[str] = []
    token: str | None = None
    newest_ms: int | None = None
    lsn, skip, seen, committed = place.lsn, place.skip, place.seen, place.committed
    for line in lines:
        text = line.encode()
        event = _event(text)
        if event.source is None or event.source.sequence is None:
            raise ChangeEngineFailed(f"the engine delivered something that is no change: {line}")
        commit = _sequence(event.source.sequence)[0]
        if commit is not None and int(commit) != lsn:
            before, lsn, seen = lsn, int(commit), 0
            if lsn < before:
                raise ChangeEngineFailed(
                    f"the engine went back from commit {lsn_text(before)} to {lsn_text(lsn)}"
                )
        elif commit is None and committed:
            raise ChangeEngineFailed("the engine began again by itself")
        committed = commit is not None
        if event.op == MESSAGE:
            if event.message is not None and event.message.prefix == marks:
                token = _content(event.message.content)
            continue
        seen += 1
        if skip:
            skip -= 1
            continue
        taken.append(text)
        names.append(lsn_text(event.source.lsn or 0))
        newest_ms = event.source.ts_ms
    cursor = place.cursor
    if not skip:
        cursor = msgspec.structs.replace(cursor, lsn=lsn, passed=seen)
    read = ReadChanges(taken, names, token, newest_ms)
    return ChangePlace(cursor, lsn, skip, seen, committed), read


def _first_rows(
    place: ChangePlace, lines: Sequence[str], key: Sequence[KeyColumn]
) -> tuple[ChangePlace, ReadChanges]:
    read, cursor = first_rows(lines), place.cursor
    if read.lines:
        cursor = msgspec.structs.replace(cursor, key=key_of(read.lines[-1], key))
    if read.ended:
        cursor = msgspec.structs.replace(cursor, first=False, key=None)
    return replace(place, cursor=cursor), read


def first_rows(lines: Iterable[str]) -> ReadChanges:
    """Return the rows of the first read in what an engine delivers.

    Raises `ChangeEngineFailed` for one that has given up, or delivers changes.
    """
    taken: list[bytes] = []
    ended = False
    for line in lines:
        text = line.encode()
        event = _event(text)
        if event.op == "r":
            taken.append(text)
        elif event.aggregate_type and event.type not in FIRST_READ:
            raise ChangeEngineFailed(f"the first read has ended early ({event.type})")
        elif event.op:
            raise ChangeEngineFailed(f"the first read has delivered a change: {line}")
        else:
            ended = ended or event.type == COMPLETED
    return ReadChanges(taken, ["first read"] * len(taken), ended=ended)


def key_of(line: bytes, key: Sequence[KeyColumn]) -> tuple[str, ...]:
    """Return the texts of the key of a row, which the database reads as values of its types."""
    after = _row(line)["after"]
    assert isinstance(after, dict), "a row that was read is there"
    # The engine writes dates with a zone.
    return tuple(
        str(after[each.name]).removesuffix("Z") if each.type == "date" else str(after[each.name])
        for each in key
    )


def _content(text: str) -> str | None:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
