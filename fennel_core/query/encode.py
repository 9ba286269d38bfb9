"""Columns into the JSON that the client reads, by declared type.

Theory. The client casts what it gets by the feature's or field's declared type, and some forms it cannot cast (integers for datetimes) or
casts wrongly (mixed fractions of seconds in one column). So each type has one form: datetimes as fixed-width ISO text with offset,
dates as ISO text, decimals as numbers (a lookup hands them to its caller as they are), bytes as base64, dicts as objects. A column whose
physical values already have that form goes out as it is; the others are converted as a whole, except a handful of rows, for which
setting up a conversion costs more than doing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

import polars as pl

from fennel_core.query.columns import Column
from fennel_core.query.values import EPOCH, EPOCH_DAY
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, is_optional

FEW_ROWS = 16
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%.6f+00:00"
DATE_FORMAT = "%Y-%m-%d"


def json_values(column: Column) -> Sequence[object]:
    """One JSON-ready value per row (bytes may be among them: the encoder writes them as base64, as the reference server does)."""
    dtype = dtypes.base(column.dtype)
    match dtype:
        case dtypes.Int() | dtypes.Str() | dtypes.Bool() | dtypes.Bytes() | dtypes.Null():
            return column.values
        case dtypes.Float():
            return column.values if is_optional(column.dtype) else _spelt(column.values)
        case dtypes.Timestamp() if len(column) <= FEW_ROWS:
            return [None if value is None else _moment(value) for value in column.values]
        case dtypes.Date() if len(column) <= FEW_ROWS:
            return [None if value is None else _day(value) for value in column.values]
        case dtypes.Decimal() if len(column) <= FEW_ROWS:
            return [None if value is None else float(str(value)) for value in column.values]
        case _ if _as_it_is(dtype):
            return column.values
        case _:
            converted = column.series.to_frame("x").select(_convert(pl.col("x"), dtype))["x"].to_list()
            return [_objects(value, dtype) for value in converted] if _holds_map(dtype) else converted


def _spelt(values: Sequence[Any]) -> Sequence[object]:
    """Floats of a type that may not be null: JSON has no NaN and no infinity, the client reads their names."""
    if isfinite(sum(filter(None, values))):
        return values
    return [value if value is None or isfinite(value) else _name(value) for value in values]


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


@lru_cache(maxsize=4096)
def _holds_map(dtype: Dtype) -> bool:
    match dtypes.base(dtype):
        case dtypes.Map():
            return True
        case dtypes.List(of):
            return _holds_map(of)
        case dtypes.Struct(_, fields):
            return any(_holds_map(field.dtype) for field in fields)
        case _:
            return False


def _convert(column: pl.Expr, dtype: Dtype) -> pl.Expr:
    """The column with temporals as text and decimals as numbers, at every depth."""
    match dtypes.base(dtype):
        case dtypes.Timestamp():
            return column.dt.strftime(TIME_FORMAT)
        case dtypes.Date():
            return column.dt.strftime(DATE_FORMAT)
        case dtypes.Decimal():
            return column.cast(pl.Float64)
        case dtypes.List(of) if not _as_it_is(of):
            return column.list.eval(_convert(pl.element(), of))
        case dtypes.Map(value) if not _as_it_is(value):
            entry = pl.element().struct
            return column.list.eval(pl.struct(entry.field("key"), _convert(entry.field("value"), value).alias("value")))
        case dtypes.Struct(_, fields) if not _as_it_is(dtype):
            parts = [_convert(column.struct.field(field.name), field.dtype).alias(field.name) for field in fields]
            return pl.when(column.is_not_null()).then(pl.struct(parts)).alias("x")
        case _:
            return column


def _objects(value: Any, dtype: Dtype) -> object:
    """Dicts, which rows hold as lists of entries, as JSON objects. Only values of types that hold dicts come here."""
    if value is None:
        return None
    match dtypes.base(dtype):
        case dtypes.Map(of):
            return {entry["key"]: _objects(entry["value"], of) for entry in value}
        case dtypes.List(of) if _holds_map(of):
            return [_objects(item, of) for item in value]
        case dtypes.Struct(_, fields):
            return {field.name: _objects(value[field.name], field.dtype) for field in fields}
        case _:
            return value
