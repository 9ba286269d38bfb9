"""Arrow data of user code is refused unless it is exactly what was asked for."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import pyarrow as pa
import pytest

from fennel_core.executors.hostile_arrow import read_batch, read_stream
from fennel_core.executors.internal_errors import ArrowRefused
from tests.fuzz.arrow import SCHEMA, TABLE, mutated, plain_batch

ROWS = TABLE.num_rows
MICROS = pa.timestamp("us", "UTC")


def batch_bytes(table: pa.Table, codec: Literal["lz4", "zstd"] | None = None) -> bytes:
    (batch,) = table.combine_chunks().to_batches()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    (size,) = struct.unpack_from("<i", stream, 4)
    return stream[8 + size : -8]


def stream_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def test_a_batch_of_the_schema_is_read() -> None:
    assert read_batch(plain_batch(), SCHEMA, ROWS).equals(TABLE)
    assert read_batch(plain_batch(TABLE.slice(0, 0)), SCHEMA, 0).num_rows == 0


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_refused(codec: Literal["lz4", "zstd"]) -> None:
    with pytest.raises(ArrowRefused, match="compressed"):
        read_batch(batch_bytes(TABLE, codec), SCHEMA, ROWS)


def test_more_rows_than_expected_are_refused() -> None:
    with pytest.raises(ArrowRefused, match=f"{ROWS} rows, at most {ROWS - 1}"):
        read_batch(plain_batch(), SCHEMA, ROWS - 1)


def test_nulls_without_bytes_are_bounded() -> None:
    column = pa.Array.from_buffers(pa.null(), 1 << 30, [None])
    batch = pa.record_batch([column], names=["n"]).serialize().to_pybytes()
    with pytest.raises(ArrowRefused, match="rows"):
        read_batch(batch, pa.schema([("n", pa.null())]), 100)
    kind = pa.large_list(pa.null())
    offsets = pa.py_buffer(struct.pack("<qq", 0, 1 << 30))
    nested = pa.Array.from_buffers(kind, 1, [None, offsets], children=[column])
    batch = pa.record_batch([nested], names=["n"]).serialize().to_pybytes()
    with pytest.raises(ArrowRefused, match="too long"):
        read_batch(batch, pa.schema([("n", kind)]), 100)


def test_text_offsets_beyond_the_buffer_are_refused() -> None:
    schema = pa.schema([("s", pa.large_string())])
    batch = plain_batch(pa.table({"s": ["sixteen bytes..."]}, schema=schema))
    at = batch.rindex(struct.pack("<qq", 0, 16))
    tampered = batch[:at] + struct.pack("<qq", 0, 5000) + batch[at + 16 :]
    assert read_batch(batch, schema, 1).num_rows == 1
    with pytest.raises(ArrowRefused, match="5000"):
        read_batch(tampered, schema, 1)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (
            pa.array([1 << 60], pa.int64()).view(pa.timestamp("us", "UTC")),
            pa.timestamp("us", "UTC"),
        ),
        (pa.array([1 << 30], pa.int32()).view(pa.date32()), pa.date32()),
        (
            pa.array([[1 << 60]], pa.large_list(pa.int64())).cast(pa.large_list(MICROS)),
            pa.large_list(MICROS),
        ),
    ],
)
def test_times_that_python_cannot_represent_are_refused(
    column: pa.Array, kind: pa.DataType
) -> None:
    batch = pa.record_batch([column], names=["t"]).serialize().to_pybytes()
    with pytest.raises(ArrowRefused, match="years 1 to 9999"):
        read_batch(batch, pa.schema([("t", kind)]), 1)


def test_a_stream_of_plain_types_is_read() -> None:
    keys = pa.table({"k": pa.array(["a", None]), "l": [[1], []], "s": [{"a": 1}, None]})
    assert read_stream(stream_bytes(keys), 2).equals(keys)
    assert read_stream(stream_bytes(keys.slice(0, 0)), 2).num_rows == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"]).dictionary_encode(),
        pa.array([["a"]], pa.list_view(pa.string())),
        pa.array([1], pa.duration("s")),
        pa.array(["a"], pa.string_view()),
        pa.array([{}], pa.struct([])),
        pa.array([[None]], pa.list_(pa.null())),
    ],
)
def test_a_stream_of_other_types_is_refused(column: pa.Array) -> None:
    with pytest.raises(ArrowRefused, match="is not accepted"):
        read_stream(stream_bytes(pa.table({"k": column})), 10)


@pytest.mark.parametrize(
    "read", [lambda p: read_batch(p, SCHEMA, ROWS), lambda p: read_stream(p, 9)]
)
def test_bytes_that_are_no_message_are_refused(read: Callable[[bytes], pa.Table]) -> None:
    for payload in (
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        b"\xff\xff\xff\xff\x00\x10\x00\x00" + b"x" * 4096,
    ):
        with pytest.raises(ArrowRefused):
            read(payload)


def test_damaged_messages_are_refused_or_read_and_show_nothing_of_their_surroundings() -> None:
    """A small part of `make hostile-arrow`, which runs in processes of its own."""
    random_numbers = random.Random(11)  # noqa: S311  # repeatable, and no secret
    for _ in range(300):
        with suppress(ArrowRefused):
            read_batch(mutated(plain_batch(), random_numbers), SCHEMA, ROWS).to_pylist()
