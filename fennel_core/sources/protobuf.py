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

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain, compress
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, Final

import grpc_tools
import numpy as np
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
from fennel_core.sources.times import MICROS, texts_of_times

KIND: Final = "PROTOBUF"
COMPILE_S: Final = 20.0
COMPILE_BYTES: Final = 1 << 30
"""Address space of the compiler."""
LIMITED: Final = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({COMPILE_BYTES}, {COMPILE_BYTES}))
resource.setrlimit(resource.RLIMIT_CPU, ({COMPILE_S:.0f}, {COMPILE_S:.0f}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[1:]]))
"""
"""A program that is protoc with limits: the schema is the user's."""
PATH_CHARS: Final = 200
VALUES: Final = 4_000_000
"""Values that messages may become: 8 MiB of JSON have no more."""
REASON_CHARS: Final = 200
MAIN: Final = "fennel_registered_schema.proto"
PATH: Final = re.compile(r"[\w\-]+(?:[./][\w\-]+)*\.proto")
"""The path of an import: it stays inside of its folder."""
LOCATED: Final = re.compile(r"(schema|[\w./\-]+\.proto):(?!.*: warning: )")
"""An error of protoc: the file, often the line and column, and what is wrong."""
AT_FAULT: Final = re.compile(r"^(schema|[\w./\-]+\.proto):\d+:\d+: (?!warning: )", re.MULTILINE)
"""An error in a line of a schema. Without one, protoc has failed and not the schema."""
INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"
"""The files `google/protobuf/*.proto`."""
INDEXES: Final = 32
"""How deep a message may be nested in the text of a schema."""
SECONDS: Final = 10**12
"""More than there are until the year 9999."""
_FAILED: Final = "the message does not fit its Protobuf schema"
_NO_JSON: Final = (
    "the message has a value that JSON has no form for (a time out of range, a number of a Struct "
    "that is none), too many values, or a type that is not Google's under its name"
)
_NO_INDEX: Final = "the message names no message type of its Protobuf schema"
_FLOATS: Final = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WITHOUT_FLOATS: Final = (_TIMESTAMP, "google.protobuf.Duration")


class ProtobufRows:
    """See `framed.RowDecoder`."""

    def __init__(self, file: Any) -> None:
        self._top = list(file.message_types_by_name.values())
        self._known: dict[tuple[int, ...], Descriptor | None] = {}
        self.float_fields: set[str] = set()
        """Of all messages that are known by now."""

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Return a row of each body, or why there is none."""
        rows: list[Any] = [_NO_INDEX] * len(bodies)
        groups: dict[tuple[int, ...], tuple[list[int], list[bytes]]] = {}
        first = groups[(0,)] = ([], [])
        for place, body in enumerate(bodies):
            if body[:1] == b"\0":
                first[0].append(place)
                first[1].append(body[1:])
            elif (found := _indexes(body)) is not None:
                indexes, start = found
                places, rest = groups.setdefault(indexes, ([], []))
                places.append(place)
                rest.append(body[start:])
        for indexes, (places, rest) in groups.items():
            descriptor = self.message(indexes)
            if descriptor is None:
                continue
            parse = GetMessageClass(descriptor).FromString
            try:
                parsed, messages = places, list(map(parse, rest))
            except DecodeError:
                parsed, messages = _parsed_one_by_one(parse, places, rest)
                for place in set(places).difference(parsed):
                    rows[place] = _FAILED
            for place, row in zip(parsed, _rows(descriptor, messages), strict=True):
                rows[place] = row if isinstance(row, dict) else _NO_JSON
        return rows

    def message(self, indexes: tuple[int, ...]) -> Descriptor | None:
        """Return the type of the message at `indexes`; None if the file has none there."""
        if indexes not in self._known:
            types, found = self._top, None
            for index in indexes:
                if index >= len(types):
                    return None
                found = types[index]
                # Entries of maps are messages of the descriptor only, not of the text.
                types = [each for each in found.nested_types if not _is_entry(each)]
            self._known[indexes] = found
            self.float_fields |= set() if found is None else _float_fields(found)
        return self._known[indexes]


def _parsed_one_by_one(
    parse: Callable[[bytes], Any], places: Sequence[int], bodies: Sequence[bytes]
) -> tuple[list[int], list[Any]]:
    """Return the messages that can be parsed, and their places."""
    parsed, messages = [], []
    for place, body in zip(places, bodies, strict=True):
        try:
            messages.append(parse(body))
        except DecodeError:
            continue
        parsed.append(place)
    return parsed, messages


def _float_fields(descriptor: Descriptor) -> set[str]:
    """Return the fields of a message that may hold floats, in messages of their own, too."""
    return {
        field.name
        for field in descriptor.fields
        if field.type in _FLOATS
        or (field.message_type is not None and field.message_type.full_name not in _WITHOUT_FLOATS)
    }


def _indexes(body: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes of the message type, if it is not the first, and where it begins."""
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
        if PATH.fullmatch(name) is None or name == MAIN or len(name) > PATH_CHARS:
            raise SchemaRefused("the name of an import is not the path of a .proto file")
    try:
        files = _compiled(texts | {MAIN: schema.text})
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as wrong:
        raise SchemaRefused("an import has the name of another one's folder") from wrong
    except (OSError, DecodeError) as failed:
        raise _not_compiled(f"because the machine failed ({type(failed).__name__})") from failed
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
            *(sys.executable, "-I", "-c", LIMITED, f"--proto_path={root}"),
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
            raise _not_compiled(f"within {COMPILE_S:.0f} s") from late
        if done.returncode != 0:
            text = done.stderr.decode(errors="replace")
            said = text.replace(f"{root}/", "").replace(MAIN, "schema")
            if done.returncode > 0 and AT_FAULT.search(said):
                raise SchemaRefused(f"protoc: {_first_error(said)}")
            raise _not_compiled(f"because protoc failed with status {done.returncode}")
        return descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())


def _not_compiled(why: str) -> SchemaRegistryUnusable:
    return SchemaRegistryUnusable(
        f"a Protobuf schema was not compiled {why}; it is tried again: look at memory, disk and "
        "load of the machine, or make the schema smaller"
    )


def _first_error(said: str) -> str:
    """Return the first error of protoc, without warnings."""
    found = [line for line in said.splitlines() if LOCATED.match(line)]
    return found[0][:REASON_CHARS]


# --- values, one field of all messages at a time --------------------------------------------------


def _rows(descriptor: Descriptor, messages: Sequence[Any]) -> list[Any]:
    """Return the JSON value of each message, None for those that have none.

    Values and schemas are the user's, and one of them must not decide about the other messages.
    """
    try:
        return _Conversion().values(descriptor, messages)
    except Exception:  # noqa: BLE001 - any error is that of a message, which is found by halves
        if len(messages) == 1:
            return [None]
        middle = len(messages) // 2
        return [
            *_rows(descriptor, messages[:middle]),
            *_rows(descriptor, messages[middle:]),
        ]


class _Conversion:
    """Converts messages, to at most `VALUES` values."""

    def __init__(self) -> None:
        self._left = VALUES

    def values(self, descriptor: Descriptor, messages: Sequence[Any]) -> list[Any]:
        """Return messages of one type as JSON values, in which bytes and times may be objects."""
        if not messages:
            return []  # ends the recursion of types that contain themselves
        if descriptor.full_name == _TIMESTAMP:
            return _timestamps(messages)
        special = _WELL_KNOWN.get(descriptor.full_name)
        if special is not None:
            return [special(message) for message in messages]
        fields = list(descriptor.fields)
        if not fields:
            return [{} for _ in messages]
        self._take(len(fields) * len(messages))
        names = [field.name for field in fields]
        assert all(name.isidentifier() for name in names), "protoc accepts identifiers only"
        plain = [field.name for field in fields if _is_plain(field)]
        # One call for all of them; of a single name, it would return the value alone.
        columns = (
            dict(zip(plain, zip(*map(attrgetter(*plain), messages), strict=True), strict=True))
            if len(plain) > 1
            else {}
        )
        found = [
            columns[field.name] if field.name in columns else self._field(field, messages)
            for field in fields
        ]
        return [dict(zip(names, row, strict=True)) for row in zip(*found, strict=True)]

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise OverflowError("too many values")

    def _field(self, field: FieldDescriptor, messages: Sequence[Any]) -> list[Any]:
        found = list(map(attrgetter(field.name), messages))
        if field.is_repeated:
            lengths = list(map(len, found))
            self._take(sum(lengths))
            if field.message_type is not None and _is_entry(field.message_type):
                return self._maps(field.message_type, found, lengths)
            if field.message_type is None and field.enum_type is None:
                return list(map(list, found))
            return _split(self._leaves(field, list(chain.from_iterable(found))), lengths)
        if not field.has_presence:
            return self._leaves(field, found)
        present = list(map(methodcaller("HasField", field.name), messages))
        values = iter(self._leaves(field, list(compress(found, present))))
        return [next(values) if is_set else None for is_set in present]

    def _leaves(self, field: FieldDescriptor, values: list[Any]) -> list[Any]:
        if field.message_type is not None:
            return self.values(field.message_type, values)
        if field.enum_type is not None:
            # Of names for one number the first, as Protobuf's own JSON has it.
            names = {each.number: each.name for each in reversed(field.enum_type.values)}
            return [names.get(value, value) for value in values]
        return values

    def _maps(self, entry: Descriptor, maps: list[Any], lengths: list[int]) -> list[Any]:
        keys = [_key(each) for one in maps for each in one]
        own = [one[each] for one in maps for each in one]
        values = self._leaves(entry.fields_by_name["value"], own)
        pairs = _split(list(zip(keys, values, strict=True)), lengths)
        return [dict(each) for each in pairs]


def _is_plain(field: FieldDescriptor) -> bool:
    """Return whether the value of a field is what the message has, and nothing else."""
    return not (
        field.is_repeated
        or field.has_presence
        or field.message_type is not None
        or field.enum_type is not None
    )


def _is_entry(descriptor: Descriptor) -> bool:
    return bool(descriptor.GetOptions().map_entry)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _split(values: list[Any], lengths: list[int]) -> list[Any]:
    found, start = [], 0
    for length in lengths:
        found.append(values[start : start + length])
        start += length
    return found


def _timestamps(messages: Sequence[Any]) -> list[Any]:
    """Return the text of each time. Raises `OverflowError` outside of the years 1 to 9999."""
    parts = np.array(list(map(attrgetter("seconds", "nanos"), messages)), dtype=np.int64)
    # Nanoseconds are a few seconds at most, so this bound keeps the product in 64 bits.
    if (np.abs(parts[:, 0]) > SECONDS).any():
        raise OverflowError("a time out of range")
    found = texts_of_times(parts[:, 0] * MICROS + parts[:, 1] // 1000, MICROS)
    if None in found:
        raise OverflowError("a time out of range")
    return found


_WRAPPERS: Final = (
    *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
)
_WELL_KNOWN: Final[dict[str, Callable[[Any], Any]]] = {
    **{
        f"google.protobuf.{name}": json_format.MessageToDict
        for name in ("Duration", "Struct", "Value", "ListValue")
    },
    **{f"google.protobuf.{name}Value": attrgetter("value") for name in _WRAPPERS},
}
