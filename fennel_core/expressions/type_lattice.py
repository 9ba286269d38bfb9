"""The type lattice of expressions, and the layout of each type in Polars.

Theory. The language has few conversions, all of them implicit and total: an int is usable as a
float, a `T` as an `Optional[T]`, null as any optional, and a restricted type (between, oneof,
regex) as its base. All other types must be equal. `common_type` is the least type both sides
convert to (comparison, fillnull, case); `is_assignable` decides whether a value of one type may be
stored as another (`astype`, struct fields, list elements). Lists and dicts are invariant: a
`List[int]` is not a `List[float]`. Where the client's evaluator is stricter without a reason (it
rejects regex against str, and a struct against its optional), this lattice is more permissive.
"""

from __future__ import annotations

from typing import assert_never

import polars as pl

from fennel_core.vocab.dtypes import (
    DECIMAL_PRECISION,
    Between,
    Bool,
    Bytes,
    Date,
    Decimal,
    Dtype,
    Embedding,
    Float,
    Int,
    List,
    Map,
    Null,
    OneOf,
    Optional,
    Regex,
    Str,
    Struct,
    Timestamp,
    is_optional,
    optional,
)

TIMESTAMP = pl.Datetime("us", "UTC")
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970, which every part of the system supports.

Polars panics on dates far beyond them.
"""
KEY, VALUE = "key", "value"
"""Field names of a map's entries."""


def polars_type(dtype: Dtype) -> pl.DataType:
    """Return the Polars type of a value of `dtype` in a frame.

    `vocab.dtypes.arrow_type` is its Arrow counterpart.
    """
    match dtype:
        case Optional(of) | Between(of=of) | OneOf(of=of):
            return polars_type(of)
        case Int():
            return pl.Int64()
        case Float():
            return pl.Float64()
        case Str() | Regex():
            return pl.String()
        case Bool():
            return pl.Boolean()
        case Bytes():
            return pl.Binary()
        case Timestamp():
            return TIMESTAMP
        case Date():
            return pl.Date()
        case Null():
            return pl.Null()
        case Decimal(scale):
            return pl.Decimal(DECIMAL_PRECISION, scale)
        case Embedding():
            return pl.List(pl.Float64)
        case List(of):
            return pl.List(polars_type(of))
        case Map(value):
            return pl.List(pl.Struct({KEY: pl.String, VALUE: polars_type(value)}))
        case Struct(_, fields):
            return pl.Struct({f.name: polars_type(f.dtype) for f in fields})
        case unreachable:
            assert_never(unreachable)


def non_optional(dtype: Dtype) -> Dtype:
    """Return the dtype without its outer Optional."""
    return dtype.of if isinstance(dtype, Optional) else dtype


def unrestricted(dtype: Dtype) -> Dtype:
    """Return the dtype without restrictions at the outermost level, Optional kept.

    This is the type of an operator's result for a between, a oneof or a regex.
    """
    match dtype:
        case Optional(of):
            return optional(unrestricted(of))
        case Between(of=of) | OneOf(of=of):
            return unrestricted(of)
        case Regex():
            return Str()
        case _:
            return dtype


def optional_if(dtype: Dtype, *operands: Dtype) -> Dtype:
    """Return `dtype`, made optional if any of `operands` is.

    Nearly every function propagates null this way.
    """
    return optional(dtype) if any(is_optional(o) for o in operands) else dtype


def numeric(dtype: Dtype) -> Int | Float | Null | None:
    """Return the number type that an arithmetic operator uses; None if `dtype` is not a number.

    As in the client, a bounded float is a number and a bounded int is not.
    """
    match non_optional(dtype):
        case Int() | Float() | Null() as number:
            return number
        case Between(of=Float()):
            return Float()
        case _:
            return None


def common_type(left: Dtype, right: Dtype) -> Dtype | None:
    """Return the least type both sides convert to; None if there is none."""
    if isinstance(left, Null):
        return optional(unrestricted(right))
    if isinstance(right, Null):
        return optional(unrestricted(left))
    common = _common_base(unrestricted(non_optional(left)), unrestricted(non_optional(right)))
    return None if common is None else optional_if(common, left, right)


def _common_base(left: Dtype, right: Dtype) -> Dtype | None:
    match left, right:
        case (Int(), Float()) | (Float(), Int()):
            return Float()
        case _:
            return left if same_type(left, right) else None


def same_type(left: Dtype, right: Dtype) -> bool:
    """Return whether the types are equal, ignoring restrictions and struct names at every depth."""
    match left, right:
        case (Optional(a), Optional(b)) | (List(a), List(b)) | (Map(a), Map(b)):
            return same_type(a, b)
        case Struct(_, a_fields), Struct(_, b_fields):
            return len(a_fields) == len(b_fields) and all(
                a.name == b.name and same_type(a.dtype, b.dtype)
                for a, b in zip(a_fields, b_fields, strict=True)
            )
        case _:
            return unrestricted(left) == unrestricted(right)


def is_assignable(dtype: Dtype, target: Dtype) -> bool:
    """Return whether a value of `dtype` can be stored as `target` without loss."""
    if isinstance(target, Optional):
        return isinstance(dtype, Null) or is_assignable(non_optional(dtype), target.of)
    if is_optional(dtype):
        return isinstance(target, Null) and isinstance(dtype, Null)
    match unrestricted(dtype), unrestricted(target):
        case Int(), Float():
            return True
        case Struct(_, fields), Struct(_, wanted):
            return len(fields) == len(wanted) and all(
                have.name == want.name and is_assignable(have.dtype, want.dtype)
                for have, want in zip(fields, wanted, strict=True)
            )
        case have, want:
            return same_type(have, want)


def cast(value: pl.Expr, source: Dtype, target: Dtype) -> pl.Expr:
    """Return `value`, of type `source`, cast to the layout of `target` (if they differ)."""
    wanted = polars_type(target)
    return value if polars_type(source) == wanted else value.cast(wanted)
