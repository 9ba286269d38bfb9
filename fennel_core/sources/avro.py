"""Decode rows of Avro, each with the schema that it was written with.

A field that a schema does not have is missing in its rows, and is null where other rows of a batch
have it, as in JSON: what a newer schema adds or drops needs no agreement. Values become what JSON
has for them: timestamps, dates, decimals and UUIDs their text, enums their symbol, a union its
value, bytes base64. Numbers of Kafka Connect and Debezium whose meaning is in `connect.name` are
read as the logical types of Avro. A decimal has all digits of its message, whatever precision the
schema has: producers do not all check theirs, and Kafka Connect writes scales that are larger.

Schemas and messages are the user's. Refused are schemas that need unbounded memory for a short
message (values without bytes, as arrays of nulls) and schemas that contain themselves, whose rows
no dataset has a type for.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import fastavro
import numpy as np
from fastavro.schema import SchemaParseException, UnknownType

from fennel_core.connections.schema_registry import RegisteredSchema, SchemaReader, imports_of
from fennel_core.sources.errors import SchemaRefused
from fennel_core.sources.times import EPOCH, MICROS, texts_of_days, texts_of_times

KIND: Final = "AVRO"
CONNECT: Final = {
    ("long", "io.debezium.time.Timestamp"): "timestamp-millis",
    ("long", "io.debezium.time.MicroTimestamp"): "timestamp-micros",
    ("long", "io.debezium.time.NanoTimestamp"): "timestamp-nanos",
    ("int", "io.debezium.time.Date"): "date",
    ("long", "org.apache.kafka.connect.data.Timestamp"): "timestamp-millis",
    ("int", "org.apache.kafka.connect.data.Date"): "date",
}
"""The logical type of a number of Kafka Connect, by its type and name."""
DECIMAL: Final = "fennel-decimal"
"""The name under which the library reads decimals without their precision."""
DECIMAL_BYTES: Final = 1024
"""Longest decimal: time and memory of its digits grow with the square, and no type has so many."""
NAMED: Final = ("record", "error", "enum", "fixed")
PARTS: Final = {"array": "items", "map": "values"}
WITHOUT_FLOATS: Final = ("null", "boolean", "int", "long", "bytes", "string")
UNREADABLE: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)
"""What a message that does not fit its schema raises."""
_FAILED: Final = "the message does not fit its Avro schema"


def _texts_of_nanos(values: Sequence[int]) -> list[str | None]:
    return texts_of_times(np.array(values, dtype=np.int64) // 1_000, units_per_s=MICROS)


def _time_of_nanos(value: int, *_: object) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=value // 1_000)


fastavro.read.LOGICAL_READERS["long-timestamp-nanos"] = _time_of_nanos

CONVERTED: Final[Mapping[str, Callable[[Sequence[int]], list[str | None]]]] = {
    "timestamp-millis": partial(texts_of_times, units_per_s=1_000),
    "timestamp-micros": partial(texts_of_times, units_per_s=1_000_000),
    "timestamp-nanos": _texts_of_nanos,
    "date": texts_of_days,
}
"""Logical types that are converted many at once; the library takes a time for each value."""


def _decimal(value: bytes, schema: Mapping[str, Any], _: object = None) -> decimal.Decimal:
    """Return a decimal; raises `ValueError` for one that is too long."""
    if len(value) > DECIMAL_BYTES:
        raise ValueError(f"the decimal has more than {DECIMAL_BYTES} bytes")
    sign, digits, _exponent = decimal.Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
    return decimal.Decimal((sign, digits, -schema.get("scale", 0)))


for _kind in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_kind}-{DECIMAL}"] = _decimal


class AvroRows:
    """See `framed.RowDecoder`. `times`: fields that are read as numbers, and their logical type."""

    def __init__(
        self, schema: Any, *, float_fields: Collection[str], times: Mapping[str, str]
    ) -> None:
        self._schema, self.float_fields, self._times = schema, float_fields, times

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Return a row of each body, or why there is none."""
        read, schema = fastavro.schemaless_reader, self._schema
        rows: list[Any] = []
        for body in bodies:
            stream = io.BytesIO(body)
            try:
                row = read(stream, schema, None)
            except UNREADABLE:
                rows.append(_FAILED)
                continue
            # What is left over says that it was written with another schema.
            rows.append(_FAILED if stream.read(1) else row)
        for name, logical in self._times.items():
            self._convert(rows, name, logical)
        return rows

    def _convert(self, rows: list[Any], name: str, logical: str) -> None:
        """Replace the numbers of a field by times; a row whose time is out of range has none."""
        places = [
            place
            for place, row in enumerate(rows)
            if isinstance(row, dict) and row[name] is not None
        ]
        texts = CONVERTED[logical]([rows[place][name] for place in places])
        for place, text in zip(places, texts, strict=True):
            if text is None:
                rows[place] = _FAILED
            else:
                rows[place][name] = text


def compile_avro(schema: RegisteredSchema, registry: SchemaReader) -> AvroRows:
    """Return the decoder of a schema; see `framed.CompileSchema`."""
    if schema.type != KIND:
        raise SchemaRefused(f"it is of type {schema.type}, and the source has the format Avro")
    named: dict[str, Any] = {}
    check = _Check()
    for each in imports_of(schema, registry):
        _parsed(check, each.schema, named)
    parsed = _parsed(check, schema, named)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise SchemaRefused("its rows are no records")
    return _rows_of(parsed, check)


def _rows_of(parsed: dict[str, Any], check: _Check) -> AvroRows:
    """Return the decoder of a record. Times of its own fields are converted as columns."""
    times: dict[str, str] = {}
    fields = []
    for field in parsed["fields"]:
        kind, logical = _as_number(field["type"])
        if logical is not None:
            times[field["name"]] = logical
        fields.append(field | {"type": kind})
    float_fields = [
        field["name"] for field in fields if check.has_floats and _may_have_floats(field["type"])
    ]
    return AvroRows(parsed | {"fields": fields}, float_fields=float_fields, times=times)


def _may_have_floats(node: Any) -> bool:
    match node:
        case list():
            return any(map(_may_have_floats, node))
        case str():
            return node not in WITHOUT_FLOATS  # or the name of a type
        case {"type": "array" | "map" as kind, **rest}:
            return _may_have_floats(rest[PARTS[kind]])
        case {"type": "enum" | "fixed"}:
            return False
        case {"type": "record" | "error", "fields": fields}:
            return any(_may_have_floats(field["type"]) for field in fields)
        case {"type": inner}:
            return _may_have_floats(inner)
        case _:
            return True


def _as_number(node: Any) -> tuple[Any, str | None]:
    """Return the type without its logical type, if that is a time, and what it was."""
    match node:
        case {"type": "long" | "int" as kind, "logicalType": str(logical)}:
            of_kind = "int" if logical == "date" else "long"
            return (kind, logical) if logical in CONVERTED and kind == of_kind else (node, None)
        case ["null", inner] | [inner, "null"]:
            number, found = _as_number(inner)
            return [number if each is inner else each for each in node], found
        case _:
            return node, None


def _parsed(check: _Check, schema: RegisteredSchema, named: dict[str, Any]) -> Any:
    try:
        parsed = fastavro.parse_schema(_copied(json.loads(schema.text)), named_schemas=named)
        check.type(parsed, ())
    except (SchemaParseException, UnknownType, RecursionError) as wrong:
        raise SchemaRefused(f"it is not valid ({type(wrong).__name__})") from wrong
    except (ValueError, TypeError, LookupError, AttributeError) as wrong:
        raise SchemaRefused("it is not a valid Avro schema") from wrong
    return parsed


def _copied(node: Any) -> Any:
    """Return a copy with logical types for names of Kafka Connect, without the library's marks."""
    match node:
        case list():
            return [_copied(each) for each in node]
        case str():
            return node
        case {"type": kind, **rest}:
            own: dict[str, Any] = {
                str(k): v for k, v in rest.items() if not str(k).startswith("__")
            }
        case _:
            raise SchemaRefused("it is not a valid Avro schema")
    if not isinstance(kind, str):
        return {"type": _copied(kind), **own}
    if kind in ("record", "error"):
        own["fields"] = [{**field, "type": _copied(field["type"])} for field in own["fields"]]
    elif kind in PARTS:
        own[PARTS[kind]] = _copied(own[PARTS[kind]])
    logical = CONNECT.get((kind, str(own.get("connect.name"))))
    if logical is not None:
        own["logicalType"] = logical
    if own.get("logicalType") == "decimal" and _is_scale(own.get("scale", 0)):
        own["logicalType"] = DECIMAL
    return {"type": kind, **own}


def _is_scale(scale: Any) -> bool:
    return type(scale) is int and scale >= 0


class _Check:
    """Checks schemas as the library has parsed them: all names are full ones."""

    def __init__(self) -> None:
        self.has_floats = False
        self._empty: set[str] = set()
        """Named types whose values have no bytes."""

    def type(self, node: Any, above: tuple[str, ...]) -> None:
        """Return if `node` can be read inside of the named types `above`; else refuse it."""
        match node:
            case list():
                for each in node:
                    self.type(each, above)
            case str():
                if node in above:
                    raise SchemaRefused(f"type `{node}` contains itself")
                self.has_floats |= node in ("float", "double")
            case {"type": "record" | "error", "name": str(name), "fields": list(fields)}:
                for field in fields:
                    self.type(field["type"], (*above, name))
                if all(self._has_no_bytes(field["type"]) for field in fields):
                    raise SchemaRefused("it has records without bytes")
            case {"type": "fixed", "name": str(name), "size": int(size)} if size >= 0:
                if size == 0:
                    self._empty.add(name)
            case {"type": "enum"}:
                pass
            case {"type": "array", "items": items}:
                self.type(items, above)
                if self._has_no_bytes(items):
                    raise SchemaRefused("it has arrays of values without bytes")
            case {"type": "map", "values": values}:
                self.type(values, above)
            case {"type": inner} if inner not in NAMED:
                self.type(inner, above)
            case _:
                raise SchemaRefused("it is not a valid Avro schema")

    def _has_no_bytes(self, node: Any) -> bool:
        match node:
            case str():
                return node == "null" or node in self._empty
            case {"type": "fixed", "name": str(name)}:
                return name in self._empty
            case {"type": inner}:
                return self._has_no_bytes(inner)
            case _:
                return False
