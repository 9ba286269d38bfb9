"""Turn Arrow columns of any schema into the JSON values that the casts of `log` read.

Theory. Rows that a file or a table has are stored as a raw request, as logged rows are, so that a
dataset that comes later types exactly what was read. Their values therefore take the form in which
a client sends them: numbers, text, booleans, lists and objects. Nothing is lost on the way but what
the platform does not store anyway: timestamps keep microseconds, and NaN is null, as in `log`. An
infinity is text, because JSON has no number for it and the cast to a float reads the text.

Scalar columns are converted as a whole; lists, structs and maps are assembled row by row.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_encode import DATE_TEXT, TIMESTAMP_TEXT


def json_columns(rows: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the columns of `rows`. Raises `MalformedData` where one has no JSON form."""
    names = rows.schema.names
    if not names:
        raise MalformedData("the rows have no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MalformedData(f"column `{twice[0]}` is there twice")
    return {name: _values(rows.column(place), name) for place, name in enumerate(names)}


def _values(array: pa.Array, name: str) -> list[Any]:
    """Return the JSON values of a column, or of the children of one."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode(), name)
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage, name)
    if pa.types.is_floating(kind):
        return _floats(array.cast(pa.float64()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return _list(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _list(array)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else "UTC"  # without a zone it is UTC, as in `log`
        return _texts(array.cast(pa.timestamp("us", zone), safe=False), TIMESTAMP_TEXT)
    if pa.types.is_date(kind):
        return _texts(array.cast(pa.date32(), safe=False), DATE_TEXT)
    if pa.types.is_decimal(kind):
        return [None if each is None else str(each) for each in array.to_pylist()]
    return _other_values(array, name)


def _other_values(array: pa.Array, name: str) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [kind.field(place).name for place in range(kind.num_fields)]
        children = [_values(child, name) for child in array.flatten()]
        rows = [dict(zip(fields, each, strict=True)) for each in zip(*children, strict=True)]
        return _with_nulls(rows if children else [{} for _ in range(len(array))], array)
    if pa.types.is_map(kind):
        keys = _values(_children(array.keys, array), name)
        items = _values(_children(array.items, array), name)
        pairs = [[key, item] for key, item in zip(keys, items, strict=True)]
        return _lists(pairs, array)
    if pa.types.is_fixed_size_list(kind):
        return _values(array.cast(pa.list_(kind.value_type)), name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(_values(_children(array.values, array), name), array)
    if pa.types.is_string_view(kind) or pa.types.is_time(kind):
        return _list(array.cast(pa.large_string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _decoded(array, name)
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return _decoded(array.cast(pa.large_binary()), name)
    raise MalformedData(f"column `{name}` has the type {kind}, which has no JSON form")


def _decoded(array: pa.Array, name: str) -> list[Any]:
    try:
        texts = array.cast(pa.large_string())
    except pa.ArrowInvalid as wrong:
        raise MalformedData(f"column `{name}` has bytes that are not UTF-8 text") from wrong
    return _list(texts)


def _children(values: pa.Array, array: pa.Array) -> pa.Array:
    """Return the part of `values` that belongs to the rows of the list or map `array`."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return values.slice(first, last - first)


def _lists(children: list[Any], array: pa.Array) -> list[Any]:
    first = array.offsets[0].as_py()
    at = [place - first for place in array.offsets.to_pylist()]
    return _with_nulls([children[at[i] : at[i + 1]] for i in range(len(array))], array)


def _with_nulls(rows: list[Any], array: pa.Array) -> list[Any]:
    if not array.null_count:
        return rows
    valid = array.is_valid().to_pylist()
    return [row if there else None for row, there in zip(rows, valid, strict=True)]


def _list(array: pa.Array) -> list[Any]:
    if pa.types.is_null(array.type):
        return [None] * len(array)
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series), "an array becomes a series"
    return series.to_list()


def _floats(array: pa.Array) -> list[Any]:
    values = _list(pc.if_else(pc.is_nan(array), None, array))
    if not pc.any(pc.is_inf(array)).as_py():
        return values
    texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return [texts.get(value, value) for value in values]


def _texts(array: pa.Array, form: str) -> list[Any]:
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series), "an array becomes a series"
    return series.dt.strftime(form).to_list()
