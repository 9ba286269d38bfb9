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
    walk = _Walk()
    for each in imports_of(schema, registry):
        _parsed(walk, each.schema, named)
    parsed = _parsed(walk, schema, named)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise SchemaRefused("its rows are no records")
    return AvroRows(parsed, has_floats=walk.has_floats)


def _parsed(walk: _Walk, schema: RegisteredSchema, named: dict[str, Any]) -> Any:
    try:
        plain = walk.schema(json.loads(schema.text), "", ())
        return fastavro.parse_schema(plain, named_schemas=named)
    except (SchemaParseException, UnknownType, RecursionError) as wrong:
        raise SchemaRefused(f"it is not valid ({type(wrong).__name__})") from wrong
    except (ValueError, TypeError, LookupError, AttributeError) as wrong:
        raise SchemaRefused("it is not a valid Avro schema") from wrong


class _Walk:
    """Copies schemas: checks them, and replaces names of Kafka Connect by logical types."""

    def __init__(self) -> None:
        self.has_floats = False
        self._empty: set[str] = set()
        """Named types whose values have no bytes."""

    def schema(self, node: Any, space: str, above: tuple[str, ...]) -> Any:
        """Return the copy of `node` in a namespace, inside of the named types `above`."""
        match node:
            case list():
                return [self.schema(each, space, above) for each in node]
            case str():
                if _full(node, space) in above:
                    raise SchemaRefused(f"type `{node}` contains itself")
                self.has_floats |= node in ("float", "double")
                return node
            case {"type": kind, **rest}:
                own = {str(k): v for k, v in rest.items() if not str(k).startswith("__")}
                return self._typed(kind, own, space, above)
            case _:
                raise SchemaRefused("it is not a valid Avro schema")

    def _typed(self, kind: Any, own: dict[str, Any], space: str, above: tuple[str, ...]) -> Any:
        if not isinstance(kind, str):
            return {"type": self.schema(kind, space, above), **own}
        if kind in NAMED:
            space = str(own.get("namespace") or _space(str(own.get("name", "")), space))
            name = _full(str(own.get("name", "")), space)
            if kind in ("record", "error"):
                inside = (*above, name)
                own["fields"] = [
                    {**field, "type": self.schema(field["type"], space, inside)}
                    for field in own["fields"]
                ]
                if all(self._has_no_bytes(field["type"], space) for field in own["fields"]):
                    raise SchemaRefused("it has records without bytes")
            elif kind == "fixed" and own.get("size") == 0:
                self._empty.add(name)
            return {"type": kind, **own}
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            own[part] = self.schema(own[part], space, above)
            if kind == "array" and self._has_no_bytes(own[part], space):
                raise SchemaRefused("it has arrays of values without bytes")
            return {"type": kind, **own}
        logical = CONNECT.get((kind, str(own.get("connect.name"))))
        if logical is not None:
            own["logicalType"] = logical
        self.schema(kind, space, above)
        return {"type": kind, **own}

    def _has_no_bytes(self, node: Any, space: str) -> bool:
        match node:
            case str():
                return node == "null" or _full(node, space) in self._empty
            case {"type": "fixed", "name": str(name), **rest}:
                own = str(rest.get("namespace") or _space(name, space))
                return _full(name, own) in self._empty
            case {"type": inner}:
                return self._has_no_bytes(inner, space)
            case _:
                return False


def _space(name: str, space: str) -> str:
    return name.rpartition(".")[0] or space


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
