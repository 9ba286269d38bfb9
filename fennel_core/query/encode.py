"""Encode columns as the JSON that the client reads, by declared type.

The client casts received values by the declared type of the feature or field. It cannot cast some
forms (integers for datetimes) and casts others wrongly (mixed fractions of seconds in one column),
so each type has one form: datetimes as fixed-width ISO text with offset, dates as ISO text,
decimals as numbers (a lookup returns them to its caller as they are), bytes as base64, dicts as
objects. The protocol's codec produces these forms from typed columns. Two shortcuts skip it: a
column whose physical values already have the form is used as it is, and a few temporals are
rendered directly, because setting up a conversion costs more than doing it.
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

SMALL_ROWS = 16
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = EPOCH.date().toordinal()


Encoder = Callable[[QueryColumn], Sequence[object]]


def json_values(column: QueryColumn) -> Sequence[object]:
    """Return one JSON-ready value per row.

    Bytes may be among them; the JSON encoder writes them as base64, as the reference server does.
    """
    return encoder_of(column.dtype)(column)


@lru_cache(maxsize=4096)
def encoder_of(dtype: Dtype) -> Encoder:
    """Return the encoder of columns of `dtype`; plans choose it once."""
    bare = dtypes.base(dtype)
    match bare:
        case dtypes.Float() if not is_optional(dtype):
            return _floats
        case dtypes.Timestamp():
            return _timestamps
        case dtypes.Date():
            return _days
        case dtypes.Decimal():
            return _decimals
        case _ if _is_json_ready(bare):
            return attrgetter("values")
        case _:
            return _through_codec


def _through_codec(column: QueryColumn) -> Sequence[object]:
    return encode_column(column.series, column.dtype)


def _floats(column: QueryColumn) -> Sequence[object]:
    """Encode floats of a type without null: the client reads NaN and infinities by name."""
    values: Sequence[Any] = column.values
    if isfinite(sum(filter(None, values))):
        return values
    return [value if value is None or isfinite(value) else _name(value) for value in values]


def _timestamps(column: QueryColumn) -> Sequence[object]:
    if len(column) > SMALL_ROWS:
        return _through_codec(column)
    return [None if value is None else _timestamp(value) for value in column.values]


def _days(column: QueryColumn) -> Sequence[object]:
    if len(column) > SMALL_ROWS:
        return _through_codec(column)
    return [None if value is None else _day(value) for value in column.values]


def _decimals(column: QueryColumn) -> Sequence[object]:
    if len(column) > SMALL_ROWS:
        return _through_codec(column)
    return [None if value is None else float(str(value)) for value in column.values]


def _name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _timestamp(micros: Any) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


def _day(days: Any) -> str:
    return date.fromordinal(EPOCH_DAY + days).isoformat()


@lru_cache(maxsize=4096)
def _is_json_ready(dtype: Dtype) -> bool:
    """Return whether physical values of the type are JSON-ready at every depth."""
    match dtypes.base(dtype):
        case dtypes.Timestamp() | dtypes.Date() | dtypes.Decimal() | dtypes.Map():
            return False
        case dtypes.List(of):
            return _is_json_ready(of)
        case dtypes.Struct(_, fields):
            return all(_is_json_ready(field.dtype) for field in fields)
        case _:
            return True
