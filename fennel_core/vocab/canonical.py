"""One canonical text for every frozen value: what is stored in the registry, hashed into identities
and compared by tests.

Theory. A frozen dataclass becomes `["room.Class", {field: value, …}]`, a tuple `["tuple", …]`, an
enum `["enum", "room.Class", name]`, bytes `["bytes", hex]`; JSON with sorted keys makes the bytes
unique. Decoding imports only classes of this package, so a registry row can never name foreign
code. Renaming a class that is at rest needs a migration.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import json
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
PACKAGE = "fennel_core"


def to_data(value: object) -> Any:
    """The JSON-able form of a frozen value."""
    if isinstance(value, enum.Enum):
        return ["enum", _name(type(value)), value.name]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, tuple):
        return ["tuple", *(to_data(v) for v in value)]
    if isinstance(value, frozenset):
        return ["set", *sorted((to_data(v) for v in value), key=json.dumps)]
    if dataclasses.is_dataclass(value):
        return [
            _name(type(value)),
            {f.name: to_data(getattr(value, f.name)) for f in dataclasses.fields(value)},
        ]
    raise TypeError(
        f"{type(value).__qualname__} has no canonical form: use frozen dataclasses, "
        "tuples, enums, bytes and scalars"
    )


def from_data(data: Any) -> Any:
    """The inverse of `to_data`."""
    if not isinstance(data, list):
        return data
    tag = data[0]
    if tag == "tuple":
        return tuple(from_data(v) for v in data[1:])
    if tag == "set":
        return frozenset(from_data(v) for v in data[1:])
    if tag == "bytes":
        return bytes.fromhex(data[1])
    if tag == "enum":
        return _resolve(data[1])[data[2]]  # type: ignore[index]  # an Enum class is indexed by member name
    return _resolve(tag)(**{name: from_data(v) for name, v in data[1].items()})


def dumps(value: object) -> bytes:
    """Canonical JSON bytes of a frozen value."""
    return json.dumps(to_data(value), sort_keys=True, separators=(",", ":")).encode()


def loads(data: bytes | str, expected: type[T]) -> T:
    """The value whose canonical bytes are `data`; TypeError when it is not an `expected`."""
    value = from_data(json.loads(data))
    if not isinstance(value, expected):
        raise TypeError(f"expected a {expected.__qualname__}, found a {type(value).__qualname__}")
    return value


def digest(value: object) -> str:
    """128 bits of SHA-256 over the canonical bytes, as hex: equal exactly when the values are
    equal.
    """
    return hashlib.sha256(dumps(value)).hexdigest()[:32]


def _name(cls: type) -> str:
    return f"{cls.__module__.removeprefix(PACKAGE + '.')}.{cls.__qualname__}"


@lru_cache(maxsize=1024)
def _resolve(name: str) -> type:
    module, _, cls = name.rpartition(".")
    found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), cls)
    if not (
        isinstance(found, type)
        and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum))
    ):
        raise TypeError(f"{name} is not a value class")
    return found
