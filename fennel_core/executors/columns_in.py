"""Convert Arrow columns of declared types to pandas columns (executor environment).

The form of a column depends on its declared type only, never on its values: nullable extension
dtypes for int, float, str and bool; `datetime64[ns, UTC]`; Arrow-backed dates and decimals; Python
lists and dicts for nested types; `pd.NA` for null. These are the dtypes of the client's own test
server, so code that passes there runs here. One row must cost well under a millisecond, so arrays
are wrapped rather than converted wherever their buffers allow it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from frozendict import frozendict

Description = Any
"""The result of `calls.describe`: a letter, or a list `[word, …]`."""

_UTC = pd.DatetimeTZDtype("ns", "UTC")
_UTC_MICROS = pd.DatetimeTZDtype("us", "UTC")
_NAT = np.iinfo(np.int64).min
_NANOS_LIMIT = np.iinfo(np.int64).max // 1000


def base(description: Description) -> Description:
    """Return the description without optional, between, oneof and regex."""
    while isinstance(description, list):
        match description[0]:
            case "optional" | "between" | "oneof":
                description = description[1]
            case "regex":
                return "s"
            case _:
                return description
    return description


def optional(description: Description) -> bool:
    """Return whether values may be null."""
    return description == "n" or (isinstance(description, list) and description[0] == "optional")


def series(
    column: pa.ChunkedArray, description: Description, name: str, *, hashable: bool = False
) -> pd.Series:
    """Return the column as user code expects it.

    `hashable`: dicts become frozendicts, as extractors expect.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # an empty column combines to no chunk
        array = pa.array([], column.type)
    return pd.Series(_array(array, base(description), hashable), name=name, copy=False)


def frame(table: pa.Table, fields: list[list[Any]]) -> pd.DataFrame:
    """Return the columns `fields` (`[[name, description], …]`) as one frame with the index
    0..n-1.
    """
    columns = {name: series(table.column(name), description, name) for name, description in fields}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(table)), copy=False)


def _array(array: pa.Array, kind: Description, hashable: bool) -> Any:
    match kind:
        case "i":
            return pd.arrays.IntegerArray(*_masked(array, np.int64, 0))
        case "f":
            values, mask = _masked(array, np.float64, 0.0)
            return pd.arrays.FloatingArray(values, mask | np.isnan(values))
        case "b":
            return pd.arrays.BooleanArray(*_masked(array, np.bool_, False))
        case "s":
            values = array.to_numpy(zero_copy_only=False)
            if array.null_count:
                values = np.where(_nulls(array), pd.NA, values)
            return pd.arrays.StringArray(values)
        case "t":
            return _timestamps(array)
        case "d":
            return pd.arrays.ArrowExtensionArray(array)
        case "y" | "n":
            return _objects([pd.NA if v is None else v for v in array.to_pylist()])
        case "j":
            return [None if v is None else json.loads(v) for v in array.to_pylist()]
        case ["decimal", _]:
            return pd.arrays.ArrowExtensionArray(array)
        case _:
            plain = _python(kind, hashable)
            return _objects([plain(v) for v in array.to_pylist()])


def _masked(array: pa.Array, dtype: Any, fill: Any) -> tuple[Any, Any]:
    if not array.null_count:
        values = array.to_numpy(zero_copy_only=False)
        return values if values.flags.writeable else values.copy(), np.zeros(len(array), np.bool_)
    return array.fill_null(fill).to_numpy(zero_copy_only=False).astype(dtype), _nulls(array)


def _nulls(array: pa.Array) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False)


def _timestamps(array: pa.Array) -> Any:
    micros = array.view(pa.int64()) if not array.null_count else array.view(pa.int64()).fill_null(0)
    values = micros.to_numpy(zero_copy_only=False)
    wide = bool(len(values)) and int(np.abs(values).max()) > _NANOS_LIMIT
    values = values.copy() if wide else values * 1000
    if array.null_count:
        values[_nulls(array)] = _NAT
    unit, dtype = ("M8[us]", _UTC_MICROS) if wide else ("M8[ns]", _UTC)
    return pd.arrays.DatetimeArray._simple_new(values.view(unit), dtype=dtype)


def _objects(values: list[Any]) -> Any:
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _python(description: Description, hashable: bool) -> Callable[[Any], Any]:
    """Return the conversion of one nested pyarrow value to Python; null becomes `pd.NA`."""
    kind = base(description)
    match kind:
        case "t":
            return lambda v: pd.NA if v is None else pd.Timestamp(v)
        case ["list", of] if (element := _python(of, hashable)) is not _same:
            return lambda v: pd.NA if v is None else [element(x) for x in v]
        case ["map", of]:
            value = _python(of, hashable)
            make = frozendict if hashable else dict
            return lambda v: pd.NA if v is None else make((e["key"], value(e["value"])) for e in v)
        case ["struct", _, fields]:
            parts = [(name, _python(of, False)) for name, of in fields]
            make = frozendict if hashable else dict
            return lambda v: (
                pd.NA if v is None else make((name, part(v[name])) for name, part in parts)
            )
        case _:
            return _same


def _same(value: Any) -> Any:
    return pd.NA if value is None else value
