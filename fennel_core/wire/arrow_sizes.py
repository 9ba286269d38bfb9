"""How many bytes the rows of Arrow columns have, before anything is made of them.

An Arrow table may be far smaller than what it says: a dictionary of one long text, or a view that
many rows share, is stored once. So the bytes are counted row by row from lengths and offsets,
without decoding a value. The count is a lower bound of the row's JSON text: a value without a
length counts as one byte, and quotes, commas and escapes do not count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]


def decoded_sizes(rows: pa.RecordBatch) -> Sizes:
    """Return the bytes of each row. The structure of `rows` must be valid (`validate()`)."""
    total = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        total += _sizes(column)
    return total


def _sizes(array: pa.Array) -> Sizes:
    """Return the bytes of each value; what is stored for a null is no part of it."""
    sizes = _stored_sizes(array)
    return np.where(np.asarray(array.is_valid()), sizes, 1) if array.null_count else sizes


def _stored_sizes(array: pa.Array) -> Sizes:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if pa.types.is_dictionary(kind):
        if not len(array.dictionary):
            return _one(array)
        return _sizes(array.dictionary)[_numbers(array.indices)]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _view_lengths(array) + 1
    if _has_lengths(kind):
        return _numbers(pc.binary_length(array)) + 1
    if pa.types.is_struct(kind):
        total = _one(array)
        for child in array.flatten():
            total += _sizes(child)
        return total
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        children = _sizes(array.values.slice(array.offset * size, len(array) * size))
        at = np.arange(len(array) + 1, dtype=np.int64) * size
        return _between(children, at[:-1], at[1:])
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        first = _numbers(array.offsets)
        return _between(_sizes(array.values), first, first + _numbers(array.sizes))
    if pa.types.is_map(kind):
        at = _numbers(array.offsets)
        return _between(_sizes(array.keys) + _sizes(array.items), at[:-1], at[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        at = _numbers(array.offsets)
        return _between(_sizes(array.values), at[:-1], at[1:])
    return _one(array)


def _one(array: pa.Array) -> Sizes:
    return np.ones(len(array), dtype=np.int64)


def _numbers(array: pa.Array) -> Sizes:
    return np.asarray(array.cast(pa.int64()).fill_null(0), dtype=np.int64)


def _has_lengths(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ) and not pa.types.is_decimal(kind)


def _view_lengths(array: pa.Array) -> Sizes:
    """Return the lengths of text or bytes in views: the first four bytes of the 16 of each."""
    views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)
    return views[array.offset : array.offset + len(array), 0].astype(np.int64)


def _between(children: Sizes, first: Sizes, last: Sizes) -> Sizes:
    """Return the sums of the children from `first` up to `last`, and one byte for each row."""
    before = np.concatenate(([0], np.cumsum(children)))
    return before[last] - before[first] + 1
