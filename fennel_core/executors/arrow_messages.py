"""Refuse compressed Arrow streams: a small one may expand to more memory than a process has.

The reader of pyarrow expands buffers while it reads and has no limit, and does not report whether
they are compressed. That is in the metadata of each message, a FlatBuffers table, of which this
module reads the one field (`RecordBatch.compression`, see `Message.fbs` of Arrow's format). The
executors write uncompressed streams, so only hostile code sends others.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

HEADER: Final = 2
"""Index of `Message.header`."""
DICTIONARY_DATA: Final = 1
"""Index of `DictionaryBatch.data`."""
COMPRESSION: Final = 3
"""Index of `RecordBatch.compression`."""


def refuse_compressed(payload: bytes) -> None:
    """Raise `pa.ArrowInvalid` if a batch or dictionary of the stream is compressed."""
    try:
        for message in pa.ipc.MessageReader.open_stream(payload):
            if _is_compressed(message):
                raise pa.ArrowInvalid("the stream is compressed")
    except struct.error as wrong:
        raise pa.ArrowInvalid(f"the metadata of a message is malformed: {wrong}") from wrong


def _is_compressed(message: pa.ipc.Message) -> bool:
    if message.type not in {"record batch", "dictionary"}:
        return False
    metadata = message.metadata.to_pybytes()
    table = _child(metadata, _follow(metadata, 0), HEADER)
    if table is not None and message.type == "dictionary":
        table = _child(metadata, table, DICTIONARY_DATA)
    return table is not None and _child(metadata, table, COMPRESSION) is not None


def _child(metadata: bytes, table: int, index: int) -> int | None:
    """Return the place of the table that field `index` refers to, None if it is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("a table begins before the message")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * index
    if slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + slot)
    return _follow(metadata, table + offset) if offset else None


def _follow(metadata: bytes, place: int) -> int:
    (offset,) = struct.unpack_from("<I", metadata, place)
    return place + int(offset)
