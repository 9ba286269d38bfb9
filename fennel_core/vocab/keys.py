"""Keys: their bytes, key groups and partitions.

A key is the msgpack array of the physical values of its fields. Such bytes are self-delimiting, so
no key is a prefix of another and state keys can append to them. The key group is CRC-32 of the
bytes modulo a number fixed per dataset, and a partition owns a contiguous range of key groups, so
partitions can be split without rewriting state. Both are pure functions of the bytes; ingest,
engines and query servers must always agree on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

KEY_GROUPS = 128
"""Number of key groups per dataset, which never changes: the maximum number of partitions."""

_ARRAY_OF_ONE = 0x91
_FORMS = (
    *((-(1 << 63), 0xD3, 8), (-(1 << 31), 0xD2, 4), (-(1 << 15), 0xD1, 2), (-(1 << 7), 0xD0, 1)),
    *((-32, 0, 1), (1 << 7, 0xCC, 1), (1 << 8, 0xCD, 2), (1 << 16, 0xCE, 4), (1 << 32, 0xCF, 8)),
)
"""The forms of an integer in msgpack: the least one, the tag (0: none) and the number of bytes."""
_FORM_STARTS, _FORM_TAGS, _FORM_WIDTHS = (np.array(column) for column in zip(*_FORMS, strict=True))
_encode = msgspec.msgpack.Encoder().encode


def physical(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with values that msgpack can encode, in nested types too.

    Datetimes and dates become integers, decimals become text.
    """
    special = [
        _physical(pl.col(name), dtype).alias(name)
        for name, dtype in frame.schema.items()
        if _is_special(dtype)
    ]
    return frame.with_columns(special) if special else frame


def _physical(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Datetime | pl.Date):
        return column.to_physical()
    if isinstance(dtype, pl.Decimal):
        return column.cast(pl.String)
    if isinstance(dtype, pl.List) and _is_special(dtype.inner):  # type: ignore[arg-type]  # inner is an instance at run time
        return column.list.eval(_physical(pl.element(), dtype.inner))  # type: ignore[arg-type]  # as above
    if isinstance(dtype, pl.Struct) and _is_special(dtype):
        fields = [
            _physical(column.struct.field(f.name), f.dtype).alias(f.name)  # type: ignore[arg-type]  # as above
            for f in dtype.fields
        ]
        return pl.when(column.is_not_null()).then(pl.struct(fields))
    return column


def _is_special(dtype: pl.DataType) -> bool:
    """Return whether the type is or contains one that msgpack cannot encode."""
    if isinstance(dtype, pl.List):
        return _is_special(dtype.inner)  # type: ignore[arg-type]  # inner is an instance at run time
    if isinstance(dtype, pl.Struct):
        return any(_is_special(f.dtype) for f in dtype.fields)  # type: ignore[arg-type]  # as above
    return isinstance(dtype, pl.Datetime | pl.Date | pl.Decimal)


def key_bytes(frame: pl.DataFrame, names: Sequence[str]) -> list[bytes]:
    """Return one key per row of `frame`: the msgpack array of the columns `names`, in order."""
    return list(map(_encode, physical(frame[list(names)]).rows()))


def key_series(frame: pl.DataFrame, names: Sequence[str]) -> pl.Series:
    """Return the same keys as a column, without a loop over rows for one column of integers."""
    if len(names) == 1 and frame.schema[names[0]].is_signed_integer():
        column = frame[names[0]]
        if not column.null_count():
            return _integer_keys(column.cast(pl.Int64).to_numpy())
    return pl.Series(key_bytes(frame, names), dtype=pl.Binary)


def _integer_keys(values: np.ndarray) -> pl.Series:
    """Return the msgpack arrays of one integer each: a tag for the array, one for the shortest form
    that can hold the integer, and its last bytes, big-endian.
    """
    form = np.searchsorted(_FORM_STARTS, values, side="right") - 1
    widths, tags = _FORM_WIDTHS[form], _FORM_TAGS[form]
    tagged = tags != 0
    ends = np.cumsum(1 + tagged + widths)
    encoded = np.empty(ends[-1] if len(ends) else 0, dtype=np.uint8)
    starts = ends - widths
    encoded[starts - 1 - tagged] = _ARRAY_OF_ONE
    encoded[starts[tagged] - 1] = tags[tagged]
    octets = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    for place in range(8):
        has = widths > place
        encoded[ends[has] - 1 - place] = octets[has, 7 - place]
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int64))
    buffers = [None, offsets, pa.py_buffer(encoded)]
    return pl.Series(pa.Array.from_buffers(pa.large_binary(), len(values), buffers))


def key_group(key: bytes, groups: int = KEY_GROUPS) -> int:
    """Return the key group of a key, in `range(groups)`."""
    return crc32(key) % groups


def partition_of_group(group: int, partitions: int, groups: int = KEY_GROUPS) -> int:
    """Return the partition that owns a key group; partitions own ranges of equal size, +/- 1."""
    return group * partitions // groups


def partition_of(key: bytes, partitions: int, groups: int = KEY_GROUPS) -> int:
    """Return the partition of a key, in `range(partitions)`."""
    return crc32(key) % groups * partitions // groups


def state_prefix(tag: bytes, key: bytes) -> bytes:
    """Return the prefix of all state that a job keeps about one key.

    It is the key group (2 bytes, big-endian), the table tag (1 byte) and the key.
    """
    assert len(tag) == 1, "a table tag is one byte"
    return (crc32(key) % KEY_GROUPS).to_bytes(2, "big") + tag + key
