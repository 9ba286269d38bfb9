"""Keys: their bytes, their key group, their partition.

Theory. A key is the msgpack array of its fields' physical values. Such bytes are self-delimiting,
so no key is a prefix of another and state keys can append to them. The key group is CRC-32 of the
bytes modulo a number fixed per dataset; a partition owns a contiguous range of groups, so
partitions can be split without rewriting state. Both are pure functions of the bytes: ingest,
engines and query servers must agree on them for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgspec
import polars as pl

KEY_GROUPS = 128
"""Fixed number of key groups per dataset: the upper bound of partitions it can ever have."""

_encode = msgspec.msgpack.Encoder().encode


def physical(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every column in the form msgpack can carry: temporals as integers, decimals as
    text; nested values likewise.
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
    """Is this, or anything in it, a type that msgpack cannot carry?"""
    if isinstance(dtype, pl.List):
        return _is_special(dtype.inner)  # type: ignore[arg-type]  # inner is an instance at run time
    if isinstance(dtype, pl.Struct):
        return any(_is_special(f.dtype) for f in dtype.fields)  # type: ignore[arg-type]  # as above
    return isinstance(dtype, pl.Datetime | pl.Date | pl.Decimal)


def key_bytes(frame: pl.DataFrame, names: Sequence[str]) -> list[bytes]:
    """One key per row of `frame`: the msgpack array of the columns `names`, in that order."""
    return list(map(_encode, physical(frame[list(names)]).rows()))


def key_group(key: bytes, groups: int = KEY_GROUPS) -> int:
    """The key group of a key, in `range(groups)`."""
    return crc32(key) % groups


def partition_of_group(group: int, partitions: int, groups: int = KEY_GROUPS) -> int:
    """The partition that owns a key group: ranges of groups, as even as integers allow."""
    return group * partitions // groups


def partition_of(key: bytes, partitions: int, groups: int = KEY_GROUPS) -> int:
    """The partition of a key, in `range(partitions)`."""
    return crc32(key) % groups * partitions // groups


def state_prefix(tag: bytes, key: bytes) -> bytes:
    """Prefix of everything a job keeps about one key: key group (2 bytes, big-endian), one-byte
    table tag, key.
    """
    assert len(tag) == 1, "a table tag is one byte"
    return (crc32(key) % KEY_GROUPS).to_bytes(2, "big") + tag + key
