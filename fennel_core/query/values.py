"""Convert JSON values by declared type: columns of requests, and defaults of definitions.

Columns of requests mostly have JSON's own types, so the Python types of a column are checked at
once (`set(map(type, values))`, C code) and a list that fits is used as it is. Everything else goes
through the protocol's codec, which knows the forms that pandas writes. A type's own checks
(between, oneof, regex) are not applied to inputs: a value that violates them finds no row. Defaults
are JSON text, or the `str` of values without a JSON form, which the same codec reads; they are
converted once per plan.
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
    """Convert a column of a request to `dtype`.

    Raises `ValueNotConvertible`, naming column, row and value.
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
    """Return the physical value of a default, None without one.

    Raises `ValueNotConvertible` when the text is not a value of `dtype`.
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
    """Return whether integers fit 64 bits, and floats are neither NaN (null) nor infinite."""
    if plain is float:
        return isfinite(sum(filter(None, values)))
    numbers = list(filter(None, values)) if plain is int else []
    return not numbers or (max(numbers) <= INT64_MAX and min(numbers) >= -INT64_MAX - 1)
