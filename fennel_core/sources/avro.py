"""Decode rows of Avro, each with the schema that it was written with.

A field that a schema does not have is missing in its rows, and is null where other rows of a batch
have it, as in JSON: what a newer schema adds or drops needs no agreement. Values become what JSON
has for them: timestamps, dates, decimals and UUIDs their text, enums their symbol, a union its
value, bytes base64. Numbers of Kafka Connect and Debezium whose meaning is in `connect.name` are
read as the logical types of Avro.

Schemas and messages are the user's. Refused are schemas that need unbounded memory for a short
message (values without bytes, as arrays of nulls) and schemas that contain themselves, whose rows
no dataset has a type for.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from fennel_core.connections.schema_registry import RegisteredSchema, SchemaReader, imports_of
from fennel_core.sources.errors import SchemaRefused

KIND: Final = "AVRO"
CONNECT: Final = {
    ("long", "io.debezium.time.Timestamp"): "timestamp-millis",
    ("long", "io.debezium.time.MicroTimestamp"): "timestamp-micros",
    ("int", "io.debezium.time.Date"): "date",
    ("long", "org.apache.kafka.connect.data.Timestamp"): "timestamp-millis",
    ("int", "org.apache.kafka.connect.data.Date"): "date",
}
"""The logical type of a number of Kafka Connect, by its type and name."""
NAMED: Final = ("record", "error", "enum", "fixed")
PARTS: Final = {"array": "items", "map": "values"}
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


class AvroRows:
    """See `framed.RowDecoder`."""

    def __init__(self, schema: Any, *, has_floats: bool) -> None:
        self._schema, self.has_floats = schema, has_floats

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
        return rows


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
    return AvroRows(parsed, has_floats=check.has_floats)


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
    return {"type": kind, **own}


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
