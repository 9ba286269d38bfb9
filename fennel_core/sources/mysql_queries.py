"""The queries of a read of a table of MySQL or MariaDB; decision 0090 says what they rely on.

Rows do not show what wrote them, but a time that the server has set says when: no transaction that
begins later than a moment writes an earlier one. So all rows are there whose time is before every
transaction and statement that runs, which is the horizon of a read (µs since 1970), and none of
them appears later. What was read is one level: all rows up to a place, which is (time, key).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from fennel_core.connections.external_mysql import DIALECT
from fennel_core.connections.external_postgres import ExternalColumn
from fennel_core.sources.table_reads import (
    BLOCK,
    FILE,
    OFFSET,
    PLACE,
    VALUE,
    WRITER,
    ReadLevel,
    TableCursor,
    TableRead,
)

MOMENT: Final = "%Y-%m-%dT%H:%i:%s.%fZ"


def page_query(read: TableRead, before: TableCursor | None, rows: int) -> str:
    """Return the query of the next page: at most `rows`, in order, with the columns of `OWN`."""
    table = _table(read)
    at, by = table.c[read.cursor.name], table.c[read.table.key]
    conditions = [at < _moment(read.clock.horizon)]
    if before is not None:
        conditions += [_beyond(at, by, level) for level in before.levels]
    first = (
        sa.select(
            *_values(table, read),
            _number(at).label(VALUE),
            _signed(by).label(BLOCK),
            sa.literal(0).label(OFFSET),
            sa.literal(read.table.file).label(FILE),
            sa.literal(0).label(WRITER),
        )
        .where(*conditions)
        .order_by(at, by)
        .limit(rows)
        .subquery("first")
    )
    # Of the rows of the page only: a window over all that follow would read and sort them.
    order = (first.c[VALUE], first.c[BLOCK])
    place = _signed(sa.func.row_number().over(order_by=order)).label(PLACE)
    return text_of(sa.select(*first.c, place).order_by(*order).limit(rows))


def newest_query(read: TableRead, rows: int) -> str:
    """Return the query of the newest rows, as columns of the table."""
    table = _table(read)
    at = table.c[read.cursor.name]
    query = sa.select(*_values(table, read)).where(at.is_not(None)).order_by(at.desc()).limit(rows)
    return text_of(query)


def unordered_query(read: TableRead, most: int) -> str:
    """Return the query that counts the rows without a time, up to `most`."""
    table = _table(read)
    without = sa.select(sa.literal(1).label("n")).select_from(table)
    without = without.where(table.c[read.cursor.name].is_(None)).limit(most)
    return text_of(sa.select(sa.func.count()).select_from(without.subquery()))


def text_of(query: sa.ClauseElement) -> str:
    """Return a query with its values, as MySQL reads it."""
    return str(query.compile(dialect=DIALECT, compile_kwargs={"literal_binds": True}))


def _table(read: TableRead) -> sa.TableClause:
    names = {read.cursor.name, read.table.key, *(each.name for each in read.columns)}
    columns = (sa.column(name) for name in sorted(names))  # type: ignore[var-annotated]  # columns without types
    return sa.table(read.table.name, *columns, schema=read.table.schema)


def _values(table: sa.TableClause, read: TableRead) -> list[sa.ColumnElement[object]]:
    return [_carried(table.c[each.name], each).label(each.name) for each in read.columns]


def _carried(at: sa.ColumnElement[object], column: ExternalColumn) -> sa.ColumnElement[object]:
    """Return the value of a column in the form in which it is carried: see `table_queries`.

    Times are text, which no driver moves to another zone.
    """
    match column.type:
        case "boolean" | "double precision":
            return at
        case "real":  # as a number, as its text has six digits; `short_floats` rounds it
            return at + sa.literal_column("0e0", sa.Double())
        case "bigint":
            return _signed(at)
        case "timestamp with time zone" | "timestamp without time zone":
            return sa.func.date_format(at, MOMENT)
        case "date":
            return sa.func.date_format(at, "%Y-%m-%d")
        case _:
            return sa.cast(at, sa.CHAR())


def _beyond(
    at: sa.ColumnElement[object], by: sa.ColumnElement[object], level: ReadLevel
) -> sa.ColumnElement[bool]:
    """Return the condition that a row is behind a place; an index is searched from there on."""
    bound = _moment(level.value)
    if level.row is None:
        return at > bound
    key, _ = level.row
    return sa.and_(at >= bound, sa.or_(at > bound, by > sa.literal(key)))


def _moment(value_us: int) -> sa.ColumnElement[object]:
    if not value_us:  # no TIMESTAMP but the zero one has this number, and it is below 1970
        return sa.literal("0000-00-00 00:00:00")
    seconds, micros = divmod(value_us, 1_000_000)
    return sa.func.from_unixtime(sa.literal_column(f"{seconds}.{micros:06d}"))


def _number(at: sa.ColumnElement[object]) -> sa.ColumnElement[object]:
    return _signed(sa.func.unix_timestamp(at) * sa.literal(1_000_000))


def _signed(value: sa.ColumnElement[object]) -> sa.ColumnElement[object]:
    return sa.cast(value, mysql.INTEGER())
