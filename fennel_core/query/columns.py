"""A column of a query, in either of two forms.

Rows arrive from slots as msgpack and leave as JSON. Between the two, a list of *physical* values
(temporals as integers, decimals as text, see `operators.step.Served`) suffices, and for one row it
is ten times cheaper than a frame. Expressions and user code need a typed Polars series. A column
holds one of the forms and derives the other on demand. Both are whole-column operations of C code:
nothing here runs Python per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import assert_never

import polars as pl

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import DECIMAL_PRECISION, Dtype

LOGICAL_TIME = pl.Datetime("us", "UTC")


class QueryColumn:
    """One feature or field: values of `dtype`, one per row of the query. Immutable."""

    __slots__ = ("_series", "_values", "dtype")

    def __init__(
        self, dtype: Dtype, values: Sequence[object] | None = None, series: pl.Series | None = None
    ) -> None:
        assert values is not None or series is not None, "a column has a form"
        self.dtype = dtype
        self._values = values
        self._series = series

    def __len__(self) -> int:
        if self._values is not None:
            return len(self._values)
        return len(self.series)

    @property
    def values(self) -> Sequence[object]:
        """The physical values."""
        if self._values is None:
            assert self._series is not None, "a column has a form"
            physical, logical = physical_type(self.dtype), logical_type(self.dtype)
            self._values = (
                self._series if physical == logical else self._series.cast(physical)
            ).to_list()
        return self._values

    @property
    def series(self) -> pl.Series:
        """The logical values as Polars holds them (`vocab.dtypes.arrow_type`)."""
        if self._series is None:
            assert self._values is not None, "a column has a form"
            physical, logical = physical_type(self.dtype), logical_type(self.dtype)
            made = pl.Series("", self._values, dtype=physical, strict=True)
            self._series = made if physical == logical else made.cast(logical)
        return self._series

    def filled(self, fill: object, dtype: Dtype) -> QueryColumn:
        """Replace nulls by the physical value `fill` (None: keep nulls), as a column of `dtype`.

        `dtype` has the same layout.
        """
        if fill is None or None not in self.values:
            return self if dtype == self.dtype else QueryColumn(dtype, self._values, self._series)
        return QueryColumn(dtype, fill_nulls(self.values, fill))


def fill_nulls(values: Sequence[object], fill: object) -> Sequence[object]:
    """Return `values` with `fill` in place of None."""
    return [fill if value is None else value for value in values] if None in values else values


@lru_cache(maxsize=4096)
def logical_type(dtype: Dtype) -> pl.DataType:
    """Return the Polars type of `vocab.dtypes.arrow_type`."""
    match dtypes.base(dtype):
        case dtypes.Timestamp():
            return LOGICAL_TIME
        case dtypes.Date():
            return pl.Date()
        case dtypes.Decimal(scale):
            return pl.Decimal(DECIMAL_PRECISION, scale)
        case other:
            return _shape(other, logical_type)


@lru_cache(maxsize=4096)
def physical_type(dtype: Dtype) -> pl.DataType:
    """Return the Polars type of physical values.

    Temporals are integers and decimals text, at any depth.
    """
    match dtypes.base(dtype):
        case dtypes.Timestamp():
            return pl.Int64()
        case dtypes.Date():
            return pl.Int32()
        case dtypes.Decimal():
            return pl.String()
        case other:
            return _shape(other, physical_type)


def _shape(dtype: Dtype, of: Callable[[Dtype], pl.DataType]) -> pl.DataType:
    match dtype:
        case dtypes.Int():
            return pl.Int64()
        case dtypes.Float():
            return pl.Float64()
        case dtypes.Str() | dtypes.Regex():
            return pl.String()
        case dtypes.Bool():
            return pl.Boolean()
        case dtypes.Bytes():
            return pl.Binary()
        case dtypes.Null():
            return pl.Null()
        case dtypes.Embedding():
            return pl.List(pl.Float64())
        case dtypes.List(item):
            return pl.List(of(item))
        case dtypes.Map(value):
            return pl.List(pl.Struct({"key": pl.String(), "value": of(value)}))
        case dtypes.Struct(_, fields):
            return pl.Struct({f.name: of(f.dtype) for f in fields})
        case (
            dtypes.Timestamp()
            | dtypes.Date()
            | dtypes.Decimal()
            | dtypes.Optional()
            | dtypes.Between()
            | dtypes.OneOf()
        ):
            raise AssertionError("these are handled before the shape")
        case unreachable:
            assert_never(unreachable)
