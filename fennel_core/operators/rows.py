"""Rows as stored in a job's state: their ordered state keys and their bytes.

Theory. State orders the versions of one key by `(timestamp, position)`, because an operator reads
either "the latest version at or before ..." or "all versions between ...": one seek or one range
scan. So a state key is `state_prefix(tag, key)`, then the timestamp as eight big-endian bytes with
the sign bit flipped (so that bytes compare as the numbers do), then the position. A stored row is a
msgpack array of physical values (`vocab.keys.physical`), a tombstone is msgpack nil. Encoding and
decoding run as C-level maps over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct as Packer
from zlib import crc32

import msgspec
import numpy as np
import polars as pl

from fennel_core.operators.step import StateReader
from fennel_core.vocab.keys import KEY_GROUPS, physical
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import META

TOMBSTONE = b"\xc0"
"""A stored tombstone: msgpack nil."""
_NO_COLUMNS = b"\x90"
TIME_BYTES = 8
MIN_TIME = -(1 << 63)
MAX_TIME = (1 << 63) - 1

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode
_pack_time = Packer(">Q").pack
_unpack_time = Packer(">Q").unpack_from
_pack_groups = [group.to_bytes(2, "big") for group in range(KEY_GROUPS)]


def time_bytes(ts: int) -> bytes:
    """Return a timestamp in microseconds as bytes that compare as the numbers do."""
    return _pack_time(ts - MIN_TIME)


def time_of(state_key: bytes, prefix_length: int) -> int:
    """Return the timestamp in an ordered state key whose prefix has `prefix_length` bytes."""
    (raw,) = _unpack_time(state_key, prefix_length)
    return int(raw) + MIN_TIME


def prefixes(tag: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """Return `state_prefix(tag, key)` of many keys at once."""
    assert len(tag) == 1, "a table tag is one byte"
    groups = (
        [_pack_groups[crc32(key) % KEY_GROUPS] for key in keys] if len(keys) < 2 else _groups(keys)
    )
    return list(map(b"".join, zip(groups, repeat(tag), keys, strict=False)))


def _groups(keys: Sequence[bytes]) -> list[bytes]:
    codes = pl.Series(list(map(crc32, keys)), dtype=pl.UInt32) % KEY_GROUPS
    return list(map(_pack_groups.__getitem__, codes.to_list()))


def ordered_keys(
    tag: bytes, keys: Sequence[bytes], times: pl.Series, positions: pl.Series
) -> list[bytes]:
    """Return the state keys of versions: one per row of `keys`, `times` (physical microseconds) and
    `positions`.
    """
    unsigned = times.to_numpy().view(np.uint64) ^ np.uint64(-MIN_TIME)
    raw_times = unsigned.astype(">u8").view("V8").tolist()
    return list(
        map(b"".join, zip(prefixes(tag, keys), raw_times, positions.to_list(), strict=True))
    )


def apply_signs(
    reads: StateReader, state_keys: Sequence[bytes], rows: Sequence[bytes], signs: pl.Series
) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """Return the puts and deletes of signed versions, given the state key, the stored row and the
    sign of each.

    A state key holds one version. So `+new` replaces the version that is there, and `-old` deletes
    it only if it is `old`: the order of the two, within or across batches, does not matter.
    """
    if signs.min() == 1:
        return dict(zip(state_keys, rows, strict=True)), frozenset()
    net = pl.DataFrame(
        {"state_key": state_keys, "row": rows, "sign": signs},
        schema_overrides={"state_key": pl.Binary, "row": pl.Binary},
    )
    net = net.group_by("state_key", "row", maintain_order=True).agg(
        pl.col("sign").cast(pl.Int64).sum()
    )
    added, retracted = net.filter(pl.col("sign") > 0), net.filter(pl.col("sign") < 0)
    puts = dict(zip(added["state_key"].to_list(), added["row"].to_list(), strict=True))
    removed = [
        (key, row) for key, row in retracted.select("state_key", "row").rows() if key not in puts
    ]
    stored = reads.get_many([key for key, _ in removed])
    return puts, frozenset(
        key for (key, row), now in zip(removed, stored, strict=True) if now == row
    )


def encode_rows(frame: pl.DataFrame, names: Sequence[str]) -> list[bytes]:
    """Return each row as the msgpack array of the physical values of some columns (of none: the
    empty array).
    """
    if not names:
        return [_NO_COLUMNS] * frame.height
    return list(map(encode, physical(frame[list(names)]).rows()))


def with_tombstones(rows: list[bytes], gone: pl.Series) -> list[bytes]:
    """Return stored rows, with those marked in `gone` replaced by tombstones."""
    if not gone.any():
        return rows
    return (
        pl.select(pl.when(gone).then(pl.lit(TOMBSTONE)).otherwise(pl.Series(rows, dtype=pl.Binary)))
        .to_series()
        .to_list()
    )


def decode_rows(rows: Sequence[bytes], columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return stored rows (no tombstones) as a frame with the given columns, the inverse of
    `encode_rows`. Without columns the frame has no height.
    """
    values = decode(b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows))
    stored = {name: _stored(dtype) for name, dtype in columns.items()}
    return logical(pl.DataFrame(values, schema=stored, orient="row"), columns)


@lru_cache(maxsize=4096)
def frame_columns(schema: Schema) -> dict[str, pl.DataType]:
    """Return the Polars type of every column of a dataset (shared: do not change it)."""
    empty = pl.from_arrow(schema.arrow().empty_table())
    assert isinstance(empty, pl.DataFrame), "an Arrow table is read as a frame"
    return dict(empty.schema)


def columns_of(schema: Schema, names: Sequence[str]) -> dict[str, pl.DataType]:
    """Return the Polars types of some columns of a dataset, in the order of `names`."""
    every = frame_columns(schema)
    return {name: every[name] for name in names}


def output_names(schema: Schema) -> tuple[str, ...]:
    """Return the columns of a batch of versions of a dataset, in order."""
    return (*schema.names, *META)


def logical(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame of physical values with its logical types: integers back to temporals, text
    back to decimals, at any depth. The inverse of `vocab.keys.physical`.
    """
    return frame.select(
        _logical(pl.col(name), dtype).alias(name) for name, dtype in columns.items()
    )


def _logical(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List) and _stored(dtype) != dtype:
        return column.list.eval(_logical(pl.element(), _inner(dtype)))
    if isinstance(dtype, pl.Struct) and _stored(dtype) != dtype:
        fields = [
            _logical(column.struct.field(name), inner).alias(name) for name, inner in _fields(dtype)
        ]
        return pl.when(column.is_not_null()).then(pl.struct(fields))
    return column.cast(dtype) if _stored(dtype) != dtype else column


def _stored(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.Datetime):
        return pl.Int64()
    if isinstance(dtype, pl.Date):
        return pl.Int32()
    if isinstance(dtype, pl.Decimal):
        return pl.String()
    if isinstance(dtype, pl.List):
        return pl.List(_stored(_inner(dtype)))
    if isinstance(dtype, pl.Struct):
        return pl.Struct([pl.Field(name, _stored(inner)) for name, inner in _fields(dtype)])
    return dtype


def _inner(dtype: pl.List) -> pl.DataType:
    inner = dtype.inner
    assert isinstance(inner, pl.DataType), "types of a frame are instances"
    return inner


def _fields(dtype: pl.Struct) -> list[tuple[str, pl.DataType]]:
    out = []
    for field in dtype.fields:
        assert isinstance(field.dtype, pl.DataType), "types of a frame are instances"
        out.append((field.name, field.dtype))
    return out
