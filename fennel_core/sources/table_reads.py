"""Which rows of a table were read, and the query for the next ones: pure decisions.

Theory. A cursor says where a reader is, and nothing about rows that appear behind it: a transaction
takes its cursor value (a sequence, `now()`) when it begins to write, and its rows appear when it
commits, perhaps after rows with higher values were read. So what was read is remembered with the
*horizon* of the read: the oldest transaction that was running then. Postgres keeps with each row
the transaction that wrote it (`xmin`, a subtransaction too, whose id is higher than its parent's).
A read takes only rows of transactions below its horizon. All of these have ended, so no such row
appears later; the others are taken by a later read, whatever their cursor values are.

What was read is therefore a chain of *levels*: all rows up to a place that were written below a
horizon. Places are (value of the cursor, place of the row in the file), so rows with equal values
are in order, too. A row is read if any level has it. A page continues behind them, in order:

    levels              next read, with horizon 90
    ≤ 100 below 50      rows > 100 below 90, and rows ≤ 100 of transactions from 50 to 89
    page ends at 40     ≤ 40 below 90, ≤ 100 below 50      a kill here loses nothing
    page ends at 120    ≤ 120 below 90

A row that is changed has a new transaction, so it is read again as a new version of its row: right
for `upsert`, and for `append` as if it was added. Reading every row for its transaction would take
longer the more there are: rows whose value is lower than the highest one that was read, by more
than the *look-back*, are not looked at. That is `disorder` for times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec
from psycopg import sql

from fennel_core.connections.external_postgres import (
    OWN_PREFIX,
    CursorKind,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.sources.errors import SourceError

IDS: Final = 1 << 32
"""Postgres stores the lower half of a transaction's id with a row."""
MOST_APART: Final = 1 << 31
NEWER: Final = 1 << 24
"""Transactions that may begin between the look at the clock and the end of a query."""
FROZEN: Final = 3
"""Lower ids mean transactions that ended long ago."""
LOOK_BACK_VALUES: Final = 1_000_000
"""Look-back of a numeric cursor: so many values are looked at again by each read."""
DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)
LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)
VALUE: Final = f"{OWN_PREFIX}value"
BLOCK: Final = f"{OWN_PREFIX}block"
OFFSET: Final = f"{OWN_PREFIX}offset"
PLACE: Final = f"{OWN_PREFIX}place"
OWN: Final = (VALUE, BLOCK, OFFSET, PLACE)
"""Columns that a page has besides those of the table."""


class TableChanged(SourceError):
    """A column is gone or has another type, so rows read before and after would not be alike."""

    code = "source-table-changed"


class CursorWentBack(SourceError):
    """Every value of the cursor is so low that new rows would not be seen."""

    code = "source-cursor-went-back"


class HorizonWentBack(SourceError):
    """The server has had fewer transactions than when rows were read: it is not the same."""

    code = "source-horizon-went-back"


class ReadTooOld(SourceError):
    """The database has had so many transactions since the last read that their ids repeat."""

    code = "source-read-too-old"


class ReadLevel(msgspec.Struct, frozen=True, array_like=True):
    """All rows at or before a place that transactions below `horizon` wrote were read.

    `row`: the place in the file of the last one of that value (block, offset); None: all of it.
    """

    value: int
    row: tuple[int, int] | None
    horizon: int

    @property
    def place(self) -> tuple[int, float, int]:
        """Return what places are ordered by."""
        block, offset = (float("inf"), 0) if self.row is None else self.row
        return self.value, block, offset


class TableCursor(msgspec.Struct, frozen=True):
    """What was read of a table: see the module. Stored as the cursor of a position."""

    levels: tuple[ReadLevel, ...]
    columns: dict[str, str]
    """Types of the columns when they were read last."""
    file: int
    full: bool
    """The first full read has ended."""
    column: str
    """Name of the column whose values the levels have."""
    kind: CursorKind

    @property
    def highest(self) -> int:
        """The highest value that was read."""
        return max(level.value for level in self.levels)


encode: Final = msgspec.json.Encoder(order="sorted").encode
decode: Final = msgspec.json.Decoder(TableCursor).decode


def cursor_of(text: str) -> TableCursor | None:
    """Return the cursor of a position; None before the first read."""
    return decode(text) if text else None


@dataclass(frozen=True, slots=True)
class TableRead:
    """One read of a table: everything that its queries need.

    `look_back`: in the units of the cursor's values.
    """

    table: ExternalTable
    cursor: ExternalColumn
    kind: CursorKind
    columns: tuple[ExternalColumn, ...]
    clock: TransactionClock
    look_back: int

    @property
    def types(self) -> dict[str, str]:
        return {each.name: each.declared for each in self.columns}


def look_back_of(kind: CursorKind, disorder_us: int) -> int:
    """Return how far behind the highest value rows are looked for."""
    match kind:
        case CursorKind.INTEGER:
            return LOOK_BACK_VALUES
        case CursorKind.DATE:
            return -(-disorder_us // DAY_US)
        case _:
            return disorder_us


def require_same_columns(read: TableRead, before: TableCursor | None, title: str) -> None:
    """Raise `TableChanged` unless the columns that were read before are there as they were."""
    if before is None:
        return
    if (before.column, before.kind) != (read.cursor.name, read.kind):
        raise TableChanged(
            f"{title} was read by `{before.column}` ({before.kind.value}) and has the cursor "
            f"`{read.cursor.name}` ({read.kind.value}) now, so it cannot be known which rows were "
            "read; commit the source with the cursor that it had, or rewind it to `earliest`"
        )
    now = read.types
    for name, declared in before.columns.items():
        if name not in now:
            raise TableChanged(
                f"{title} has no column `{name}` any more, which was read before; add it again, or "
                "give the connector another name to read the table as it is now"
            )
        if now[name] != declared:
            raise TableChanged(
                f"{title}: column `{name}` is {now[name]} now and was {declared} when rows were "
                "read; change it back, or give the connector another name to read all of the table"
            )
    partial = any(level.row is not None for level in before.levels)
    if read.table.file != before.file and (partial or now != before.columns):
        raise TableChanged(
            f"{title} was written again as a whole (as by ALTER TABLE with a default, or VACUUM "
            "FULL during a read), so it cannot be known which rows were read; rewind the source "
            "to `earliest`, or give the connector another name"
        )


def require_readable(
    read: TableRead, before: TableCursor | None, highest: int | None, title: str
) -> None:
    """Raise `CursorWentBack`, `HorizonWentBack` or `ReadTooOld`.

    `highest`: the highest value of the cursor in the table now.
    """
    if before is None:
        return
    newest = max(level.horizon for level in before.levels)
    if read.clock.horizon < newest:
        raise HorizonWentBack(
            f"{title}: all transactions below {newest} had ended when rows were read, and only "
            f"those below {read.clock.horizon} have now, so new rows would be taken for rows that "
            "were read. The server is a replica that is behind, or was restored: wait for it, or "
            "rewind the source to `earliest`"
        )
    lowest = before.highest - read.look_back
    if highest is not None and highest < lowest:
        raise CursorWentBack(
            f"{title}: the highest `{read.cursor.name}` is {shown(read.kind, highest)} now, and "
            f"was {shown(read.kind, before.highest)}, so new rows would not be seen; rewind the "
            "source to `earliest` if the table was filled again"
        )
    oldest = min(level.horizon for level in before.levels)
    if read.clock.end - oldest + NEWER >= MOST_APART:
        raise ReadTooOld(
            f"{title} was not read for {read.clock.end - oldest} transactions of its database, so "
            "new rows cannot be order from old ones; rewind the source to `earliest`"
        )


def following(
    before: TableCursor | None, read: TableRead, last: ReadLevel | None, *, complete: bool
) -> TableCursor:
    """Return the cursor after rows up to `last` were read, in order; `complete`: no more are left.

    Raises AssertionError for a complete read without any row, which writes nothing.
    """
    levels = () if before is None else before.levels
    full = before is not None and before.full
    assert last is not None, "a read without rows writes nothing"
    if complete:
        highest = max((last, *levels), key=lambda level: level.place)
        chain: tuple[ReadLevel, ...] = (ReadLevel(highest.value, None, read.clock.horizon),)
    else:
        chain = (last, *(level for level in levels if level.place > last.place))
    return _cursor(read, chain, full=full or complete)


def unchanged(before: TableCursor | None, read: TableRead) -> TableCursor | None:
    """Return the cursor after a complete read without a row; None if none has to be stored.

    A horizon that stays behind for 2^31 transactions would end in `ReadTooOld`.
    """
    if before is None:
        return None
    oldest = min(level.horizon for level in before.levels)
    if read.clock.horizon - oldest < NEWER:
        return None
    return _cursor(read, (ReadLevel(before.highest, None, read.clock.horizon),), full=True)


def _cursor(read: TableRead, chain: tuple[ReadLevel, ...], *, full: bool) -> TableCursor:
    return TableCursor(chain, read.types, read.table.file, full, read.cursor.name, read.kind)


def at_page(read: TableRead, now: TransactionClock) -> TableRead:
    """Return a read for its next page; `now`: the clock, a page after the last one's.

    The horizon stays that of the run, so the rows of a run are bounded. Transactions that began
    since are newer, and conditions must know of their ids.
    """
    return replace(read, clock=TransactionClock(read.clock.horizon, now.end))


def shown(kind: CursorKind, value: int) -> str:
    """Return a value of the cursor for people."""
    match kind:
        case CursorKind.INTEGER:
            return str(value)
        case CursorKind.DATE:
            return (EPOCH + timedelta(days=value)).date().isoformat()
        case _:
            return (EPOCH + timedelta(microseconds=value)).isoformat()


# --- SQL ------------------------------------------------------------------------------------------


def page_query(read: TableRead, before: TableCursor | None, rows: int) -> sql.Composed:
    """Return the query of the next page: at most `rows`, in order, with the columns of `OWN`."""
    at = sql.SQL("t.{}").format(sql.Identifier(read.cursor.name))
    ended = sql.SQL("NOT {}").format(_since(read, read.clock.horizon))
    conditions = [_in_range(read.kind, at), ended]
    if before is not None:
        lowest = _bound(read.kind, before.highest - read.look_back)
        conditions.append(sql.SQL("{} >= {}").format(at, lowest))
        conditions += [_beyond(read, at, level) for level in before.levels]
    selected = [
        sql.SQL("{} AS {}").format(column_value(each), sql.Identifier(each.name))
        for each in read.columns
    ]
    return sql.SQL(
        "SELECT {columns}, {value} AS {value_name}, "
        "split_part(trim(both '()' from t.ctid::text), ',', 1)::bigint AS {block}, "
        "split_part(trim(both '()' from t.ctid::text), ',', 2)::bigint AS {offset}, "
        "row_number() OVER (ORDER BY {at}, t.ctid) AS {place} "
        "FROM {table} t WHERE {conditions} ORDER BY {at}, t.ctid LIMIT {rows}"
    ).format(
        columns=sql.SQL(", ").join(selected),
        value=_number(read.kind, at),
        value_name=sql.Identifier(VALUE),
        block=sql.Identifier(BLOCK),
        offset=sql.Identifier(OFFSET),
        place=sql.Identifier(PLACE),
        at=at,
        table=read.table.identifier,
        conditions=sql.SQL(" AND ").join(conditions),
        rows=sql.Literal(rows),
    )


def highest_query(read: TableRead) -> sql.Composed:
    """Return the query of the highest value of the cursor, as a number; null without rows."""
    at = sql.SQL("t.{}").format(sql.Identifier(read.cursor.name))
    return sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY {} DESC LIMIT 1").format(
        _number(read.kind, at), read.table.identifier, _in_range(read.kind, at), at
    )


def unordered_query(read: TableRead, most: int) -> sql.Composed:
    """Return the query that counts rows whose cursor has no place in an order, up to `most`."""
    at = sql.SQL("t.{}").format(sql.Identifier(read.cursor.name))
    return sql.SQL(
        "SELECT count(*) FROM (SELECT 1 FROM {} t WHERE {} IS NULL{} LIMIT {}) found"
    ).format(
        read.table.identifier,
        at,
        sql.SQL("")
        if read.kind is CursorKind.INTEGER
        else sql.SQL(" OR NOT ({})").format(_in_range(read.kind, at)),
        sql.Literal(most),
    )


def newest_query(read: TableRead, rows: int) -> sql.Composed:
    """Return the query of the newest rows, as columns of the table."""
    at = sql.SQL("t.{}").format(sql.Identifier(read.cursor.name))
    selected = [
        sql.SQL("{} AS {}").format(column_value(each), sql.Identifier(each.name))
        for each in read.columns
    ]
    return sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY {} DESC LIMIT {}").format(
        sql.SQL(", ").join(selected),
        read.table.identifier,
        _in_range(read.kind, at),
        at,
        sql.Literal(rows),
    )


def column_value(column: ExternalColumn) -> sql.Composed:
    """Return the value of a column in the form in which it is carried.

    Numbers with digits, and whatever JSON and Arrow have no type for, are text. A time without a
    zone is in UTC; an infinite one, which Spark would read as a time, is null.
    """
    at = sql.SQL("t.{}").format(sql.Identifier(column.name))
    match column.type, column.category:
        case (("smallint" | "integer" | "bigint" | "boolean" | "double precision"), _):
            return sql.SQL("{}").format(at)
        case "timestamp with time zone", _:
            return sql.SQL("CASE WHEN isfinite({0}) THEN {0} END").format(at)
        case "timestamp without time zone", _:
            return sql.SQL("CASE WHEN isfinite({0}) THEN {0} AT TIME ZONE 'UTC' END").format(at)
        case "real", _:  # a cast would show digits that the column does not have
            return sql.SQL("({}::text::double precision)").format(at)
        case (("smallint[]" | "integer[]" | "bigint[]"), _):
            return sql.SQL("({}::bigint[])").format(at)
        case (("real[]" | "double precision[]" | "numeric[]"), _):
            return sql.SQL("({}::double precision[])").format(at)
        case "boolean[]", _:
            return sql.SQL("{}").format(at)
        case _, "A":
            return sql.SQL("({}::text[])").format(at)
        case _:
            return sql.SQL("({}::text)").format(at)


def _beyond(read: TableRead, at: sql.Composed, level: ReadLevel) -> sql.Composed:
    """Return the condition that a row is not one of those that a level says were read."""
    bound = _bound(read.kind, level.value)
    if level.row is None:
        behind = sql.SQL("{} > {}").format(at, bound)
    else:
        block, offset = level.row
        behind = sql.SQL("({}, t.ctid) > ({}, {}::tid)").format(
            at, bound, sql.Literal(f"({block},{offset})")
        )
    return sql.SQL("({} OR {})").format(behind, _since(read, level.horizon))


def _since(read: TableRead, horizon: int) -> sql.Composed:
    """Return the condition that the transaction of a row is not below `horizon`.

    Rows have the lower half of an id, so it is compared within the ids from `horizon` to now.
    """
    written = sql.SQL("t.xmin::text::bigint")
    span = max(0, read.clock.end - horizon) + NEWER
    return sql.SQL("({0} >= {1} AND mod({0} - {2} + {3}, {3}) < {4})").format(
        written,
        sql.Literal(FROZEN),
        sql.Literal(horizon % IDS),
        sql.SQL("{}::bigint").format(sql.Literal(IDS)),
        sql.Literal(span),
    )


def _number(kind: CursorKind, at: sql.Composed) -> sql.Composed:
    match kind:
        case CursorKind.INTEGER:
            return sql.SQL("{}::bigint").format(at)
        case CursorKind.DATE:
            return sql.SQL("({} - date '1970-01-01')::bigint").format(at)
        case _:
            return sql.SQL("(extract(epoch FROM {}) * 1000000)::bigint").format(at)


def _bound(kind: CursorKind, value: int) -> sql.Composable:
    match kind:
        case CursorKind.INTEGER:
            return sql.SQL("{}::bigint").format(sql.Literal(max(value, -(1 << 63))))
        case CursorKind.DATE:
            days = max(value, (date.min - EPOCH.date()).days)
            return sql.Literal(EPOCH.date() + timedelta(days=days))
        case CursorKind.TIME:
            return sql.Literal(_time(value))
        case CursorKind.LOCAL_TIME:
            return sql.Literal(_time(value).replace(tzinfo=None))


def _time(value: int) -> datetime:
    return EPOCH + max(timedelta(microseconds=value), FIRST_TIME - EPOCH)


def _in_range(kind: CursorKind, at: sql.Composed) -> sql.Composed:
    """Return the condition that a value has a place in the order: no null and no infinity."""
    match kind:
        case CursorKind.INTEGER:
            return sql.SQL("{} IS NOT NULL").format(at)
        case CursorKind.DATE:
            ends: tuple[object, object] = (date.min, date.max)
        case CursorKind.TIME:
            ends = (FIRST_TIME, LAST_TIME)
        case CursorKind.LOCAL_TIME:
            ends = (FIRST_TIME.replace(tzinfo=None), LAST_TIME.replace(tzinfo=None))
    return sql.SQL("{} BETWEEN {} AND {}").format(at, *map(sql.Literal, ends))
