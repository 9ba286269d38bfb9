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
        return partial(_decimals, scale=int(scale)) if scale.isdecimal() else None
    if name == VARIABLE_DECIMAL:
        return _variable_decimals
    return None


def _instants(values: Sequence[Any], unit: Any) -> list[Any]:
    texts = _numbers(values).cast(pl.Datetime(unit)).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    return _where_number(values, texts)


def _dates(values: Sequence[Any]) -> list[Any]:
    days = _numbers(values).cast(pl.Int32, strict=False)
    return _where_number(values, days.cast(pl.Date).dt.strftime("%Y-%m-%d"))


def _numbers(values: Sequence[Any]) -> pl.Series:
    return pl.Series([v if _is_number(v) else None for v in values], dtype=pl.Int64)


def _is_number(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _where_number(values: Sequence[Any], texts: pl.Series) -> list[Any]:
    """Return `texts`, and the value itself where it was no number: the cast reports it."""
    return [v if text is None else text for v, text in zip(values, texts, strict=True)]


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
