"""The type lattice of expressions: which types meet, which type may stand for another, and how a
type is laid out in Polars.

Theory. The language has few conversions, all of them silent and total: an int may stand for a
float, a `T` for an `Optional[T]`, null for any optional, and a checked type (between, oneof, regex)
for its base. Everything else must be equal. `common_type` is the least type both sides convert to
(comparison, fillnull, case); `is_assignable` says whether a value of one type may be stored as
another (`astype`, struct fields, list members). Lists and dicts are invariant: a `List[int]` is no
`List[float]`. Where the client's evaluator is stricter by accident (it rejects regex against str,
and a struct against its optional), this lattice is more generous.
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
"""The years 1 to 9999 in microseconds from 1970: what every part of the system can hold. Polars
panics on calendars far beyond.
"""
KEY, VALUE = "key", "value"
"""Field names of a map's entries."""


def polars_type(dtype: Dtype) -> pl.DataType:
    """The Polars type a value of `dtype` has in a frame; the Arrow twin is
    `vocab.dtypes.arrow_type`.
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
    """The dtype without its outer Optional."""
    return dtype.of if isinstance(dtype, Optional) else dtype


def unrestricted(dtype: Dtype) -> Dtype:
    """The dtype without the door's checks, Optional kept: what an operator returns for a between, a
    oneof or a regex.
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
    """`dtype`, optional when any of `operands` is: how null travels through nearly every
    function.
    """
    return optional(dtype) if any(is_optional(o) for o in operands) else dtype


def numeric(dtype: Dtype) -> Int | Float | Null | None:
    """The number type an arithmetic operator sees; None if it sees none. A bounded int is no number
    for the client, a bounded float is.
    """
    match non_optional(dtype):
        case Int() | Float() | Null() as number:
            return number
        case Between(of=Float()):
            return Float()
        case _:
            return None


def common_type(left: Dtype, right: Dtype) -> Dtype | None:
    """The least type both sides convert to; None if there is none."""
    if isinstance(left, Null):
        return optional(unrestricted(right))
    if isinstance(right, Null):
        return optional(unrestricted(left))
    meet = _meet(unrestricted(non_optional(left)), unrestricted(non_optional(right)))
    return None if meet is None else optional_if(meet, left, right)


def _meet(left: Dtype, right: Dtype) -> Dtype | None:
    match left, right:
        case (Int(), Float()) | (Float(), Int()):
            return Float()
        case _:
            return left if same_type(left, right) else None


def same_type(left: Dtype, right: Dtype) -> bool:
    """Equal types, the door's checks and struct names aside, at every depth."""
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
    """May a value of `dtype` be stored as `target` without losing anything?"""
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
    """`value`, of type `source`, laid out as `target`; no work where both have one layout."""
    wanted = polars_type(target)
    return value if polars_type(source) == wanted else value.cast(wanted)
