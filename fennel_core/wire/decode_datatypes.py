"""Decode data types, schemas, durations and instants of the protocol into `vocab`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp as TimestampProto

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import DECIMAL_PRECISION, Dtype, Field
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.schema import Schema
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import schema_pb2

K = TypeVar("K")
V = TypeVar("V")

MICROS_PER_SECOND = 1_000_000


def chosen(message: Message, oneof: str) -> str:
    """Return the member of `oneof` that is set in `message`.

    Raises `UnsupportedValue` if none is set: the client is newer than this platform, or the message
    is incomplete.
    """
    name: str | None = message.WhichOneof(oneof)
    if name is None:
        kind = message.DESCRIPTOR.name
        raise UnsupportedValue(
            f"a `{kind}` message does not set its {oneof}; commit with the "
            "client version this platform supports"
        )
    return name


def unknown(message: Message, part: str) -> UnsupportedValue:
    """Return the error for a member of a oneof that this platform does not support."""
    return UnsupportedValue(
        f"`{part}` of a `{message.DESCRIPTOR.name}` message is not supported; remove "
        "it from the definition"
    )


def known(table: Mapping[K, V], key: K, message: Message, part: str) -> V:
    """Return `table[key]`.

    Raises `UnsupportedValue` for an enum member or operation that this platform does not support
    (enums of the protocol are open).
    """
    if key not in table:
        kind = message.DESCRIPTOR.name
        raise UnsupportedValue(
            f"{part} {key} of a `{kind}` message is unknown; commit with the client "
            "version this platform supports"
        )
    return table[key]


def decode_duration_us(duration: Duration) -> int:
    """Return microseconds.

    The protocol has nanoseconds; the client never sends any, and a fraction of a microsecond is
    dropped.
    """
    return duration.seconds * MICROS_PER_SECOND + duration.nanos // 1000


def decode_instant_us(moment: TimestampProto) -> Micros:
    """Return microseconds since 1970-01-01 UTC."""
    return Micros(moment.seconds * MICROS_PER_SECOND + moment.nanos // 1000)


def decode_dtype(message: schema_pb2.DataType) -> Dtype:
    """Decode one data type.

    Raises `UnsupportedValue` for a type, scale or size that the platform cannot store.
    """
    match chosen(message, "dtype"):
        case "int_type":
            return dtypes.Int()
        case "double_type":
            return dtypes.Float()
        case "string_type":
            return dtypes.Str()
        case "bool_type":
            return dtypes.Bool()
        case "bytes_type":
            return dtypes.Bytes()
        case "timestamp_type":
            return dtypes.Timestamp()
        case "date_type":
            return dtypes.Date()
        case "null_type":
            return dtypes.Null()
        case "decimal_type":
            return _decimal(message.decimal_type.scale)
        case "embedding_type":
            return _embedding(message.embedding_type.embedding_size)
        case "array_type":
            return dtypes.List(decode_dtype(message.array_type.of))
        case "map_type":
            return _map(message.map_type)
        case "optional_type":
            return dtypes.optional(decode_dtype(message.optional_type.of))
        case "between_type":
            return _between(message.between_type)
        case "one_of_type":
            options = tuple(_option(option) for option in message.one_of_type.options)
            return dtypes.OneOf(decode_dtype(message.one_of_type.of), options)
        case "regex_type":
            return _regex(message.regex_type.pattern)
        case "struct_type":
            return decode_struct(message.struct_type)
        case other:
            raise unknown(message, other)


def decode_struct(message: schema_pb2.StructType) -> dtypes.Struct:
    """Decode a struct type; the order of its fields is kept."""
    return dtypes.Struct(message.name, decode_fields(message.fields))


def decode_fields(fields: Iterable[schema_pb2.Field]) -> tuple[Field, ...]:
    """Decode the fields of a schema or struct message, in order."""
    return tuple(Field(field.name, decode_dtype(field.dtype)) for field in fields)


def decode_schema(message: schema_pb2.DSSchema) -> Schema:
    """Decode a dataset's schema; raises `UnsupportedValue` if it has no timestamp field."""
    if message.timestamp in ("", "None"):
        raise UnsupportedValue(
            "the schema has no timestamp field; give the dataset exactly one "
            "`datetime` field that is the timestamp"
        )
    return Schema(
        decode_fields(message.keys.fields), decode_fields(message.values.fields), message.timestamp
    )


def _decimal(scale: int) -> dtypes.Decimal:
    if not 1 <= scale <= DECIMAL_PRECISION:
        raise UnsupportedValue(
            f"Decimal[{scale}] cannot be stored; choose a scale from 1 to {DECIMAL_PRECISION}"
        )
    return dtypes.Decimal(scale)


def _embedding(size: int) -> dtypes.Embedding:
    if size < 1:
        raise UnsupportedValue(f"Embedding[{size}] is empty; give it a size of 1 or more")
    return dtypes.Embedding(size)


def _regex(pattern: str) -> dtypes.Regex:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UnsupportedValue(
            f'regex("{pattern}") is not a regular expression: {error}'
        ) from error
    return dtypes.Regex(pattern)


def _map(message: schema_pb2.MapType) -> dtypes.Map:
    if not isinstance(decode_dtype(message.key), dtypes.Str):
        raise UnsupportedValue("the keys of a Dict must be `str`")
    return dtypes.Map(decode_dtype(message.value))


def _between(message: schema_pb2.Between) -> dtypes.Between:
    return dtypes.Between(
        of=decode_dtype(message.dtype),
        min=_number(message.min),
        max=_number(message.max),
        strict_min=message.strict_min,
        strict_max=message.strict_max,
    )


def _number(value: schema_pb2.Value) -> int | float:
    match chosen(value, "variant"):
        case "int":
            return int(value.int)
        case "float":
            return float(value.float)
        case other:
            raise unknown(value, other)


def _option(value: schema_pb2.Value) -> int | str:
    match chosen(value, "variant"):
        case "int":
            return int(value.int)
        case "string":
            return str(value.string)
        case other:
            raise unknown(value, other)
