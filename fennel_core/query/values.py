"""JSON values by declared type: whole columns of requests, and the defaults of definitions.

Theory. Columns of requests are mostly of types that JSON has, so their Python types are looked at
all at once (`set(map(type, values))`, C code) and a list that fits is taken as it is; everything
else goes through the protocol's codec, which knows what pandas writes. A type's own checks
(between, oneof, regex) are not applied to what is asked *with*: a value that breaks them finds
nothing. Defaults are JSON text of `str` of whatever is not JSON, which the same codec reads; they
are read once per plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

import polars as pl

from fennel_core.query.columns import QueryColumn
from fennel_core.query.errors import ValueNotConvertible
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, is_optional, optional
from fennel_core.wire.errors import WireError
from fennel_core.wire.json_decode import decode_column

INT64_MAX = 2**63 - 1
_PLAIN: dict[type[object], type[object]] = {
    dtypes.Int: int,
    dtypes.Float: float,
    dtypes.Str: str,
    dtypes.Bool: bool,
}


def input_column(values: Sequence[Any], dtype: Dtype, name: str) -> QueryColumn:
    """A column of a request as values of `dtype`. BadValue names the column, the row and the value
    that cannot be cast.
    """
    bare = dtypes.base(dtype)
    plain = _PLAIN.get(type(bare))
    if plain is not None:
        kinds = set(map(type, values))
        if is_optional(dtype):
            kinds.discard(type(None))
        if kinds <= {plain} and _fits(values, plain):
            return QueryColumn(dtype, values)
    try:
        return QueryColumn(
            dtype, series=_decoded(values, optional(bare) if is_optional(dtype) else bare, name)
        )
    except WireError as error:
        raise ValueNotConvertible(str(error)) from error


def default_value(default_json: str | None, dtype: Dtype) -> object:
    """The physical value of a default; None when there is none. BadValue when the text is not a
    value of `dtype`.
    """
    if default_json is None:
        return None
    try:
        series = _decoded([json.loads(default_json)], optional(dtypes.base(dtype)), "default")
    except (WireError, ValueError) as error:
        raise ValueNotConvertible(
            f"the default {default_json} is not a value of type {dtypes.show(dtype)}: {error}"
        ) from error
    return QueryColumn(dtype, series=series).values[0]


def _decoded(values: Sequence[Any], dtype: Dtype, name: str) -> pl.Series:
    series = pl.from_arrow(decode_column(values, dtype, name))
    assert isinstance(series, pl.Series), "an array becomes a series"
    return series


def _fits(values: Sequence[Any], plain: type[object]) -> bool:
    """Integers that 64 bits hold, floats without NaN (which is null) and infinity."""
    if plain is float:
        return isfinite(sum(filter(None, values)))
    numbers = list(filter(None, values)) if plain is int else []
    return not numbers or (max(numbers) <= INT64_MAX and min(numbers) >= -INT64_MAX - 1)
