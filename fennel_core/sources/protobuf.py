"""Decode rows of Protobuf with the schema text of a registry.

    after Confluent's header: zigzag varints, the count of indexes and the indexes of the message in
    the file, from the outside in; a single 0 is short for the first message. Then the message.

The text is compiled by protoc in a process of its own, because it is the user's. Messages of one
kind are decoded together and converted field by field: names are those of the text; a field with
presence (a message, a `oneof`, `optional`) is null if it is not set, and others have their default
value, as Protobuf does not say whether they were set. Enums become their name, bytes base64,
timestamps and durations text, wrappers their value.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, Final

import grpc_tools
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from fennel_core.connections.schema_registry import (
    RegisteredSchema,
    SchemaReader,
    SchemaRegistryUnusable,
    imports_of,
)
from fennel_core.sources.errors import SchemaRefused

KIND: Final = "PROTOBUF"
COMPILE_S: Final = 20.0
REASON_CHARS: Final = 200
MAIN: Final = "fennel_registered_schema.proto"
PATH: Final = re.compile(r"[\w\-]+(?:[./][\w\-]+)*\.proto")
"""The path of an import: it stays inside of its folder."""
LOCATED: Final = re.compile(r"(schema|[\w./\-]+\.proto):")
"""An error of protoc: the file, often the line and column, and what is wrong."""
INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"
"""The files `google/protobuf/*.proto`."""
INDEXES: Final = 32
"""How deep a message may be nested in the text of a schema."""
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
OUT_OF_RANGE: Final = "a time out of range"
_FAILED: Final = "the message does not fit its Protobuf schema"
_NO_INDEX: Final = "the message names no message type of its Protobuf schema"
_FLOATS: Final = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


class ProtobufRows:
    """See `framed.RowDecoder`."""

    def __init__(self, file: Any) -> None:
        self._top = list(file.message_types_by_name.values())
        self._known: dict[tuple[int, ...], Descriptor | None] = {}
        self.has_floats = True
        """Fields of `google.protobuf.Value` are floats, too: it costs little to look."""

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Return a row of each body, or why there is none."""
        rows: list[Any] = [_NO_INDEX] * len(bodies)
        groups: dict[tuple[int, ...], tuple[list[int], list[bytes]]] = {}
        for place, body in enumerate(bodies):
            found = _indexes(body)
            if found is not None:
                indexes, start = found
                places, rest = groups.setdefault(indexes, ([], []))
                places.append(place)
                rest.append(body[start:])
        for indexes, (places, rest) in groups.items():
            descriptor = self.message(indexes)
            if descriptor is None:
                continue
            parse = GetMessageClass(descriptor).FromString
            messages, parsed = [], []
            for place, body in zip(places, rest, strict=True):
                try:
                    messages.append(parse(body))
                except DecodeError:
                    rows[place] = _FAILED
                else:
                    parsed.append(place)
            for place, row in zip(parsed, _values(descriptor, messages), strict=True):
                rows[place] = row if isinstance(row, dict) else _FAILED
        return rows

    def message(self, indexes: tuple[int, ...]) -> Descriptor | None:
        """Return the type of the message at `indexes`; None if the file has none there."""
        if indexes not in self._known:
            types, found = self._top, None
            for index in indexes:
                if index >= len(types):
                    return None
                found = types[index]
                types = list(found.nested_types)
            self._known[indexes] = found
        return self._known[indexes]


def _indexes(body: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes of the message type, and where the message begins."""
    if body[:1] == b"\0":
        return (0,), 1
    count, at = _varint(body, 0)
    if not 0 < count <= INDEXES:
        return None
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        if index < 0:
            return None
        indexes.append(index)
    return tuple(indexes), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at `at`, -1 if there is none, and where it ends."""
    number = shift = 0
    while at < len(body) and shift < 35:
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1 if number & 1 == 0 else -1, at
    return -1, at


def compile_protobuf(schema: RegisteredSchema, registry: SchemaReader) -> ProtobufRows:
    """Return the decoder of a schema; see `framed.CompileSchema`."""
    if schema.type != KIND:
        raise SchemaRefused(f"it is of type {schema.type}, and the source has the format Protobuf")
    texts = {each.name: each.schema.text for each in imports_of(schema, registry)}
    for name in texts:
        if PATH.fullmatch(name) is None or name == MAIN:
            raise SchemaRefused("the name of an import is not the path of a .proto file")
    files = _compiled(texts | {MAIN: schema.text})
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return ProtobufRows(pool.FindFileByName(MAIN))
    except (TypeError, KeyError) as wrong:
        raise SchemaRefused("it is not a valid Protobuf schema") from wrong


def _compiled(texts: dict[str, str]) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of `MAIN` and its imports, each behind those that it imports."""
    with tempfile.TemporaryDirectory(prefix="fennel-proto-") as folder:
        root, made = Path(folder) / "in", Path(folder) / "made"
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [
            *(sys.executable, "-I", "-m", "grpc_tools.protoc", f"--proto_path={root}"),
            *(f"--proto_path={INCLUDED}", f"--descriptor_set_out={made}", "--include_imports"),
            MAIN,
        ]
        try:
            done = subprocess.run(  # noqa: S603 - our own program; names are checked
                command,
                capture_output=True,
                timeout=COMPILE_S,
                check=False,
                env={"PATH": os.defpath},
            )
        except subprocess.TimeoutExpired as late:
            raise SchemaRegistryUnusable(
                f"a Protobuf schema was not compiled within {COMPILE_S:.0f} s; it is tried again"
            ) from late
        if done.returncode != 0:
            raise SchemaRefused(f"protoc: {_said(done.stderr, root)}")
        return descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())


def _said(errors: bytes, root: Path) -> str:
    """Return the first error of protoc, without warnings and our folder."""
    text = errors.decode(errors="replace").replace(f"{root}/", "").replace(MAIN, "schema")
    found = [line for line in text.splitlines() if LOCATED.match(line)]
    return found[0][:REASON_CHARS] if found else "it cannot be compiled"


# --- values, one field of all messages at a time --------------------------------------------------


def _values(descriptor: Descriptor, messages: Sequence[Any]) -> list[Any]:
    """Return messages of one type as JSON values, in which bytes and times may stay objects."""
    if not messages:
        return []  # ends the recursion of types that contain themselves
    special = _WELL_KNOWN.get(descriptor.full_name)
    if special is not None:
        return [special(message) for message in messages]
    fields = list(descriptor.fields)
    if not fields:
        return [{} for _ in messages]
    names = [field.name for field in fields]
    columns = [_field(field, messages) for field in fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _field(field: FieldDescriptor, messages: Sequence[Any]) -> list[Any]:
    get = attrgetter(field.name) if field.name.isidentifier() else None
    assert get is not None, "protoc accepts identifiers only"
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _maps(field.message_type, list(map(get, messages)))
    if field.is_repeated:
        lists = list(map(get, messages))
        return _split(_leaves(field, list(chain.from_iterable(lists))), list(map(len, lists)))
    if not field.has_presence:
        return _leaves(field, list(map(get, messages)))
    present = list(map(methodcaller("HasField", field.name), messages))
    values = iter(
        _leaves(field, [get(m) for m, is_set in zip(messages, present, strict=True) if is_set])
    )
    return [next(values) if is_set else None for is_set in present]


def _leaves(field: FieldDescriptor, values: list[Any]) -> list[Any]:
    if field.message_type is not None:
        return _values(field.message_type, values)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return [names.get(value, value) for value in values]
    return values


def _maps(entry: Descriptor, maps: list[Any]) -> list[Any]:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    keys = [_key(each) for one in maps for each in one]
    values = _leaves(value, [one[each] for one in maps for each in one])
    del key
    pairs = _split(list(zip(keys, values, strict=True)), list(map(len, maps)))
    return [dict(each) for each in pairs]


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _split(values: list[Any], lengths: list[int]) -> list[Any]:
    found, start = [], 0
    for length in lengths:
        found.append(values[start : start + length])
        start += length
    return found


def _timestamp(message: Any) -> Any:
    try:
        return EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        return OUT_OF_RANGE


def _json_format(message: Any) -> Any:
    try:
        return json_format.MessageToDict(message)
    except (json_format.SerializeToJsonError, ValueError, OverflowError):
        return OUT_OF_RANGE


_WRAPPERS: Final = (
    *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
)
_WELL_KNOWN: Final[dict[str, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": _timestamp,
    **{
        f"google.protobuf.{name}": _json_format
        for name in ("Duration", "Struct", "Value", "ListValue")
    },
    **{f"google.protobuf.{name}Value": attrgetter("value") for name in _WRAPPERS},
}
