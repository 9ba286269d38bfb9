"""Turn Arrow columns of any schema into the JSON values that the casts of `log` read.

Theory. Rows that a file or a table has are stored as a raw request, as logged rows are, so that a
dataset that comes later types exactly what was read. Their values therefore take the form in which
a client sends them: numbers, text, booleans, lists and objects. Nothing is lost on the way but what
the platform does not store anyway: timestamps keep microseconds, and NaN is null, as in `log`. An
infinity is text, because JSON has no number for it and the cast to a float reads the text. Bytes
are text; what is not UTF-8 is an object, `{"base64": "/w=="}`, that the cast to bytes reads.

Scalar columns are converted as a whole; lists, structs and maps are assembled row by row.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_casts import (
    BYTES_KEY,
    FIRST_DAY,
    INT64_MAX,
    INT64_MIN,
    LAST_DAY,
    MICROS_PER_DAY,
)
from fennel_core.wire.json_encode import DATE_TEXT, TIMESTAMP_TEXT

MOST_DEPTH: Final = 64
FIRST_MICROS: Final = FIRST_DAY * MICROS_PER_DAY
LAST_MICROS: Final = (LAST_DAY + 1) * MICROS_PER_DAY - 1
_ARROW_ERRORS: Final = (
    pa.ArrowException,
    ValueError,
    OverflowError,
    RecursionError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


class SchemaNotServed(MalformedData):
    """No rows of these columns have a JSON form, whatever their values are."""


def json_columns(rows: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the columns of `rows`.

    Raises `SchemaNotServed` if no rows of these columns have a JSON form, and `MalformedData` if
    these rows have none.
    """
    names = served_names(rows.schema)
    try:
        decoded = [_without_dictionary(column) for column in rows.columns]
        for column in decoded:
            column.validate(full=True)
        return {name: _values(column, name) for name, column in zip(names, decoded, strict=True)}
    except MemoryError:
        raise
    except MalformedData:
        raise
    except _ARROW_ERRORS as wrong:
        raise MalformedData(str(wrong).partition("\n")[0]) from wrong


def served_names(schema: pa.Schema) -> list[str]:
    """Return the names of columns that have a JSON form; raises `SchemaNotServed`."""
    try:
        names = list(schema.names)
        _require_distinct(names, "column")
        if not names:
            raise SchemaNotServed("the rows have no columns")
        for field in schema:
            _require_served(field.type, field.name, 0)
    except UnicodeDecodeError as wrong:
        raise SchemaNotServed("the name of a column is not UTF-8 text") from wrong
    return names


def _require_distinct(names: list[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaNotServed(f"{what} `{twice[0]}` is there twice")


def _require_served(kind: pa.DataType, name: str, depth: int) -> None:
    """Raise `SchemaNotServed` if a type has no JSON form, at any depth."""
    if depth > MOST_DEPTH:
        raise SchemaNotServed(f"column `{name}` is nested deeper than {MOST_DEPTH} levels")
    if isinstance(kind, pa.BaseExtensionType):
        return _require_served(kind.storage_type, name, depth)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        _require_distinct([field.name for field in fields], f"column `{name}`: field")
        inner = [field.type for field in fields]
    elif pa.types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif pa.types.is_dictionary(kind) or _is_any_list(kind):
        inner = [kind.value_type]
    elif pa.types.is_union(kind) or pa.types.is_interval(kind) or pa.types.is_run_end_encoded(kind):
        raise SchemaNotServed(f"column `{name}` has the type {kind}, which has no JSON form")
    else:
        return None
    for each in inner:
        _require_served(each, name, depth + 1)
    return None


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or _is_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _without_dictionary(array: pa.Array) -> pa.Array:
    """Return a column with its values in place: values that no row has are not looked at."""
    if not pa.types.is_dictionary(array.type):
        return array
    bounds = pc.min_max(array.indices)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < 0 or most >= len(array.dictionary)):
        raise MalformedData("a column names values that its dictionary does not have")
    return array.dictionary.take(array.indices)


def _values(array: pa.Array, name: str) -> list[Any]:
    """Return the JSON values of a column, or of the children of one."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _values(_without_dictionary(array), name)
    if isinstance(array, pa.ExtensionArray):
        return _uuids(array.storage) if kind == pa.uuid() else _values(array.storage, name)
    if pa.types.is_floating(kind):
        return _floats(array.cast(pa.float64()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return _list(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _list(array)
    if pa.types.is_timestamp(kind):  # without a zone it is UTC, as in `log`
        return _texts(_micros(array, name).cast(pa.timestamp("us")), TIMESTAMP_TEXT)
    if pa.types.is_duration(kind):
        return _list(_micros(array, name, timed=False))
    if pa.types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32())
        _require_range(days.cast(pa.int64()), FIRST_DAY, LAST_DAY, name)
        return _texts(days.cast(pa.date32()), DATE_TEXT)
    if pa.types.is_decimal(kind):
        return [None if each is None else str(each) for each in array.to_pylist()]
    return _other_values(array, name)


def _micros(array: pa.Array, name: str, *, timed: bool = True) -> pa.Array:
    """Return times or durations as microseconds (int64): finer ones are floored, as in `log`."""
    unit = array.type.unit
    numbers = array.view(pa.int64())
    if unit == "ns":
        missing = np.asarray(array.is_null())
        micros = np.asarray(numbers.fill_null(0)) // 1000
        return pa.array(micros, pa.int64(), mask=missing)
    factor = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    first, last = (FIRST_MICROS, LAST_MICROS) if timed else (INT64_MIN, INT64_MAX)
    _require_range(numbers, -(-first // factor), last // factor, name)
    return pc.multiply_checked(numbers, factor)


def _require_range(numbers: pa.Array, first: int, last: int, name: str) -> None:
    bounds = pc.min_max(numbers)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < first or most > last):
        raise MalformedData(f"column `{name}` has a time that is out of range")


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
    if _is_view(kind):
        sizes = pc.if_else(array.is_valid(), array.sizes.cast(pa.int64()), 0)
        at = np.concatenate(([0], np.cumsum(np.asarray(sizes)))).tolist()
        children = _values(array.flatten(), name)
        return _with_nulls([children[at[i] : at[i + 1]] for i in range(len(array))], array)
    if pa.types.is_fixed_size_list(kind):
        return _values(array.cast(pa.list_(kind.value_type)), name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(_values(_children(array.values, array), name), array)
    if pa.types.is_string_view(kind) or pa.types.is_time(kind):
        return _list(array.cast(pa.large_string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _decoded(array)
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return _decoded(array.cast(pa.large_binary()))
    raise MalformedData(f"column `{name}` has the type {kind}, which has no JSON form")


def _decoded(array: pa.Array) -> list[Any]:
    """Return bytes as text, and what is no text as an object that casts to the same bytes."""
    try:
        return _list(array.cast(pa.large_string()))
    except pa.ArrowInvalid:
        return [None if each is None else _text_or_bytes(each) for each in array.to_pylist()]


def _text_or_bytes(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BYTES_KEY: base64.b64encode(value).decode()}


def _uuids(array: pa.Array) -> list[Any]:
    digits = _series(array.cast(pa.large_binary())).bin.encode("hex")
    groups = r"^(.{8})(.{4})(.{4})(.{4})(.{12})$"
    return digits.str.replace(groups, "${1}-${2}-${3}-${4}-${5}").to_list()


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
    return _series(array).to_list()


def _floats(array: pa.Array) -> list[Any]:
    values = _list(pc.if_else(pc.is_nan(array), None, array))
    if not pc.any(pc.is_inf(array)).as_py():
        return values
    texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return [texts.get(value, value) for value in values]


def _series(array: pa.Array) -> pl.Series:
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series), "an array becomes a series"
    return series


def _texts(array: pa.Array, form: str) -> list[Any]:
    return _series(array).dt.strftime(form).to_list()
