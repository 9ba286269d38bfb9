"""Read Arrow data that user code may have written.

The reader of pyarrow trusts its input: lengths and offsets are used as they are, compressed buffers
are expanded without limit, and a column of nulls may claim any number of rows without a byte of
data. So a payload passes these checks, in this order, before another library sees it:

1. It is one record batch, and nothing else; its size was bounded by the caller.
2. The metadata of the message (a FlatBuffers table, see `Message.fbs` of Arrow's format) names no
   compression and at most the expected number of rows.
3. It is read with the platform's own schema, never with one that came with it.
4. `validate(full=True)`: every buffer is as long as the rows need, offsets are in order and in
   bounds, text is UTF-8, decimals fit.
5. Nested columns without data (nulls, empty structs) are bounded; times can be represented.

    table = read_batch(payload, schema, most_rows=len(rows))   # raises ArrowRefused
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.executors.internal_errors import ArrowRefused

CONTINUATION: Final = 0xFFFFFFFF
FRAME: Final = struct.Struct("<Ii")
"""The continuation mark and the length of the metadata, before every message."""
MOST_METADATA_BYTES: Final = 1 << 20
MOST_NESTED_VALUES: Final = 1 << 24
"""Values of a nested column that have no bytes of their own."""
MOST_DEPTH: Final = 16
MOST_COLUMNS: Final = 256

MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY_BYTES = 1, 2, 3
"""Indexes of the fields of `Message`."""
BATCH_ROWS, BATCH_COMPRESSION, BATCH_VARIADIC = 0, 3, 4
"""Indexes of the fields of `RecordBatch`."""
SCHEMA, RECORD_BATCH = 1, 3
"""Values of `Message.header_type`."""

FIRST_MICROS: Final = -62_135_596_800_000_000
LAST_MICROS: Final = 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999, which are those of Python's dates."""
_ARROW_ERRORS: Final = (pa.ArrowException, OSError, MemoryError, ValueError, TypeError)


Payload = bytes | memoryview


def read_batch(payload: Payload, schema: pa.Schema, most_rows: int) -> pa.Table:
    """Return the record batch message `payload` as a table; raises `ArrowRefused`."""
    rows = _checked_metadata(payload)
    if rows > most_rows:
        raise ArrowRefused(f"it has {rows} rows, at most {most_rows} are expected")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        batch.validate(full=True)
        if batch.num_rows != rows:
            raise ArrowRefused("its number of rows differs from its message's")
        for column, field in zip(batch.columns, schema, strict=True):
            if _needs_a_check(field.type):
                _check_values(column, field.name)
    except _ARROW_ERRORS as wrong:
        raise ArrowRefused(str(wrong)) from wrong
    return pa.Table.from_batches([batch], schema)


def read_stream(payload: Payload, most_rows: int) -> pa.Table:
    """Return an Arrow stream of at most one batch as a table; raises `ArrowRefused`.

    Its types are those of user code's columns, of which only plain ones are accepted.
    """
    payload = memoryview(payload)
    metadata, end = _frame(payload)
    if _header_type(metadata, _root(metadata)) != SCHEMA:
        raise ArrowRefused("the stream does not begin with a schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(payload[:end])).remove_metadata()
    except _ARROW_ERRORS as wrong:
        raise ArrowRefused(str(wrong)) from wrong
    if len(schema) > MOST_COLUMNS:
        raise ArrowRefused(f"it has {len(schema)} columns, at most {MOST_COLUMNS} are expected")
    for field in schema:
        if not _is_plain(field.type):
            raise ArrowRefused(f"the type {field.type} of `{field.name}` is not accepted")
    rest = payload[end:]
    if len(rest) <= FRAME.size:
        return schema.empty_table()
    metadata, start = _frame(rest)
    size = _field_int64(metadata, _root(metadata), MESSAGE_BODY_BYTES)
    return read_batch(rest[: start + max(0, size)], schema, most_rows)


def _checked_metadata(payload: Payload) -> int:
    """Return the number of rows that the message claims."""
    metadata, start = _frame(payload)
    try:
        message = _root(metadata)
        if _header_type(metadata, message) != RECORD_BATCH:
            raise ArrowRefused("it is not a record batch")
        if _field_int64(metadata, message, MESSAGE_BODY_BYTES) != len(payload) - start:
            raise ArrowRefused("the length of its body is wrong")
        header = _field(metadata, message, MESSAGE_HEADER)
        if header is None:
            raise ArrowRefused("it has no header")
        batch = _follow(metadata, header)
        if _field(metadata, batch, BATCH_COMPRESSION) is not None:
            raise ArrowRefused("it is compressed")
        if _field(metadata, batch, BATCH_VARIADIC) is not None:
            raise ArrowRefused("it has buffers of a variable number")
        rows = _field_int64(metadata, batch, BATCH_ROWS)
    except struct.error as wrong:
        raise ArrowRefused(f"its metadata is malformed: {wrong}") from wrong
    if rows < 0:
        raise ArrowRefused("its number of rows is negative")
    return rows


def _frame(payload: Payload) -> tuple[Payload, int]:
    """Return the metadata of the first message, and the place where it ends."""
    if len(payload) < FRAME.size:
        raise ArrowRefused("it is too short")
    mark, size = FRAME.unpack_from(payload)
    if mark != CONTINUATION or not 0 < size <= min(MOST_METADATA_BYTES, len(payload) - FRAME.size):
        raise ArrowRefused("it does not begin with a message")
    end = FRAME.size + size
    return payload[FRAME.size : end], end


def _root(metadata: Payload) -> int:
    try:
        return _follow(metadata, 0)
    except struct.error as wrong:
        raise ArrowRefused(f"its metadata is malformed: {wrong}") from wrong


def _header_type(metadata: Payload, message: int) -> int:
    try:
        place = _field(metadata, message, MESSAGE_HEADER_TYPE)
        return 0 if place is None else metadata[place]
    except (struct.error, IndexError) as wrong:
        raise ArrowRefused(f"its metadata is malformed: {wrong}") from wrong


def _field_int64(metadata: Payload, table: int, index: int) -> int:
    try:
        place = _field(metadata, table, index)
        return 0 if place is None else int(struct.unpack_from("<q", metadata, place)[0])
    except struct.error as wrong:
        raise ArrowRefused(f"its metadata is malformed: {wrong}") from wrong


def _field(metadata: Payload, table: int, index: int) -> int | None:
    """Return the place of field `index` of a table, None if it is absent; raises struct.error."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("a table begins before the message")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * index
    if slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + slot)
    return table + int(offset) if offset else None


def _follow(metadata: Payload, place: int) -> int:
    (offset,) = struct.unpack_from("<I", metadata, place)
    return place + int(offset)


def _is_plain(kind: pa.DataType, depth: int = 0) -> bool:
    """Return whether values of a type can be keys of a lookup."""
    if isinstance(kind, pa.BaseExtensionType) or depth > MOST_DEPTH:
        return False
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return _is_plain(kind.value_type, depth + 1)
    if pa.types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return bool(inner) and all(_is_plain(each, depth + 1) for each in inner)
    if pa.types.is_null(kind):
        return depth == 0
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal128(kind)
    )


@lru_cache(maxsize=4096)
def _needs_a_check(kind: pa.DataType) -> bool:
    """Return whether valid data of a type can still be too large, or not be represented."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return bool(pa.types.is_null(kind.value_type)) or _needs_a_check(kind.value_type)
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(
            _needs_a_check(kind.field(i).type) for i in range(kind.num_fields)
        )
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _check_values(array: pa.Array, name: str) -> None:
    kind = array.type
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        if len(array.values) > MOST_NESTED_VALUES:
            raise ArrowRefused(f"a list of `{name}` is too long")
        _check_values(array.flatten(), name)
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            _check_values(part, name)
    elif pa.types.is_timestamp(kind):
        # The whole range of nanoseconds can be represented.
        if (micros := {"s": 1_000_000, "ms": 1_000, "us": 1}.get(kind.unit)) is not None:
            _check_range(
                array.view(pa.int64()), FIRST_MICROS // micros, LAST_MICROS // micros, name
            )
    elif pa.types.is_date32(kind):
        _check_range(array.view(pa.int32()), FIRST_DAY, LAST_DAY, name)


def _check_range(array: pa.Array, first: int, last: int, name: str) -> None:
    bounds = pc.min_max(array)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < first or most > last):
        raise ArrowRefused(f"a time of `{name}` is not in the years 1 to 9999")
