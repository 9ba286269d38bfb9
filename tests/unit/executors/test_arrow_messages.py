"""Compressed Arrow streams of user code are refused before anything is expanded."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.executors.arrow_messages import refuse_compressed
from fennel_core.executors.client import ARROW_ERRORS, _table

Codec = Literal["lz4", "zstd"]
PLAIN = pa.table({"a": list(range(1000)), "b": ["x" * 100] * 1000})
DICTIONARY = pa.table({"a": pa.array(["x" * 100, None] * 500).dictionary_encode()})
BATCHES = pa.concat_tables([PLAIN, PLAIN])


def stream(table: pa.Table, codec: Codec | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=700)
    value: bytes = sink.getvalue().to_pybytes()
    return value


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("table", [PLAIN, DICTIONARY, BATCHES])
def test_a_compressed_stream_is_refused(table: pa.Table, codec: Codec) -> None:
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        _table(stream(table, codec))


@pytest.mark.parametrize("table", [PLAIN, DICTIONARY, BATCHES, PLAIN.slice(0, 0), pa.table({})])
def test_an_uncompressed_stream_is_accepted(table: pa.Table) -> None:
    assert _table(stream(table)).equals(table)


def test_compression_of_a_later_batch_is_found() -> None:
    plain, compressed = stream(PLAIN), stream(PLAIN, "zstd")
    schema_bytes = len(stream(PLAIN.slice(0, 0))) - 8
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        refuse_compressed(plain[:-8] + compressed[schema_bytes:])


@given(st.data())
def test_damaged_streams_raise_arrow_errors_only(data: st.DataObject) -> None:
    payload = bytearray(stream(DICTIONARY))
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(*ARROW_ERRORS):
        refuse_compressed(bytes(payload))
