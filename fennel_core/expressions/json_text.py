"""Read JSON text as typed values, for `str.parse` and for literals.

Theory. Reading has two strict stages. First the text must be JSON as defined by RFC 8259 (no NaN,
no trailing commas); of repeated names the first counts, as in the client's reader. Then each value
is fitted to its type: `decode` returns None if it does not fit, and None is a failure wherever the
type is not Optional. The client's evaluator does the same, so `Optional[T]` is the way to tolerate
bad input. Numbers convert as in the client: an int drops the fraction, a bool counts as 0 or 1, a
string takes numbers and bools in their shortest notation. One deviation: the client reads a scalar
as a list of one element, and any value as a struct of nulls; here these do not fit.
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_DOWN, InvalidOperation
from decimal import Decimal as PyDecimal
from typing import assert_never

from fennel_core.expressions.errors import JsonTypeMismatch
from fennel_core.vocab.dtypes import (
    Between,
    Bool,
    Bytes,
    Date,
    Decimal,
    Dtype,
    Embedding,
    Field,
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
)

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Value = (
    bool
    | int
    | float
    | str
    | bytes
    | datetime
    | date
    | PyDecimal
    | list["Value"]
    | dict[str, "Value"]
    | None
)
"""A value in the form that Polars takes for one cell: maps are lists of key/value dicts."""

INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(\.\d+)? ?([Zz]|[+-]\d{2}:?\d{2})")
"""RFC 3339: a date, a time with seconds, and an offset."""


def read(text: str) -> Json:
    """Parse `text` as JSON; raises `JsonTypeMismatch` if it is not JSON."""
    try:
        value: Json = READER.decode(text)
    except (ValueError, RecursionError) as error:
        raise JsonTypeMismatch(f"not JSON: {error}") from None
    return value


def _reject_constant(constant: str) -> float:
    raise JsonTypeMismatch(f"{constant} is not JSON")


def _first_of_each(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    return dict(reversed(pairs))


READER = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_first_of_each)


def decode(value: Json, dtype: Dtype) -> Value:
    """Return `value` as a `dtype`, None if it does not fit.

    Raises `JsonTypeMismatch` if a part that is not Optional does not fit.
    """
    inner = dtype.of if isinstance(dtype, Optional) else dtype
    fitted = None if value is None else _fitted(value, inner)
    if fitted is None and not is_optional(dtype):
        raise JsonTypeMismatch(f"{json.dumps(value)} does not fit the type")
    return fitted


def _fitted(value: Json, dtype: Dtype) -> Value:
    if isinstance(value, int | float):
        _expect_number(value)
    match dtype:
        case Optional(of) | Between(of=of) | OneOf(of=of):
            return _fitted(value, of)
        case Int():
            return _int(value)
        case Float():
            return float(value) if isinstance(value, int | float) else None
        case Str() | Regex():
            return _text(value)
        case Bool():
            return value if isinstance(value, bool) else None
        case Timestamp():
            return _instant(value)
        case Date():
            return _day(value)
        case Decimal(scale):
            return _decimal(value, scale)
        case List(of):
            return [decode(item, of) for item in value] if isinstance(value, list) else None
        case Struct(_, fields):
            return _struct(value, fields) if isinstance(value, dict) else None
        case Map() | Embedding() | Bytes() | Null():
            raise JsonTypeMismatch(f"{type(dtype).__name__.lower()} is not read from JSON")
        case unreachable:
            assert_never(unreachable)


def _expect_number(value: int | float) -> None:
    """Raise unless the number is one that the client's reader supports.

    These are ints of a 64-bit word, signed or not, and finite floats.
    """
    if isinstance(value, float):
        if math.isinf(value):
            raise JsonTypeMismatch("the number is beyond the range of a float")
    elif not INT64_MIN <= value <= UINT64_MAX:
        raise JsonTypeMismatch(f"{value} is beyond the range of a 64-bit int")


def _int(value: Json) -> int | None:
    if not isinstance(value, int | float):
        return None
    whole = math.trunc(value)
    return whole if INT64_MIN <= whole <= INT64_MAX else None


def _text(value: Json) -> str | None:
    match value:
        case str():
            return value if _encodable(value) else None
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else format(PyDecimal(repr(value)), "f")
        case _:
            return None


def _encodable(text: str) -> bool:
    """Return whether the text is valid UTF-8: JSON can encode half of a surrogate pair."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _instant(value: Json) -> datetime | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return _plus(EPOCH, timedelta(microseconds=1), value)
    parts = INSTANT.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return None
    day, clock, fraction, offset = parts.groups()
    try:
        return datetime.fromisoformat(f"{day}T{clock}{(fraction or '.0')[:7]:0<7}{offset.upper()}")
    except ValueError:
        return None


def _day(value: Json) -> date | None:
    days = _int(value)
    moment = None if days is None else _plus(EPOCH, timedelta(days=1), days)
    return None if moment is None else moment.date()


def _plus(start: datetime, step: timedelta, count: int) -> datetime | None:
    try:
        return start + step * count
    except OverflowError:
        return None


def _decimal(value: Json, scale: int) -> PyDecimal | None:
    """Return the decimal with the digits beyond the scale cut off."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return PyDecimal(str(value)).quantize(PyDecimal(1).scaleb(-scale), ROUND_DOWN)
    except InvalidOperation:
        return None


def _struct(value: dict[str, Json], fields: tuple[Field, ...]) -> Value:
    try:
        return {f.name: decode(value.get(f.name), f.dtype) for f in fields}
    except JsonTypeMismatch:
        return None
