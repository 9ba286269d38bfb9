"""Convert the numbers of a change event to texts that say what they mean, by the event's schema.

Kafka Connect writes a timestamp as a number whose unit only the schema names, a date as days and a
decimal as bytes. Without the schema such numbers are read by their size, as those of `log`.
"""

from __future__ import annotations

import base64
import binascii
import decimal
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import polars as pl

Convert = Callable[[Sequence[Any]], list[Any]]
SCHEMAS: Final = 64
"""Schemas whose conversions are kept; a table has few, one after the other."""
DECIMAL_BYTES: Final = 64
SCALE_CHARS: Final = 4
OUT_OF_RANGE: Final = "out of range"
"""The only key of an object instead of a time without a text: no field accepts it."""
_FIRST_S: Final = -62_135_596_800
_END_S: Final = 253_402_300_800
"""The years 1 to 9999, in seconds since 1970. Postgres has `infinity` outside of them."""
_DAY_S: Final = 86_400
_PER_S: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_MICROS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
}
_DATES: Final = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"


class _Field(msgspec.Struct):
    """The part of a Connect schema that is read."""

    field: str = ""
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: list[_Field] = []


_decode = msgspec.json.Decoder(_Field).decode


@lru_cache(maxsize=SCHEMAS)
def converters(schema: bytes, image: str) -> Mapping[str, Convert]:
    """Return how to convert columns of the row `image` (`before`, `after`) of an event.

    `schema` is the JSON of the event's schema; one that is not Connect's converts nothing.
    """
    try:
        envelope = _decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    found: dict[str, Convert] = {}
    for row in envelope.fields:
        if row.field == image:
            for each in row.fields:
                convert = _converter(each)
                if convert is not None:
                    found[each.field] = convert
    return found


def _converter(field: _Field) -> Convert | None:
    name = field.name or ""
    if name in _MICROS:
        return partial(_instants, unit=_MICROS[name])
    if name in _DATES:
        return _dates
    if name == DECIMAL:
        scale = (field.parameters or {}).get("scale", "0")
        known = len(scale) <= SCALE_CHARS and scale.isdecimal()
        return partial(_decimals, scale=int(scale)) if known else None
    if name == VARIABLE_DECIMAL:
        return _variable_decimals
    return None


def _instants(values: Sequence[Any], unit: Any) -> list[Any]:
    per_s = _PER_S[unit]
    times = _numbers(values, _FIRST_S * per_s, _END_S * per_s).cast(pl.Datetime(unit))
    return _where_number(values, times.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))


def _dates(values: Sequence[Any]) -> list[Any]:
    days = _numbers(values, _FIRST_S // _DAY_S, _END_S // _DAY_S).cast(pl.Int32)
    return _where_number(values, days.cast(pl.Date).dt.strftime("%Y-%m-%d"))


def _numbers(values: Sequence[Any], first: int, end: int) -> pl.Series:
    """Return the numbers of [first, end) and null for others: polars panics at their texts."""
    first, end = max(first, -(2**63)), min(end, 2**63)
    known = (v if type(v) is int and first <= v < end else None for v in values)
    return pl.Series(list(known), dtype=pl.Int64)


def _where_number(values: Sequence[Any], texts: pl.Series) -> list[Any]:
    """Return `texts`, and where there is none the value itself: the cast reports it.

    A number without a text would be read by its size, as another time: it becomes an object.
    """
    return [
        text if text is not None else {OUT_OF_RANGE: v} if type(v) is int else v
        for v, text in zip(values, texts, strict=True)
    ]


def _decimals(values: Sequence[Any], scale: int) -> list[Any]:
    return [_decimal(value, scale) for value in values]


def _decimal(value: Any, scale: Any) -> Any:
    """Return the text of an unscaled number in base64; another value as it is."""
    if not isinstance(value, str) or type(scale) is not int or not 0 <= scale <= DECIMAL_BYTES:
        return value
    try:
        unscaled = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value
    if not 0 < len(unscaled) <= DECIMAL_BYTES:
        return value
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = decimal.Decimal(number)
    return format(digits.scaleb(-scale, decimal.Context(prec=200)), "f")


def _variable_decimals(values: Sequence[Any]) -> list[Any]:
    return [
        _decimal(value.get("value"), value.get("scale")) if isinstance(value, dict) else value
        for value in values
    ]
