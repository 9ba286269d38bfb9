"""The queries of a read of a table; `table_reads` says what they are for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString

from psycopg import sql

from fennel_core.connections.external_postgres import CursorKind, ExternalColumn
from fennel_core.sources.table_reads import (
    BLOCK,
    DAY_US,
    EPOCH,
    FILE,
    IDS,
    NEWER,
    OFFSET,
    PLACE,
    VALUE,
    WRITER,
    ReadLevel,
    TableCursor,
    TableRead,
    Witness,
)

FROZEN: Final = 3
"""Lower ids mean transactions that ended long ago."""
FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
WRITTEN: Final = sql.SQL("t.xmin::text::bigint")
"""The lower half of the id of the transaction that wrote a row."""


def page_query(read: TableRead, before: TableCursor | None, rows: int) -> sql.Composed:
    """Return the query of the next page: at most `rows`, in order, with the columns of `OWN`.

    `FILE` is that of the rows, read while the query holds its lock on the table, and null for rows
    of another table that has its name by then.
    """
    at = _cursor(read)
    ended = sql.SQL("NOT {}").format(_since(read, read.clock.horizon))
    conditions = [_is_current(read), _in_range(read, at), ended, *_from_floor(read, before)]
    if before is not None:
        conditions += [_beyond(read, at, level) for level in before.levels]
    selected = [
        sql.SQL("{} AS {}").format(column_value(each), sql.Identifier(each.name))
        for each in read.columns
    ]
    return sql.SQL(
        "SELECT {columns}, {value} AS {value_name}, "
        "split_part(trim(both '()' from t.ctid::text), ',', 1)::bigint AS {block}, "
        "split_part(trim(both '()' from t.ctid::text), ',', 2)::bigint AS {offset}, "
        "row_number() OVER (ORDER BY {at}, t.ctid) AS {place}, "
        "CASE WHEN t.tableoid = {oid} THEN (SELECT pg_relation_filenode({oid}))::bigint END "
        "AS {file}, {written} AS {writer} "
        "FROM {table} t WHERE {conditions} ORDER BY {at}, t.ctid LIMIT {rows}"
    ).format(
        columns=sql.SQL(", ").join(selected),
        value=_number(read.kind, at),
        value_name=sql.Identifier(VALUE),
        block=sql.Identifier(BLOCK),
        offset=sql.Identifier(OFFSET),
        place=sql.Identifier(PLACE),
        oid=sql.SQL("{}::oid").format(sql.Literal(read.table.oid)),
        file=sql.Identifier(FILE),
        written=WRITTEN,
        writer=sql.Identifier(WRITER),
        at=at,
        table=read.table.identifier,
        conditions=sql.SQL(" AND ").join(conditions),
        rows=sql.Literal(rows),
    )


def highest_query(read: TableRead, nth: int = 1) -> sql.Composed:
    """Return the query of the `nth` highest value of the cursor, as a number; no row if fewer.

    Beyond the first, rows count that the read could read: a floor is not raised by others.
    """
    at = _cursor(read)
    conditions = [_in_range(read, at)]
    if nth > 1:
        conditions.append(sql.SQL("NOT {}").format(_since(read, read.clock.horizon)))
    return sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY {} DESC OFFSET {} LIMIT 1").format(
        _number(read.kind, at),
        read.table.identifier,
        sql.SQL(" AND ").join(conditions),
        at,
        sql.Literal(nth - 1),
    )


def waiting_query(read: TableRead, before: TableCursor) -> sql.Composed:
    """Return the query of the rows that a complete read has left: their lowest value, and number.

    A row that changes while it is read is always newer than the read, whatever page it was on.
    """
    at = _cursor(read)
    conditions = [
        _is_current(read),
        _in_range(read, at),
        _since(read, read.clock.horizon),
        sql.SQL("{} <= {}").format(at, _bound(read.kind, before.highest)),
        *_from_floor(read, before),
    ]
    return sql.SQL("SELECT {}, count(*) FROM {} t WHERE {}").format(
        _number(read.kind, sql.SQL("min({})").format(at)),
        read.table.identifier,
        sql.SQL(" AND ").join(conditions),
    )


def read_rows_query(read: TableRead, before: TableCursor) -> sql.Composed:
    """Return the query of `FoundRows`."""
    at = _cursor(read)
    there = sql.SQL("SELECT 1 FROM {} t WHERE {}")
    witness = before.witness or Witness(0, -1)
    same = sql.SQL("{} = {} AND {} = {}").format(
        at, _bound(read.kind, witness.value), WRITTEN, sql.Literal(witness.writer)
    )
    older = sql.SQL("{} <= {}").format(at, _bound(read.kind, before.highest))
    refilled: sql.Composable = sql.SQL("false")
    if before.emptied is not None:
        refilled = sql.SQL("{} <= {}").format(at, _bound(read.kind, before.emptied))
    return sql.SQL("SELECT EXISTS ({}), EXISTS ({}), EXISTS ({})").format(
        *(there.format(read.table.identifier, each) for each in (same, older, refilled))
    )


def unordered_query(read: TableRead, most: int) -> sql.Composed:
    """Return the query that counts rows that have no place in the order, up to `most`.

    Apart: those without a value (null, infinite), and those with a time far in the future.
    """
    at = _cursor(read)
    lowest, highest = _ends(read)
    if read.kind is CursorKind.INTEGER:
        ahead: sql.Composable = sql.SQL("false")
        outside = sql.SQL("{} IS NULL").format(at)
    else:
        ahead = sql.SQL("isfinite({0}) AND {0} > {1}").format(at, highest)
        outside = sql.SQL("{0} IS NULL OR {0} < {1} OR {0} > {2}").format(at, lowest, highest)
    return sql.SQL(
        "SELECT count(*) FILTER (WHERE NOT ahead), count(*) FILTER (WHERE ahead) FROM "
        "(SELECT coalesce({}, false) AS ahead FROM {} t WHERE {} LIMIT {}) found"
    ).format(ahead, read.table.identifier, outside, sql.Literal(most))


def newest_query(read: TableRead, rows: int) -> sql.Composed:
    """Return the query of the newest rows, as columns of the table."""
    at = _cursor(read)
    selected = [
        sql.SQL("{} AS {}").format(column_value(each), sql.Identifier(each.name))
        for each in read.columns
    ]
    return sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY {} DESC LIMIT {}").format(
        sql.SQL(", ").join(selected),
        read.table.identifier,
        _in_range(read, at),
        at,
        sql.Literal(rows),
    )


def column_value(column: ExternalColumn) -> sql.Composed:
    """Return the value of a column in the form in which it is carried.

    Numbers with digits, and whatever JSON and Arrow have no type for, are text. A time without a
    zone is in UTC; an infinite one, which a reader would take for a time, is null.
    """
    at = sql.SQL("t.{}").format(sql.Identifier(column.name))
    match column.type, column.category:
        case (("smallint" | "integer" | "bigint" | "boolean" | "double precision"), _):
            return sql.SQL("{}").format(at)
        case "timestamp with time zone", _:
            return sql.SQL("CASE WHEN isfinite({0}) THEN {0} END").format(at)
        case "timestamp without time zone", _:
            return sql.SQL("CASE WHEN isfinite({0}) THEN {0} AT TIME ZONE 'UTC' END").format(at)
        case "date", _:
            return sql.SQL("CASE WHEN isfinite({0}) THEN {0}::text END").format(at)
        case "numeric", _:
            return sql.SQL("nullif({}, 'NaN')::text").format(at)
        case "real", _:  # a cast would show digits that the column does not have
            return sql.SQL("({}::text::double precision)").format(at)
        case (("smallint[]" | "integer[]" | "bigint[]"), _):
            return _array(column, at, "bigint[]")
        case "real[]", _:  # as "real"
            return _array(column, sql.SQL("{}::text[]").format(at), "double precision[]")
        case "double precision[]", _:
            return _array(column, at, "double precision[]")
        case "boolean[]", _:
            return _array(column, at, "boolean[]")
        case _, "A":
            return _array(column, at, "text[]")
        case _:
            return sql.SQL("({}::text)").format(at)


def _array(column: ExternalColumn, at: sql.Composed, of: LiteralString) -> sql.Composed:
    """Return an array whose first element is number 1: a slice is, and readers know no other.

    One of several dimensions has no type in a page; the server refuses it with a sentence.
    """
    refused = f"column {column.name} has an array of several dimensions, which is not read: "
    return sql.SQL(
        "(CASE WHEN array_ndims({0}) > 1 THEN ({1} || array_dims({0}))::{2} ELSE ({0}::{2})[:] END)"
    ).format(at, sql.Literal(refused), sql.SQL(of))


def _cursor(read: TableRead) -> sql.Composed:
    return sql.SQL("t.{}").format(sql.Identifier(read.cursor.name))


def _is_current(read: TableRead) -> sql.Composed:
    """Return a condition that fails on a server that is behind the one that the read began with.

    A name may lead to several replicas. It is checked once, also for a page without rows.
    """
    behind = "the server is behind the one that the read began with: read from one server"
    return sql.SQL(
        "(SELECT (CASE WHEN pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= {} "
        "THEN '1' ELSE {} END)::integer = 1)"
    ).format(sql.Literal(read.clock.horizon), sql.Literal(behind))


def _from_floor(read: TableRead, before: TableCursor | None) -> list[sql.Composed]:
    floor = read.floor(before)
    if floor is None:
        return []
    return [sql.SQL("{} >= {}").format(_cursor(read), _bound(read.kind, floor))]


def _beyond(read: TableRead, at: sql.Composed, level: ReadLevel) -> sql.Composed:
    """Return the condition that a row is not one of those that a level says were read.

    No row of a page is above the horizon of its read. So for a level of the same read the place
    alone decides, and an index is searched from there on.
    """
    bound = _bound(read.kind, level.value)
    if level.row is None:
        behind = sql.SQL("{} > {}").format(at, bound)
    else:
        block, offset = level.row
        behind = sql.SQL("({}, t.ctid) > ({}, {}::tid)").format(
            at, bound, sql.Literal(f"({block},{offset})")
        )
    if level.horizon == read.clock.horizon:
        return sql.SQL("({} >= {} AND {})").format(at, bound, behind)
    return sql.SQL("({} OR {})").format(behind, _since(read, level.horizon))


def _since(read: TableRead, horizon: int) -> sql.Composed:
    """Return the condition that the transaction of a row is not below `horizon`.

    Rows have the lower half of an id, so it is compared within the ids from `horizon` to now.
    """
    span = max(0, read.clock.end - horizon) + NEWER
    return sql.SQL("({0} >= {1} AND mod({0} - {2} + {3}, {3}) < {4})").format(
        WRITTEN,
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
    """Return a value of the cursor, or the end of the range on its side."""
    match kind:
        case CursorKind.INTEGER:
            within = min(max(value, -(1 << 63)), (1 << 63) - 1)
            return sql.SQL("{}::bigint").format(sql.Literal(within))
        case CursorKind.DATE:
            return sql.Literal(_time(value * DAY_US).date())
        case CursorKind.TIME:
            return sql.Literal(_time(value))
        case CursorKind.LOCAL_TIME:
            return sql.Literal(_time(value).replace(tzinfo=None))


def _time(value_us: int) -> datetime:
    within_us = min(max(value_us, FIRST_US), LAST_US)
    return EPOCH + timedelta(microseconds=within_us)


def _ends(read: TableRead) -> tuple[sql.Composable, sql.Composable]:
    """Return the lowest and the highest value that has a place in the order: no infinity."""
    latest = LAST_US if read.latest is None else read.latest
    return _bound(read.kind, FIRST_US), _bound(read.kind, latest)


def _in_range(read: TableRead, at: sql.Composed) -> sql.Composed:
    """Return the condition that a value has a place in the order: see `unordered_query`."""
    if read.kind is CursorKind.INTEGER:
        return sql.SQL("{} IS NOT NULL").format(at)
    return sql.SQL("{} BETWEEN {} AND {}").format(at, *_ends(read))
