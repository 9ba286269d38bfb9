"""What the tables of a database looked like at a place in its binary log: pure functions.

Theory. Rows in the log of MySQL and MariaDB are values without names. The engine names them by a
history of statements that it reads at its start, and by the statements (DDL) in the log since. The
present table would do for neither: a column that was dropped and one that was added since are as
many as before, and values would be named wrongly without a word. So the history goes with the
place: the text of the table when the source began, and later what the engine says about each table
that a statement changed. Tables that were created since are kept, too, because a tool that changes
a large table writes another and swaps the two by their names.

The engine passes over some statements that change a table, and cannot read some; of others it says
what is not so. Where such a statement may be about our table, or our table is another one, reading
ends. Another table that it may be about is *forgotten*, and so is what is made of it; when ours is
made of a table that is not known, reading ends.
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
_SETTING: Final = re.compile(r"^\s*SET\s+STATEMENT\b.*?\bFOR\b", re.IGNORECASE | re.DOTALL)
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
_ALTERS_ALL: Final = re.compile(r"\s*ALTER\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)
_LIKE: Final = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    rf"{_NAME}\s*\(?\s*LIKE\s+{_NAME}",
    re.IGNORECASE,
)
_ADDS: Final = re.compile(
    r"\bADD\s+(?:COLUMN\s+)?IF\s+NOT\s+EXISTS\s*(`[^`]+`|\"[^\"]+\"|[\w$]+|\()", re.IGNORECASE
)
"""Columns of MariaDB that are there already change nothing, but the engine takes them for new."""
_COLUMN: Final = re.compile(r"^\s*`([^`]+)` ", re.MULTILINE)
"""In the statement that makes a table, as the server writes it."""
_OF: Final = r"(?:CHARACTER\s+SET|CHARSET)\s*=?\s*[`'\"]?(\w+)"
_CHARSET: Final = re.compile(
    rf"\b(?:{_OF}|COLLATE\s*=?\s*[`'\"]?(?!uca\d)([a-z\d]+))", re.IGNORECASE
)
_FOLLOWED: Final = re.compile(
    r"\b(?:CHAR|VARCHAR|(?:TINY|MEDIUM|LONG)?TEXT)\s*(?:\(\s*\d+\s*\))?\s*"
    rf"{_OF}[`'\"]?(?:\s+COLLATE\s+[`'\"]?\w+[`'\"]?)?",
    re.IGNORECASE,
)
"""Where the engine follows a character set other than that of the table."""


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
    """A statement in the log, and what the engine says about tables; `database`: of the session."""

    text: str
    changes: Sequence[SchemaChange]
    database: str


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
    """Return the schema behind a statement. `own`: the table that is read.

    Raises `ChangesLost` if the table is another one from here on, or it is not known what it is.
    """
    text = _plain(statement.text)
    shown = " ".join(text.split())[:SHOWN]
    is_ours = statement.database == database
    if not is_ours and (statement.changes or not _names(text, database)):
        return schema
    if is_ours and _DROPS_ALL.match(text):
        raise ChangesLost(f"database `{database}` was dropped (`{shown}`); {REWIND}")
    changes = {
        name: each for each in statement.changes if (name := _name(each.id, database)) is not None
    }
    mine = changes.get(own)
    if mine is not None and mine.type in ("CREATE", "DROP"):
        raise ChangesLost(f"table `{own}` was dropped or replaced (`{shown}`); {REWIND}")
    if not changes:
        return _behind_nothing(schema, text, database, own)
    moved = _moved(text, database)
    doubts = {
        name: why
        for name, each in changes.items()
        if (why := _doubt(schema, text, name, each, moved, database)) is not None
    }
    if own in doubts:
        raise ChangesLost(f"{doubts[own]} (`{shown}`); {REWIND}")
    gone = {name for name, each in changes.items() if each.type == "DROP" or each.table is None}
    gone |= doubts.keys()
    if moved is not None and moved not in changes:
        gone.add(moved)
    tables = [each for each in schema.tables if each.name not in gone | changes.keys()]
    tables += [
        TableSchema(name, _width(each.table), table=each.table)
        for name, each in changes.items()
        if name not in gone
    ]
    others = [each for each in tables if each.name != own][-TABLES:]
    return DatabaseSchema(
        schema.server,
        schema.database,
        (*(each for each in tables if each.name == own), *others),
    )


def _behind_nothing(schema: DatabaseSchema, text: str, database: str, own: str) -> DatabaseSchema:
    """Return the schema behind a statement about which the engine says nothing."""
    if _ALTERS_ALL.match(text):
        found = [each or of for each, of in _CHARSET.findall(text)]
        made = f"CREATE DATABASE `{database}` CHARSET {found[0]}" if found else schema.database
        return DatabaseSchema(schema.server, made, schema.tables)
    if _HARMLESS.match(text):
        return schema
    if _names(text, own):
        shown = " ".join(text.split())[:SHOWN]
        raise ChangesLost(
            f"a statement may have changed table `{own}`, and the engine does not follow it "
            f"(`{shown}`); {REWIND}"
        )
    left = tuple(each for each in schema.tables if not _names(text, each.name))
    return DatabaseSchema(schema.server, schema.database, left)


def _doubt(  # what is known of one table
    schema: DatabaseSchema,
    text: str,
    name: str,
    change: SchemaChange,
    moved: str | None,
    database: str,
) -> str | None:
    """Return why a table may not be what the engine says; None if it is."""
    if change.table is None:
        return None
    known = {each.name: each for each in schema.tables}
    charset = default = str(change.table.get("defaultCharsetName"))
    if change.type == "CREATE":
        like = _LIKE.match(text)
        if name in known or (like and _of(like.groups()[2:], database) not in known):
            return f"the engine does not know what table `{name}` was made of"
        if like is None:
            options = _charsets(text.rpartition(")")[2]) or _charsets(schema.database)
            charset = next(iter(options), default)
    else:
        before = known.get(moved or name)
        if before is None:
            return f"the engine does not know what `{moved or name}` was before"
        if 0 < _width(change.table) < before.columns and not _DROPS.search(text):
            # As it does with two columns that swap their names in one statement.
            return f"the engine has lost a column of table `{name}`"
        added = {each.strip('`"').lower() for each in _ADDS.findall(text)}
        if added & (_columns(before) | {"("}) and not _same(before.table, change.table):
            return f"a column was added to table `{name}` that may have been there"
    if {*_charsets(_FOLLOWED.sub(" ", text)), _family(charset)} - {_family(default)}:
        return f"the engine does not follow a character set of table `{name}`"
    return None


def _plain(text: str) -> str:
    """Return a statement without comments; what is executed within them is kept."""
    return _SETTING.sub(" ", _COMMENT.sub(" ", _HINT.sub(r" \1 ", text)))


def _width(table: dict[str, Any] | None) -> int:
    return 0 if table is None else len(table.get("columns", ()))


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE) is not None


def _charsets(text: str) -> list[str]:
    """Return the character sets that a text names, also by collations."""
    return [_family(charset or of) for charset, of in _CHARSET.findall(text)]


def _family(charset: str) -> str:
    """Return a character set, or the one name of those that are decoded alike."""
    return "utf8" if charset.lower().startswith("utf8") else charset.lower()


def _columns(table: TableSchema) -> set[str]:
    """Return the names of columns as they are compared."""
    if table.table is None:
        return {each.lower() for each in _COLUMN.findall(table.statement)}
    return {str(each.get("name")).lower() for each in table.table.get("columns", ())}


def _same(before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    return before is not None and before.get("columns") == after.get("columns")


def _moved(text: str, database: str) -> str | None:
    """Return the table that a statement alters or gives another name."""
    found = _MOVES.match(text)
    return None if found is None else _of(found.groups(), database)


def _of(names: Sequence[str | None], database: str) -> str:
    """Return the name of a table; with its database if that is another one."""
    of, name = ("" if each is None else each.strip('`"') for each in names)
    return name if of in ("", database) else f"{of}.{name}"


def _name(id_: str, database: str) -> str | None:
    """Return the name of a table of this database, by the id that the engine gives it."""
    of, _, name = id_.rpartition(".")
    return name.strip('"') if of == f'"{database}"' else None
