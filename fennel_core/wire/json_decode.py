"""Decode JSON bodies of `log`, `query` and `lookup` to typed columns.

Theory. The declared type alone decides how a JSON value is read. Nested types are decoded column by
column too: a list column is its lengths and one long child column, a struct column is one child
column per field, and only scalar leaves are cast (`json_casts`). A bad value inside a nested value
is reported at its outer row. A column is decoded as a whole or raises `BadColumn` with all its bad
values. Error texts follow the client's own, which its users know; the row is added where it helps.

Example: `[[1, "2"], ["x"]]` as `List[int]` has lengths 2 and 1 and the child column `[1, "2",
"x"]`; "x" cannot be cast, so row 1 is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field, arrow_type
from fennel_core.vocab.schema import Schema
from fennel_core.wire.errors import (
    BadColumn,
    BadValue,
    ForbiddenValues,
    MissingColumn,
    RejectedRows,
    UncastableColumn,
    WireError,
)
from fennel_core.wire.json_casts import cast_flat, show_value

NULL_TEXT = "Null values found in non-optional field."
ROWS_SHOWN = 5


def decode_column(values: Sequence[Any], dtype: Dtype, column: str) -> pa.Array:
    """Decode the JSON `values` of one column to the Arrow layout of `dtype`.

    Raises `UncastableColumn` if values cannot be cast or a non-optional column has nulls, otherwise
    `ForbiddenValues` if they violate the type's own restriction.
    """
    array, bad = _decode(values, dtype, False)
    if bad:
        raise _error(values, dtype, column, bad)
    return array


def decode_table(columns: Mapping[str, Sequence[Any]], schema: Schema, dataset: str) -> pa.Table:
    """Decode the columnar body of a `log` to rows of `dataset`, in the order of its schema.

    Columns that the schema does not declare are ignored. Raises `RejectedRows` with an error per
    invalid column, also for columns of different lengths.
    """
    lengths = {name: len(columns[name]) for name in schema.names if name in columns}
    if len(set(lengths.values())) > 1:
        raise RejectedRows(
            f"the columns of a body must be equally long, but have {lengths} values", ()
        )
    arrays: list[pa.Array] = []
    causes: list[WireError] = []
    for field in schema.fields:
        try:
            arrays.append(_present(columns, field, schema))
        except WireError as error:
            causes.append(error)
    if causes:
        raise RejectedRows(_rejection(dataset, causes), causes)
    return pa.table(arrays, schema=schema.arrow())


def _present(columns: Mapping[str, Sequence[Any]], field: Field, schema: Schema) -> pa.Array:
    is_timestamp = field.name == schema.timestamp
    if field.name not in columns:
        what = "Timestamp column" if is_timestamp else "Field"
        raise MissingColumn(
            f"{what} `{field.name}` not found in dataframe while logging to dataset"
        )
    try:
        return decode_column(columns[field.name], field.dtype, field.name)
    except UncastableColumn as error:
        if not is_timestamp:
            raise
        reason = _reasons(error.bad, error.rows)
        raise UncastableColumn(
            field.name,
            error.bad,
            error.rows,
            f"Failed to cast data logged to timestamp column {field.name}: {reason}",
        ) from error


def _rejection(dataset: str, causes: Sequence[WireError]) -> str:
    """Return the error text of a whole batch.

    Failed casts come first; violated restrictions are reported only if every cast succeeded, as a
    list, because the client displays them so.
    """
    prefix = f"Schema validation failed during data insertion to `{dataset}`"
    casts = [str(cause) for cause in causes if not isinstance(cause, ForbiddenValues)]
    if casts:
        return f"{prefix}: {'; '.join(casts)}"
    return f"{prefix} [{', '.join(repr(ValueError(str(cause))) for cause in causes)}]"


# --- decoding by type -----------------------------------------------------------------------------

Decoded = tuple[pa.Array, list[BadValue]]
Nested = dtypes.List | dtypes.Embedding | dtypes.Map | dtypes.Struct


def _decode(values: Sequence[Any], dtype: Dtype, optional: bool) -> Decoded:
    """Decode a column or the child of one; bad values carry their index into `values`."""
    match dtype:
        case dtypes.Optional(of):
            return _decode(values, of, True)
        case dtypes.Null():
            return cast_flat(values, dtype)
        case dtypes.Between(of=of):
            return _with_forbidden(_decode(values, of, optional), _within(dtype))
        case dtypes.OneOf(of=of, options=options):
            return _with_forbidden(_decode(values, of, optional), _among(options))
        case dtypes.Regex(pattern):
            return _with_forbidden(_decode(values, dtypes.Str(), optional), _matching(pattern))
        case dtypes.List() | dtypes.Embedding() | dtypes.Map() | dtypes.Struct():
            return _nested_or_null(values, dtype, optional)
        case _:
            array, bad = cast_flat(values, dtype)
            if array.null_count and not optional:
                bad = _with_nulls(bad, values, np.flatnonzero(np.asarray(array.is_null())).tolist())
            return array, bad


def _with_nulls(
    bad: Sequence[BadValue], values: Sequence[Any], null_rows: Sequence[int]
) -> list[BadValue]:
    known = {b.row for b in bad}
    nulls = [BadValue(row, values[row], NULL_TEXT) for row in null_rows if row not in known]
    return sorted([*bad, *nulls], key=lambda b: b.row)


def _is_null(value: object) -> bool:
    return value is None or (type(value) is float and math.isnan(value))


def _nested_or_null(values: Sequence[Any], dtype: Nested, optional: bool) -> Decoded:
    """Decode the values that are not null, and put the nulls back between them."""
    kept = [row for row, value in enumerate(values) if not _is_null(value)]
    if len(kept) == len(values):
        return _nested(values, dtype)
    present, bad_children = _nested([values[row] for row in kept], dtype)
    positions = np.full(len(values), -1, dtype=np.int64)
    positions[kept] = np.arange(len(kept))
    array = present.take(pa.array(positions, mask=positions < 0))
    bad = [replace(b, row=kept[b.row]) for b in bad_children]
    return array, bad if optional else _with_nulls(
        bad, values, np.flatnonzero(positions < 0).tolist()
    )


def _nested(values: Sequence[Any], dtype: Nested) -> Decoded:
    match dtype:
        case dtypes.List(of):
            return _list(values, of, "list")
        case dtypes.Embedding(size):
            array, bad = _list(values, dtypes.Float(), "list")
            known = {b.row for b in bad}
            wrong = [
                row for row, value in enumerate(values) if row not in known and len(value) != size
            ]
            reasons = [
                BadValue(r, values[r], f"Expected embedding of size {size}, got {len(values[r])}")
                for r in wrong
            ]
            return array, sorted([*bad, *reasons], key=lambda b: b.row)
        case dtypes.Map(value):
            return _map(values, value)
        case dtypes.Struct():
            return _struct(values, dtype)
        case unreachable:
            assert_never(unreachable)


def _offsets(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return offsets


def _list(values: Sequence[Any], of: Dtype, word: str) -> Decoded:
    wrong = _not_of(values, (list, tuple), word)
    if wrong:
        return pa.nulls(len(values), arrow_type(dtypes.List(of))), wrong
    offsets = _offsets(values)
    child, bad = _decode(list(chain.from_iterable(values)), of, False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), child), _at_parents(bad, offsets)


def _map(values: Sequence[Any], of: Dtype) -> Decoded:
    """Decode maps: an object, or a list of [key, value] pairs."""
    pairs = [list(value.items()) if isinstance(value, dict) else value for value in values]
    wrong = [
        BadValue(
            row,
            values[row],
            f"Expected type dict/list[tuple], got {type(values[row]).__name__} for "
            f"value {show_value(values[row])}",
        )
        for row, value in enumerate(pairs)
        if not isinstance(value, list)
        or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value)
    ]
    layout = arrow_type(dtypes.Map(of))
    if wrong:
        return pa.nulls(len(values), layout), wrong
    offsets = _offsets(pairs)
    entries = list(chain.from_iterable(pairs))
    keys, bad_keys = _decode([key for key, _ in entries], dtypes.Str(), False)
    items, bad_items = _decode([item for _, item in entries], of, False)
    child = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return pa.LargeListArray.from_arrays(pa.array(offsets), child), _at_parents(
        [*bad_keys, *bad_items], offsets
    )


def _struct(values: Sequence[Any], dtype: dtypes.Struct) -> Decoded:
    wrong = _not_of(values, (dict,), "dict")
    if wrong:
        return pa.nulls(len(values), arrow_type(dtype)), wrong
    children: list[pa.Array] = []
    bad: list[BadValue] = []
    for field in dtype.fields:
        child, bad_children = _decode(
            [value.get(field.name) for value in values], field.dtype, False
        )
        children.append(child)
        bad += [
            replace(b, reason=f"field `{field.name}` of `{dtype.name}`: {b.reason}")
            for b in bad_children
        ]
    layout = arrow_type(dtype)
    if not children:
        return pa.array([{} for _ in values], layout), bad
    return pa.StructArray.from_arrays(children, fields=list(layout)), sorted(
        bad, key=lambda b: b.row
    )


def _not_of(values: Sequence[Any], accepted: tuple[type, ...], word: str) -> list[BadValue]:
    if set(map(type, values)) <= set(accepted):
        return []
    return [
        BadValue(
            row,
            value,
            f"Expected type {word}, got {type(value).__name__} for value {show_value(value)}",
        )
        for row, value in enumerate(values)
        if not isinstance(value, accepted)
    ]


def _at_parents(
    bad: Sequence[BadValue], offsets: np.ndarray[Any, np.dtype[np.int64]]
) -> list[BadValue]:
    """Move bad values of children to the row of their parent, keeping the first per parent."""
    rows = np.searchsorted(offsets, [b.row for b in bad], side="right") - 1
    first: dict[int, BadValue] = {}
    for row, b in zip(rows.tolist(), bad, strict=True):
        first.setdefault(row, replace(b, row=row))
    return [first[row] for row in sorted(first)]


# --- checks of restricted types -------------------------------------------------------------------

_RestrictionCheck = Callable[[pa.Array], tuple[pa.Array, Callable[[Any], str]]]


def _with_forbidden(decoded: Decoded, check: _RestrictionCheck) -> Decoded:
    """Add the values that `check` does not allow (it allows null).

    `check` returns a mask of allowed values, and a function from a value to the reason.
    """
    array, bad = decoded
    allowed, reason = check(array)
    if pc.all(allowed).as_py() is not False:
        return decoded
    rows = np.flatnonzero(~np.asarray(allowed.fill_null(True))).tolist()
    forbidden = [BadValue(row, v := array[row].as_py(), reason(v), forbidden=True) for row in rows]
    return array, sorted([*bad, *forbidden], key=lambda b: b.row)


def _within(dtype: dtypes.Between) -> _RestrictionCheck:
    def check(array: pa.Array) -> tuple[pa.Array, Callable[[Any], str]]:
        above = (
            pc.greater(array, dtype.min) if dtype.strict_min else pc.greater_equal(array, dtype.min)
        )
        below = pc.less(array, dtype.max) if dtype.strict_max else pc.less_equal(array, dtype.max)
        bounds = (
            f"{'(' if dtype.strict_min else '['}{dtype.min}, "
            f"{dtype.max}{')' if dtype.strict_max else ']'}"
        )
        return pc.and_(
            above, below
        ), lambda value: f"Value {value} is out of bounds for between type, bounds are {bounds}"

    return check


def _among(options: tuple[int | str, ...]) -> _RestrictionCheck:
    def check(array: pa.Array) -> tuple[pa.Array, Callable[[Any], str]]:
        allowed = pc.or_(pc.is_in(array, pa.array(options, array.type)), array.is_null())
        return allowed, lambda value: f"Value {show_value(value)} is not in options {list(options)}"

    return check


def _matching(pattern: str) -> _RestrictionCheck:
    def check(array: pa.Array) -> tuple[pa.Array, Callable[[Any], str]]:
        matches_prefix = re.compile(pattern).match  # as in the client, not fullmatch
        distinct = array.dictionary_encode()
        matching = pa.array(
            [matches_prefix(text) is not None for text in distinct.dictionary.to_pylist()],
            pa.bool_(),
        )
        return matching.take(
            distinct.indices
        ), lambda value: f"Value {show_value(value)} does not match regex {pattern}"

    return check


# --- error texts ----------------------------------------------------------------------------------


def _error(values: Sequence[Any], dtype: Dtype, column: str, bad: Sequence[BadValue]) -> BadColumn:
    casts = [b for b in bad if not b.forbidden]
    if casts:
        text = (
            f"Failed to cast data logged to column `{column}` of type "
            f"`{_client_type_name(dtype)}`: {_cast_reason(values, dtype, casts)}"
        )
        return UncastableColumn(column, casts, len(values), text)
    text = (
        f"Field `{column}` is of type {_restriction_name(dtype)}, but {_reasons(bad, len(values))}."
    )
    return ForbiddenValues(column, bad, len(values), text)


def _cast_reason(values: Sequence[Any], dtype: Dtype, bad: Sequence[BadValue]) -> str:
    """Return why a cast failed.

    The client's tests check the text of its own library for a numeric column that starts with text
    that cannot be parsed and continues with integers.
    """
    kinds = [type(value) for value in values if value is not None]
    if (
        isinstance(dtypes.base(dtype), dtypes.Int)
        and kinds[:1] == [str]
        and int in kinds
        and isinstance(bad[0].value, str)
    ):
        return "Expected bytes, got a 'int' object"
    return _reasons(bad, len(values))


def _reasons(bad: Sequence[BadValue], rows: int) -> str:
    """Return the first reason with its row; several bad values are counted, the first rows listed.

    A column of one row needs no row number.
    """
    first = bad[0]
    if len(bad) > 1:
        shown = ", ".join(str(b.row) for b in bad[:ROWS_SHOWN]) + (
            ", …" if len(bad) > ROWS_SHOWN else ""
        )
        return f"{first.reason} (rows {shown}; {len(bad)} of {rows})"
    return (
        first.reason
        if rows == 1 or first.reason.endswith(f"at position {first.row}")
        else f"{first.reason} (row {first.row})"
    )


def _client_type_name(dtype: Dtype) -> str:
    """Return the type as the client's own error texts write it."""
    match dtype:
        case dtypes.Optional(of):
            return f"optional({_client_type_name(of)})"
        case dtypes.Str():
            return "string"
        case dtypes.Timestamp():
            return "timestamp"
        case _:
            return dtypes.show(dtype)


def _restriction_name(dtype: Dtype) -> str:
    match dtype:
        case dtypes.Optional(of):
            return _restriction_name(of)
        case dtypes.Between():
            return "between"
        case dtypes.OneOf():
            return "oneof"
        case dtypes.Regex():
            return "regex[str]"
        case _:
            return dtypes.show(dtype)
