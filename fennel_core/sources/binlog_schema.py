"""What the tables of a database looked like at a place in its binary log: pure functions.

Theory. Rows in the log of MySQL and MariaDB are values without names. The engine names them by a
history of statements that it reads at its start, and by the statements (DDL) in the log since. The
present table would do for neither: a column that was dropped and one that was added since are as
many as before, and values would be named wrongly without a word. So the history goes with the
place: the text of the table when the source began, and later what the engine says about each table
that a statement changed. Tables that were created since are kept, too, because a tool that changes
a large table writes another and swaps the two by their names.

The engine passes over some statements that change a table. Where the statement names a table of the
history and the engine says nothing about any, or our table is another one, reading ends.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fennel_core.connections.external_binlog import REWIND, NotedSchema
from fennel_core.connections.external_changes import ChangesLost

TABLES: Final = 50
"""Tables that were created since and are remembered; one before them that is renamed to ours ends
the reading, as one does that was there before the source began."""
SHOWN: Final = 120
_COMMENT: Final = re.compile(r"/\*(?!!).*?\*/|--[ \t][^\n]*|#[^\n]*", re.DOTALL)
_HINT: Final = re.compile(r"/\*!M?\d*(.*?)\*/", re.DOTALL)
_NAME: Final = r"(?:(`[^`]+`|\"[^\"]+\"|[\w$]+)\s*\.\s*)?(`[^`]+`|\"[^\"]+\"|[\w$]+)"
_MOVES: Final = re.compile(
    r"\s*(?:RENAME\s+TABLES?|ALTER\s+(?:ONLINE\s+|OFFLINE\s+|IGNORE\s+)*TABLE)\s+"
    rf"(?:IF\s+EXISTS\s+)?{_NAME}",
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(
    r"\s*(?:CREATE\s+TABLE\s+IF\s+NOT\s+EXISTS\b"
    r"|(?:CREATE|ALTER|DROP)\b(?:(?!\bTABLES?\b).)*?"
    r"\b(?:VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|INDEX|SEQUENCE|USER|ROLE|DATABASE|SCHEMA)\b"
    r"|(?:GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|LOCK|UNLOCK|SET\s+PASSWORD|USE)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Statements about which the engine says nothing because no column is another one behind them."""
_DROPS: Final = re.compile(r"\bDROP\b", re.IGNORECASE)
_DROPS_ALL: Final = re.compile(r"\s*DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)


class SchemaChange(msgspec.Struct):
    """What the engine says about a table behind a statement; `table`: all of it, or nothing."""

    type: str
    id: str
    table: dict[str, Any] | None = None


class TableSchema(msgspec.Struct, frozen=True, array_like=True):
    """A table: the statement that makes it, or what the engine said about it."""

    name: str
    columns: int = 0
    statement: str = ""
    table: dict[str, Any] | None = None


class DatabaseSchema(msgspec.Struct, frozen=True, array_like=True):
    """The tables of a database, and the statements that its defaults come from."""

    server: str
    database: str
    tables: tuple[TableSchema, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the log, and what the engine says about tables of the database."""

    text: str
    changes: Sequence[SchemaChange]


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(DatabaseSchema).decode


def packed(schema: DatabaseSchema) -> str:
    """Return a schema as the position has it."""
    return base64.b64encode(zlib.compress(_encode(schema))).decode()


def unpacked(text: str) -> DatabaseSchema:
    """Return the schema in a position."""
    return _decode(zlib.decompress(base64.b64decode(text)))


def noted_schema(noted: NotedSchema) -> DatabaseSchema:
    """Return the schema of a table that was looked at."""
    table = TableSchema(noted.table, noted.columns, noted.statement)
    return DatabaseSchema(noted.server, noted.database, (table,))


def history_of(schema: DatabaseSchema, database: str) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield the engine's history: database, statement, and tables."""
    yield "", schema.server, []
    yield database, schema.database, []
    for each in schema.tables:
        if each.table is None:
            yield database, each.statement, []
        else:
            id_ = f'"{database}"."{each.name}"'
            yield database, "", [{"type": "CREATE", "id": id_, "table": each.table}]


def after_statement(
    schema: DatabaseSchema, statement: Statement, database: str, own: str
) -> DatabaseSchema:
    """Return the schema behind a statement on the database. `own`: the table that is read.

    Raises `ChangesLost` if the table is another one from here on, or it is not known what it is.
    """
    text = _plain(statement.text)
    shown = " ".join(text.split())[:SHOWN]
    known = {each.name for each in schema.tables}
    if _DROPS_ALL.match(text):
        raise ChangesLost(f"database `{database}` was dropped (`{shown}`); {REWIND}")
    changes = {_name(each.id, database): each for each in statement.changes}
    changes.pop(None, None)
    mine = changes.get(own)
    if mine is not None and mine.type in ("CREATE", "DROP"):
        raise ChangesLost(f"table `{own}` was dropped or replaced (`{shown}`); {REWIND}")
    if not changes:
        named = sorted(name for name in known | {own} if _names(text, name))
        if named and not _HARMLESS.match(text):
            raise ChangesLost(
                f"a statement may have changed table `{named[0]}`, and the engine does not follow "
                f"it (`{shown}`); {REWIND}"
            )
        return schema
    for each in schema.tables:
        after = changes.get(each.name)
        if after is not None and 0 < _width(after.table) < each.columns and not _DROPS.search(text):
            # As it does with two columns that swap their names in one statement.
            raise ChangesLost(
                f"the engine has lost a column of table `{each.name}` (`{shown}`); {REWIND}"
            )
    gone = {name for name, each in changes.items() if each.type == "DROP" or each.table is None}
    moved = _moved(text, database)
    if moved is not None and moved not in changes:
        gone.add(moved)
    tables = [each for each in schema.tables if each.name not in gone | changes.keys()]
    tables += [
        TableSchema(name, _width(each.table), table=each.table)
        for name, each in changes.items()
        if name is not None and name not in gone
    ]
    others = [each for each in tables if each.name != own][-TABLES:]
    return DatabaseSchema(
        schema.server,
        schema.database,
        (*(each for each in tables if each.name == own), *others),
    )


def _plain(text: str) -> str:
    """Return a statement without comments; what is executed within them is kept."""
    return _COMMENT.sub(" ", _HINT.sub(r" \1 ", text))


def _width(table: dict[str, Any] | None) -> int:
    return 0 if table is None else len(table.get("columns", ()))


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE) is not None


def _moved(text: str, database: str) -> str | None:
    """Return the table of this database that a statement alters or gives another name."""
    found = _MOVES.match(text)
    if found is None:
        return None
    of, name = (None if each is None else each.strip('`"') for each in found.groups())
    return name if of in (None, database) else None


def _name(id_: str, database: str) -> str | None:
    """Return the name of a table of this database, by the id that the engine gives it."""
    of, _, name = id_.rpartition(".")
    return name.strip('"') if of == f'"{database}"' else None
