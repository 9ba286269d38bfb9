"""Constants: JSON text of a type, and local times in a time zone.

Theory. A literal is checked once, when the expression is compiled, so an invalid one is the
author's error and never a row's. Unlike the reader of `str.parse`, this one follows the client's
`lit`: types must agree exactly (no float for an int), and types that JSON does not have come as
text: datetimes and dates in ISO form (UTC without an offset), decimals, bytes in base64. A bare
number for a datetime is read in the first unit that fits. A local time that its zone skips (the
hour lost in spring) or repeats (in autumn) is rejected, because either guess could be wrong.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, date, datetime, timedelta

import polars as pl

from fennel_core.expressions import json_text
from fennel_core.expressions.errors import InvalidExpression, JsonTypeMismatch
from fennel_core.expressions.json_text import EPOCH, INT64_MAX, INT64_MIN, Json, Value
from fennel_core.expressions.patterns import check_zone
from fennel_core.expressions.type_lattice import KEY, VALUE, non_optional, polars_type, unrestricted
from fennel_core.vocab.dtypes import (
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
    Optional,
    Str,
    Struct,
    Timestamp,
    show,
)
from fennel_core.wire.expr import DatetimeLiteral, Literal

UNITS_US = (1_000_000, 1_000, 1)
"""Units of a bare number, in microseconds: seconds, else milliseconds, else microseconds.

The first unit is taken in which the number lies within `EPOCH_SPAN_US`.
"""
EPOCH_SPAN_US = 2**63 // 1_000
"""About 292 years: the range of the client's nanosecond timestamps."""


def literal_type(literal: Literal) -> Dtype:
    """Return the type of a constant, which is never Optional nor restricted; null has type Null."""
    return Null() if constant(literal) is None else unrestricted(non_optional(literal.dtype))


def literal_value(literal: Literal) -> pl.Expr:
    """Return the constant as a Polars scalar of its type."""
    return pl.lit(constant(literal), dtype=polars_type(literal_type(literal)))


def constant(literal: Literal) -> Value:
    """Return the constant as a Python value; None only for a null of a type that has nulls."""
    dtype = literal.dtype
    try:
        value = json_text.read(literal.json)
        return None if isinstance(dtype, Null) and value is None else _value(value, dtype)
    except JsonTypeMismatch as error:
        raise InvalidExpression(
            "bad-literal",
            f"`{literal.json}` is not a literal of type {show(dtype)}: {error}. Give a "
            "value of that type.",
        ) from None


def datetime_value(literal: DatetimeLiteral) -> pl.Expr:
    """Return the instant at which clocks in `literal.timezone` show the local time."""
    zone = check_zone(literal.timezone)
    try:
        reading = datetime(  # noqa: DTZ001  the zone is applied below, by the same rules as in strptime
            literal.year,
            literal.month,
            literal.day,
            literal.hour,
            literal.minute,
            literal.second,
            literal.microsecond,
        )
    except ValueError as error:
        raise InvalidExpression(
            "bad-literal", f"the date and time do not exist: {error}. Correct the literal."
        ) from None
    local = pl.Series([reading], dtype=pl.Datetime("us"))
    instant = (
        local.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
        .dt.convert_time_zone("UTC")
        .item()
    )
    if instant is None:
        raise InvalidExpression(
            "bad-literal",
            f"{reading} was shown by the clocks of {zone} never or twice. Give the "
            "time in UTC or another hour.",
        )
    return pl.lit(instant, dtype=polars_type(Timestamp()))


def _value(value: Json, dtype: Dtype) -> Value:
    match unrestricted(dtype):
        case Optional(of):
            return None if value is None else _value(value, of)
        case Int():
            return _int(value)
        case Float() if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case Str() if isinstance(value, str):
            return json_text.decode(value, Str())
        case Bool() if isinstance(value, bool):
            return value
        case Decimal() as decimal if not isinstance(value, bool):
            return json_text.decode(value, decimal)
        case Timestamp():
            return _timestamp(value)
        case Date() if isinstance(value, str):
            return _iso_date(value)
        case Bytes() if isinstance(value, str):
            return _base64(value)
        case List(of) if isinstance(value, list):
            return [_value(item, of) for item in value]
        case Embedding(size) if isinstance(value, list) and len(value) == size:
            return [_value(item, Float()) for item in value]
        case Map(of) if isinstance(value, dict):
            return [{KEY: key, VALUE: _value(item, of)} for key, item in value.items()]
        case Struct(_, fields) if isinstance(value, dict):
            return {f.name: _value(value.get(f.name), f.dtype) for f in fields}
        case _:
            raise JsonTypeMismatch(f"{value!r} is of another type")


def _int(value: Json) -> int:
    try:
        whole = (
            int(value)
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
            else None
        )
    except ValueError:
        whole = None
    if whole is None or not INT64_MIN <= whole <= INT64_MAX:
        raise JsonTypeMismatch(f"{value!r} is not a 64-bit int")
    return whole


def _timestamp(value: Json) -> datetime:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        if isinstance(value, int) and not isinstance(value, bool):
            unit_us = next((unit for unit in UNITS_US if abs(value * unit) <= EPOCH_SPAN_US), 1)
            return EPOCH + timedelta(microseconds=value * unit_us)
    except (ValueError, OverflowError):
        pass
    raise JsonTypeMismatch(f"{value!r} is not a datetime")


def _iso_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise JsonTypeMismatch(f"{text!r} is not a date") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise JsonTypeMismatch(f"{text!r} is not base64") from None
