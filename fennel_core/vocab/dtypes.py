"""Data types of the client's language and the Arrow layout of each.

A dtype is a closed union of frozen values. `arrow_type` fixes one physical layout per dtype for
topics, state and lookups: timestamps are microseconds in UTC, decimals are decimal128(28, scale),
maps are lists of (key, value) structs because Polars has no map type. `Optional` changes
nullability only; `Between`, `OneOf` and `Regex` are validated on ingest and stored as their base
type. Changing a layout breaks stored bytes, so it needs a new state-format version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

DECIMAL_PRECISION = 28


@dataclass(frozen=True, slots=True)
class Int:
    pass


@dataclass(frozen=True, slots=True)
class Float:
    pass


@dataclass(frozen=True, slots=True)
class Str:
    pass


@dataclass(frozen=True, slots=True)
class Bool:
    pass


@dataclass(frozen=True, slots=True)
class Bytes:
    pass


@dataclass(frozen=True, slots=True)
class Timestamp:
    pass


@dataclass(frozen=True, slots=True)
class Date:
    pass


@dataclass(frozen=True, slots=True)
class Null:
    pass


@dataclass(frozen=True, slots=True)
class Decimal:
    scale: int


@dataclass(frozen=True, slots=True)
class Embedding:
    size: int


@dataclass(frozen=True, slots=True)
class List:
    of: Dtype


@dataclass(frozen=True, slots=True)
class Map:
    """Keys are always `Str`."""

    value: Dtype


@dataclass(frozen=True, slots=True)
class Optional:
    of: Dtype


@dataclass(frozen=True, slots=True)
class Between:
    of: Dtype
    min: int | float
    max: int | float
    strict_min: bool = False
    strict_max: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    of: Dtype
    options: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    fields: tuple[Field, ...]


Dtype = (
    Int
    | Float
    | Str
    | Bool
    | Bytes
    | Timestamp
    | Date
    | Null
    | Decimal
    | Embedding
    | List
    | Map
    | Optional
    | Between
    | OneOf
    | Regex
    | Struct
)

TIMESTAMP_ARROW = pa.timestamp("us", tz="UTC")


def base(dtype: Dtype) -> Dtype:
    """Return the dtype that values are stored as: without Optional, Between, OneOf and Regex."""
    match dtype:
        case Optional(of) | Between(of=of) | OneOf(of=of):
            return base(of)
        case Regex():
            return Str()
        case _:
            return dtype


def is_optional(dtype: Dtype) -> bool:
    """Return whether a value of this dtype can be null."""
    return isinstance(dtype, Optional | Null)


def optional(dtype: Dtype) -> Dtype:
    """Return `Optional[dtype]`; a dtype that is optional already is returned unchanged."""
    return dtype if is_optional(dtype) else Optional(dtype)


def arrow_type(dtype: Dtype) -> pa.DataType:
    """Return the Arrow type of `dtype` in batches, topics and lookups."""
    match dtype:
        case Optional(of) | Between(of=of) | OneOf(of=of):
            return arrow_type(of)
        case Int():
            return pa.int64()
        case Float():
            return pa.float64()
        case Str() | Regex():
            return pa.large_string()
        case Bool():
            return pa.bool_()
        case Bytes():
            return pa.large_binary()
        case Timestamp():
            return TIMESTAMP_ARROW
        case Date():
            return pa.date32()
        case Null():
            return pa.null()
        case Decimal(scale):
            return pa.decimal128(DECIMAL_PRECISION, scale)
        case Embedding():
            return pa.large_list(pa.float64())
        case List(of):
            return pa.large_list(arrow_type(of))
        case Map(value):
            return pa.large_list(
                pa.struct([("key", pa.large_string()), ("value", arrow_type(value))])
            )
        case Struct(_, fields):
            return pa.struct([(f.name, arrow_type(f.dtype)) for f in fields])
        case unreachable:
            assert_never(unreachable)


def show(dtype: Dtype) -> str:
    """Return the dtype as a user of the client writes it, for error messages."""
    match dtype:
        case Optional(of):
            return f"Optional[{show(of)}]"
        case List(of):
            return f"List[{show(of)}]"
        case Map(value):
            return f"Dict[str, {show(value)}]"
        case Decimal(scale):
            return f"Decimal[{scale}]"
        case Embedding(size):
            return f"Embedding[{size}]"
        case Between(of, low, high):
            return f"between({show(of)}, {low}, {high})"
        case OneOf(of, options):
            return f"oneof({show(of)}, {list(options)})"
        case Regex(pattern):
            return f'regex("{pattern}")'
        case Struct(name):
            return name
        case Timestamp():
            return "datetime"
        case _:
            return type(dtype).__name__.lower()
