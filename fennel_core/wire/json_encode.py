"""Encode typed columns as the JSON values that the client's readers, or others, accept.

Theory. The client parses a datetime column with one format for all rows, so timestamps have fixed
width and an explicit offset. A date is ISO text; a decimal is a number, because some code paths of
the client do not parse text; bytes are base64; maps and structs are objects; NaN and infinities do
not exist in JSON and become null. Scalar columns are rendered a column at a time; only lists, maps
and structs are assembled in Python, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, arrow_type, base

TIMESTAMP_TEXT = "%Y-%m-%dT%H:%M:%S%.6f+00:00"
DATE_TEXT = "%Y-%m-%d"
EXACT_IN_FLOAT = 2**53
"""Up to this unscaled value, division of a decimal yields the nearest double."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the readers of JSON values.

    `dates`: the days since 1970 instead of text. `exact`: decimals as text instead of numbers.
    """

    timestamp_text: str
    dates: bool = False
    exact: bool = False


CLIENT: Final = Dialect(TIMESTAMP_TEXT)
DEBEZIUM: Final = Dialect("%Y-%m-%dT%H:%M:%S%.6fZ", dates=True, exact=True)
"""As Debezium's types ZonedTimestamp and Date, and with `decimal.handling.mode=string`."""


def encode_column(
    column: pl.Series | pa.Array | pa.ChunkedArray, dtype: Dtype, dialect: Dialect = CLIENT
) -> list[Any]:
    """Return the JSON values of a column, one per row; null is None.

    The column has the Arrow or Polars layout of `dtype`.
    """
    array = column.to_arrow() if isinstance(column, pl.Series) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return _encode(
        array if array.type == arrow_type(dtype) else array.cast(arrow_type(dtype)), dtype, dialect
    )


def _encode(array: pa.Array, dtype: Dtype, dialect: Dialect) -> list[Any]:
    match base(dtype):
        case dtypes.Int() | dtypes.Str() | dtypes.Bool() | dtypes.Null():
            return _plain(array)
        case dtypes.Float():
            return (
                _plain(array)
                if _finite(array)
                else _plain(pc.if_else(pc.is_finite(array), array, None))
            )
        case dtypes.Timestamp():
            return _series(array).dt.strftime(dialect.timestamp_text).to_list()
        case dtypes.Date() if dialect.dates:
            return _series(array).to_physical().to_list()
        case dtypes.Date():
            return _series(array).dt.strftime(DATE_TEXT).to_list()
        case dtypes.Decimal() if dialect.exact:
            return _series(array).cast(pl.String).to_list()
        case dtypes.Decimal(scale):
            return _decimals(array, scale)
        case dtypes.Bytes():
            return _series(array).bin.encode("base64").to_list()
        case dtypes.List(of):
            return _lists(array, _encode(_children(array), of, dialect))
        case dtypes.Embedding():
            return _lists(array, _encode(_children(array), dtypes.Float(), dialect))
        case dtypes.Map(value):
            return _maps(array, value, dialect)
        case dtypes.Struct(_, fields):
            return _structs(array, fields, dialect)
        case other:
            raise AssertionError(f"{other} is not a base type")


def _series(array: pa.Array) -> pl.Series:
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series), "an array becomes a series"
    return series


def _plain(array: pa.Array) -> list[Any]:
    return array.to_pylist() if array.type == pa.null() else _series(array).to_list()


def _finite(array: pa.Array) -> bool:
    return pc.all(pc.is_finite(array)).as_py() is not False


def _decimals(array: pa.Array, scale: int) -> list[float | None]:
    unscaled = pc.max(pc.abs(array)).as_py()
    if unscaled is None or unscaled.scaleb(scale) <= EXACT_IN_FLOAT:
        return _series(array).cast(pl.Float64).to_list()
    return [None if value is None else float(value) for value in array.to_pylist()]


def _children(array: pa.Array) -> pa.Array:
    """Return the child values of a list array, sliced to the rows of `array`."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return array.values.slice(first, last - first)


def _bounds(array: pa.Array) -> tuple[list[int], list[bool] | None]:
    offsets = array.offsets.to_numpy()
    return (
        offsets - offsets[0]
    ).tolist(), array.is_valid().to_pylist() if array.null_count else None


def _lists(array: pa.Array, children: list[Any]) -> list[list[Any] | None]:
    at, valid = _bounds(array)
    rows: list[list[Any] | None] = [children[at[i] : at[i + 1]] for i in range(len(array))]
    return (
        rows
        if valid is None
        else [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    )


def _maps(array: pa.Array, value: Dtype, dialect: Dialect) -> list[dict[str, Any] | None]:
    entries = _children(array)
    keys = _encode(entries.field("key"), dtypes.Str(), dialect)
    values = _encode(entries.field("value"), value, dialect)
    at, valid = _bounds(array)
    rows: list[dict[str, Any] | None] = [
        dict(zip(keys[at[i] : at[i + 1]], values[at[i] : at[i + 1]], strict=True))
        for i in range(len(array))
    ]
    return (
        rows
        if valid is None
        else [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    )


def _structs(
    array: pa.Array, fields: tuple[dtypes.Field, ...], dialect: Dialect
) -> list[dict[str, Any] | None]:
    names = [field.name for field in fields]
    columns = [_encode(array.field(field.name), field.dtype, dialect) for field in fields]
    rows: list[dict[str, Any] | None] = [
        dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)
    ]
    if not fields:
        rows = [{} for _ in range(len(array))]
    if not array.null_count:
        return rows
    return [row if ok else None for row, ok in zip(rows, array.is_valid().to_pylist(), strict=True)]
