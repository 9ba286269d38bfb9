"""Columns into the JSON that the client reads, by declared type.

Theory. The client casts what it gets by the feature's or field's declared type, and some forms it
cannot cast (integers for datetimes) or casts wrongly (mixed fractions of seconds in one column). So
each type has one form: datetimes as fixed-width ISO text with offset, dates as ISO text, decimals
as numbers (a lookup hands them to its caller as they are), bytes as base64, dicts as objects: the
protocol's codec makes them of typed columns. Two short cuts skip it: a column whose physical values
already have that form goes out as it is, and a handful of temporals is rendered directly, because
setting a conversion up costs more than doing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any

from fennel_core.query.columns import QueryColumn
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, is_optional
from fennel_core.wire.json_encode import encode_column

FEW_ROWS = 16
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = EPOCH.date().toordinal()


Encoder = Callable[[QueryColumn], Sequence[object]]


def json_values(column: QueryColumn) -> Sequence[object]:
    """One JSON-ready value per row (bytes may be among them: the encoder writes them as base64, as
    the reference server does).
    """
    return encoder_of(column.dtype)(column)


@lru_cache(maxsize=4096)
def encoder_of(dtype: Dtype) -> Encoder:
    """What `json_values` does with columns of `dtype`; plans choose it once."""
    bare = dtypes.base(dtype)
    match bare:
        case dtypes.Float() if not is_optional(dtype):
            return _floats
        case dtypes.Timestamp():
            return _moments
        case dtypes.Date():
            return _days
        case dtypes.Decimal():
            return _decimals
        case _ if _as_it_is(bare):
            return attrgetter("values")
        case _:
            return _through_codec


def _through_codec(column: QueryColumn) -> Sequence[object]:
    return encode_column(column.series, column.dtype)


def _floats(column: QueryColumn) -> Sequence[object]:
    """Of a type that may not be null: JSON has no NaN and no infinity, the client reads their
    names.
    """
    values: Sequence[Any] = column.values
    if isfinite(sum(filter(None, values))):
        return values
    return [value if value is None or isfinite(value) else _name(value) for value in values]


def _moments(column: QueryColumn) -> Sequence[object]:
    if len(column) > FEW_ROWS:
        return _through_codec(column)
    return [None if value is None else _moment(value) for value in column.values]


def _days(column: QueryColumn) -> Sequence[object]:
    if len(column) > FEW_ROWS:
        return _through_codec(column)
    return [None if value is None else _day(value) for value in column.values]


def _decimals(column: QueryColumn) -> Sequence[object]:
    if len(column) > FEW_ROWS:
        return _through_codec(column)
    return [None if value is None else float(str(value)) for value in column.values]


def _name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _moment(micros: Any) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


def _day(days: Any) -> str:
    return date.fromordinal(EPOCH_DAY + days).isoformat()


@lru_cache(maxsize=4096)
def _as_it_is(dtype: Dtype) -> bool:
    """Are physical values of the type JSON-ready at every depth?"""
    match dtypes.base(dtype):
        case dtypes.Timestamp() | dtypes.Date() | dtypes.Decimal() | dtypes.Map():
            return False
        case dtypes.List(of):
            return _as_it_is(of)
        case dtypes.Struct(_, fields):
            return all(_as_it_is(field.dtype) for field in fields)
        case _:
            return True
