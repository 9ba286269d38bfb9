"""Encode frozen values as canonical bytes under stored names.

Jobs, catalogs and blueprints are stored in Postgres and hashed into the identities that name topics
and state. So the bytes must depend on nothing but the values: one value has one encoding, and
renaming a Python class or field changes no byte.

A `StoredNames` table lists every class that may be stored, the name it is stored under and the
stored names of its fields. A dataclass is encoded as `["stored name", {field: value, …}]`, a tuple
as `["tuple", …]`, an enum member as `["enum", "stored name", member]`, a set as `["set", …]`, bytes
as `["bytes", hex]`; everything else is a JSON scalar. Keys are sorted, so the bytes are unique.

    names = StoredNames([
        Stored("point", Point, "x y=northing"),      # field `northing` is stored as `y`
        Stored("color", Color, "red dark=NAVY"),     # `red` is Color.RED
    ])
    names.dumps(Point(1, 2))                         # b'["point",{"x":1,"y":2}]'

The table is checked when it is built: it must list exactly the fields of each dataclass and exactly
the members of each enum. A renamed field therefore fails at import, and `old=new` repairs it
without changing a stored byte.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fennel_core.vocab.errors import StoredNameUnknown, StoredValueMismatch

T = TypeVar("T")
TAGS = frozenset({"tuple", "set", "enum", "bytes"})
"""First items of encoded values that are not dataclasses; no class may be stored under them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of the table: a class, its stored name and the stored names of its members.

    `members` is separated by spaces. A field `f` stored as `s` is written `s=f`, or `f` if the
    names are equal. A member `M` of an enum stored as `s` is written `s=M`, or `m` (lower case).
    """

    name: str
    cls: type
    members: str = ""

    def by_python_name(self) -> dict[str, str]:
        """Return the stored name of each field or enum member, in the order of the table.

        Raises `ValueError` when the row does not list exactly the members of its class.
        """
        is_enum = issubclass(self.cls, enum.Enum)
        found: dict[str, str] = {}
        for member in self.members.split():
            stored, _, python = member.partition("=")
            found[python or (stored.upper() if is_enum else stored)] = stored
        expected = python_names(self.cls)
        if set(found) != set(expected) or len(set(found.values())) != len(self.members.split()):
            raise ValueError(
                f"the stored name `{self.name}` must list each of {', '.join(expected)} of "
                f"{self.cls.__qualname__} once, but lists: {self.members or 'nothing'}. Write "
                "`stored_name=python_name` for a member that was renamed in Python"
            )
        return found


def python_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields or of an enum's members."""
    if issubclass(cls, enum.Enum):
        return tuple(cls.__members__)
    if dataclasses.is_dataclass(cls):
        return tuple(f.name for f in dataclasses.fields(cls))
    raise ValueError(f"{cls.__qualname__} is neither a dataclass nor an enum")


class StoredNames:
    """The codec over one table of stored names."""

    def __init__(self, rows: Iterable[Stored]) -> None:
        self.rows = tuple(rows)
        self._classes: dict[str, type] = {}
        self._names: dict[type, str] = {}
        self._members: dict[type, dict[str, str]] = {}
        self._python: dict[type, dict[str, str]] = {}
        for row in self.rows:
            if row.name in self._classes or row.cls in self._names or row.name in TAGS:
                raise ValueError(f"`{row.name}` ({row.cls.__qualname__}) is listed twice or taken")
            members = row.by_python_name()
            self._classes[row.name] = row.cls
            self._names[row.cls] = row.name
            self._members[row.cls] = members
            self._python[row.cls] = {stored: python for python, stored in members.items()}

    def name_of(self, cls: type) -> str:
        """Return the stored name of a class. Raises `TypeError` for a class without one."""
        try:
            return self._names[cls]
        except KeyError:
            raise TypeError(
                f"{cls.__qualname__} has no stored name; add it to the table of stored names"
            ) from None

    def fields_of(self, value: object) -> dict[str, Any]:
        """Return the fields of a dataclass instance by stored name."""
        self.name_of(type(value))
        return {s: getattr(value, python) for python, s in self._members[type(value)].items()}

    def member_of(self, value: enum.Enum) -> str:
        """Return the stored name of an enum member."""
        self.name_of(type(value))
        return self._members[type(value)][value.name]

    def to_data(self, value: object) -> Any:
        """Return the JSON-able form of a frozen value."""
        if isinstance(value, enum.Enum):
            return ["enum", self.name_of(type(value)), self.member_of(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, tuple):
            return ["tuple", *(self.to_data(item) for item in value)]
        if isinstance(value, frozenset):
            return ["set", *sorted((self.to_data(item) for item in value), key=json.dumps)]
        if dataclasses.is_dataclass(value):
            fields = self.fields_of(value)
            return [
                self.name_of(type(value)),
                {name: self.to_data(item) for name, item in fields.items()},
            ]
        raise TypeError(
            f"{type(value).__qualname__} has no canonical form: use frozen dataclasses, "
            "tuples, frozensets, enums, bytes and scalars"
        )

    def from_data(self, data: Any) -> Any:
        """Return the value whose JSON-able form is `data`; the inverse of `to_data`.

        A field that `data` lacks takes its Python default. Raises `StoredNameUnknown` for a class,
        field or member that is not in the table, and for a lacking field without a default.
        """
        if not isinstance(data, list):
            return data
        match data:
            case ["tuple", *items]:
                return tuple(self.from_data(item) for item in items)
            case ["set", *items]:
                return frozenset(self.from_data(item) for item in items)
            case ["bytes", str(text)]:
                return bytes.fromhex(text)
            case ["enum", str(name), str(member)]:
                cls = self._class(name)
                return cls[self._python_name(name, cls, member)]  # type: ignore[index]  # an enum
            case [str(name), dict(fields)]:
                return self._instance(name, fields)
        raise StoredValueMismatch(f"`{json.dumps(data)[:80]}` is not a canonical value")

    def _instance(self, name: str, fields: Mapping[str, Any]) -> Any:
        cls = self._class(name)
        values = {
            self._python_name(name, cls, field): self.from_data(item)
            for field, item in fields.items()
        }
        try:
            return cls(**values)
        except TypeError as lacking:
            raise StoredNameUnknown.of("a value without all fields of", name) from lacking

    def _class(self, name: str) -> type:
        if name not in self._classes:
            raise StoredNameUnknown.of("the class", name)
        return self._classes[name]

    def _python_name(self, name: str, cls: type, member: str) -> str:
        if member not in self._python[cls]:
            raise StoredNameUnknown.of("the member", f"{name}.{member}")
        return self._python[cls][member]

    def dumps(self, value: object) -> bytes:
        """Return the canonical bytes of a frozen value."""
        return json.dumps(self.to_data(value), sort_keys=True, separators=(",", ":")).encode()

    def loads(self, data: bytes | str, expected: type[T]) -> T:
        """Return the value whose canonical bytes are `data`.

        Raises `StoredNameUnknown` for names that this version does not know, `StoredValueMismatch`
        when `data` is not canonical or not an `expected`.
        """
        try:
            value = self.from_data(json.loads(data))
        except ValueError as malformed:
            raise StoredValueMismatch(f"stored bytes are malformed: {malformed}") from malformed
        if not isinstance(value, expected):
            raise StoredValueMismatch(
                f"expected a {expected.__qualname__}, found a {type(value).__qualname__}"
            )
        return value

    def digest(self, value: object) -> str:
        """Return 128 bits of SHA-256 over the canonical bytes, as hex.

        Two digests are equal exactly when the values are equal.
        """
        return hashlib.sha256(self.dumps(value)).hexdigest()[:32]
