"""Which of Spark's filters versions may be filtered by, before rows are computed from them.

Theory. A filter of the rows that a read returns may be applied to the versions that they are
computed from, if versions that it drops cannot change the rows that it keeps:

- a version and its retraction are equal, so where each row stands alone, every filter may;
- all versions of a key have the same key, so a filter of key columns may;
- a row of a keyed dataset is the latest version of its key. If that is at T or later, it is so
  among the versions at T or later. So a lower bound of the timestamp may; an upper one may not,
  because it would show a version that another has replaced.

What may not is left to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from pyspark.sql import datasource as spark

from fennel_core.dataframes.contents import AggregateRead, ChangelogRead, ContentRead, DatasetRead
from fennel_core.dataframes.read_options import micros_of
from fennel_core.history.conditions import AnyOf, Condition, Value, ValueRange
from fennel_core.vocab.dtypes import Bool, Date, Int, Str, Timestamp, base
from fennel_core.vocab.schema import Schema

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Pushdown:
    """`conditions` that versions are filtered by, and the filters that Spark must still apply."""

    conditions: tuple[Condition, ...]
    remaining: tuple[spark.Filter, ...]


def pushed_down(read: DatasetRead, filters: Sequence[spark.Filter]) -> Pushdown:
    """Return what is done with filters, all of which a row must satisfy."""
    conditions: list[Condition] = []
    remaining: list[spark.Filter] = []
    schema = read.spec.output if isinstance(read, AggregateRead) else read.schema
    for each in filters:
        found = condition_of(each, schema)
        match found:
            case None:
                remaining.append(each)
            case _ if isinstance(read, ChangelogRead) or not schema.keyed:
                conditions.append(found)
            case _ if found.column in schema.key_names:
                conditions.append(found)
            case _ if found.column == schema.timestamp and isinstance(read, ContentRead):
                bound = _lower_bound(found)
                conditions += () if bound is None else (bound,)
                if bound != found:
                    remaining.append(each)
            case _:
                remaining.append(each)
    return Pushdown(tuple(conditions), tuple(remaining))


def condition_of(asked: spark.Filter, schema: Schema) -> Condition | None:
    """Return the condition that selects the same rows, None if there is none."""
    if not isinstance(
        asked,
        spark.EqualTo
        | spark.In
        | spark.GreaterThan
        | spark.GreaterThanOrEqual
        | spark.LessThan
        | spark.LessThanOrEqual,
    ):
        return None
    field = schema.field(asked.attribute[0]) if len(asked.attribute) == 1 else None
    if field is None:
        return None
    given = asked.value if isinstance(asked, spark.In) else (asked.value,)
    values = [physical_value(base(field.dtype), value) for value in given if value is not None]
    if None in values:
        return None
    known = [value for value in values if value is not None]
    if isinstance(asked, spark.EqualTo | spark.In):
        return AnyOf(field.name, tuple(known))
    if len(known) != 1 or isinstance(known[0], bool | str):
        return None
    return _range(asked, field.name, known[0])


def _range(asked: spark.Filter, column: str, value: int) -> Condition:
    match asked:
        case spark.GreaterThanOrEqual():
            return ValueRange(column, low=value)
        case spark.LessThanOrEqual():
            return ValueRange(column, high=value)
        case spark.GreaterThan():
            return AnyOf(column, ()) if value >= LARGEST else ValueRange(column, low=value + 1)
        case _:
            return AnyOf(column, ()) if value <= SMALLEST else ValueRange(column, high=value - 1)


def physical_value(dtype: object, value: object) -> Value | None:
    """Return a value of a filter as files have it, None if its column is of another type."""
    match dtype, value:
        case Bool(), bool():
            return value
        case Int(), int() if not isinstance(value, bool):
            return value
        case Str(), str():
            return value
        case Timestamp(), datetime():
            return micros_of(value)
        case Date(), date() if not isinstance(value, datetime):
            return (value - _EPOCH).days
        case _:
            return None


def _lower_bound(condition: Condition) -> Condition | None:
    match condition:
        case AnyOf(_, ()):
            return condition
        case ValueRange(column, low):
            return None if low is None else ValueRange(column, low=low)
        case AnyOf(column, values):
            return ValueRange(column, low=min(v for v in values if isinstance(v, int)))
