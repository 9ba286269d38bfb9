"""Cast JSON values of one scalar type to Arrow, a whole column at a time.

Theory. A body of `log` or `query` was made by pandas: timestamps are epoch numbers of some unit or
ISO text, integers may be integral floats, decimals are floats, bytes are text. Each dtype has a
*vectorized* cast in Arrow or numpy that either converts every value or declines, and a cast of
single values, used only for columns of mixed or invalid values, which finds every bad value. Both
give the same result for a value: the result must never depend on the other values of the column.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import TIMESTAMP_ARROW, arrow_type
from fennel_core.wire.errors import BadValue, CastFailed

# Epoch numbers are read as seconds if the result is within the range of nanosecond timestamps (1677
# to 2262), else as milliseconds, else as microseconds, else as nanoseconds. The client's own reader
# decides the same way, value by value.
MAX_EPOCH_SECONDS = 9_223_372_036
MAX_EPOCH_MILLIS = 9_223_372_036_854
MAX_EPOCH_MICROS = 9_223_372_036_854_775
MICROS_PER_DAY = 86_400_000_000
MILLIS_PER_DAY = 86_400_000
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_SHOWN_CHARS = 80
MIN_EPOCH_DIGITS = 9
"""Text of at least this many digits is an epoch number; shorter is a date like 20240102."""

BYTES_KEY = "base64"
"""The key of an object that is bytes, which have no other form in JSON unless they are text."""

INTEGER_TEXT = re.compile(r"[+-]?[0-9]+")
MAX_INTEGER_TEXT_CHARS = 40
"""Longest accepted integer text: int64 needs 20 characters, and leading zeros are valid."""
DAY_IN_UTC = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})Z")
"""A date with a zone, as Debezium writes it where times are text."""
YEAR = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")
"""A text without a year would be completed from today's date.

Nothing in this module may depend on a clock.
"""
BOOLEAN_TEXTS = {"true": True, "false": False, "1": True, "0": False}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_DAY = (dt.date.min - EPOCH.date()).days
LAST_DAY = (dt.date.max - EPOCH.date()).days
DECIMAL_CONTEXT = decimal.Context(prec=dtypes.DECIMAL_PRECISION + 2, rounding=decimal.ROUND_HALF_UP)

Flat = (
    dtypes.Int
    | dtypes.Float
    | dtypes.Str
    | dtypes.Bool
    | dtypes.Bytes
    | dtypes.Timestamp
    | dtypes.Date
    | dtypes.Decimal
    | dtypes.Null
)


def cast_flat(values: Sequence[Any], dtype: Flat) -> tuple[pa.Array, list[BadValue]]:
    """Cast `values` (null is None or NaN) to the Arrow layout of `dtype`.

    Bad values are null in the array and listed, in row order.
    """
    try:
        array = _cast_vectorized(values, dtype)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError):
        array = None
    if array is not None:
        return array, []
    return _cast_each(values, dtype)


def show_value(value: object) -> str:
    """Return the value for an error message, cut to a readable length."""
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


# --- whole columns --------------------------------------------------------------------------------


def _kinds(values: Sequence[Any]) -> set[type]:
    return set(map(type, values)) - {type(None)}


def _cast_vectorized(values: Sequence[Any], dtype: Flat) -> pa.Array | None:
    """Cast the whole column in C; None if its values must be cast one by one.

    Errors of Arrow mean the same as None.
    """
    kinds = _kinds(values)
    match dtype:
        case dtypes.Int():
            return _fast_int(values, kinds)
        case dtypes.Float():
            return (
                pa.array(values, pa.float64(), from_pandas=True) if kinds <= {int, float} else None
            )
        case dtypes.Str():
            return pa.array(values, pa.large_string()) if kinds <= {str} else None
        case dtypes.Bool():
            return pa.array(values, pa.bool_()) if kinds <= {bool} else None
        case dtypes.Bytes():
            return pa.array(values, pa.large_binary()) if kinds <= {str, bytes} else None
        case dtypes.Timestamp():
            return _fast_timestamp(values, kinds)
        case dtypes.Date():
            return _fast_date(values, kinds)
        case dtypes.Decimal(scale):
            return _fast_decimal(values, kinds, scale)
        case dtypes.Null():
            return None if kinds else pa.nulls(len(values))
        case unreachable:
            assert_never(unreachable)


def _fast_int(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds == {float}:
        floats = pa.array(values, pa.float64(), from_pandas=True)
        return floats.cast(pa.int64())  # raises for a fraction or overflow
    if kinds == {str}:
        texts = pa.array(values, pa.large_string())
        if pc.all(pc.match_substring_regex(texts, r"^[+-]?\d+$")).as_py():
            return texts.cast(pa.int64())
    return None


def _fast_timestamp(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    if kinds == {int}:
        return _timestamps_of_epochs(pa.array(values, pa.int64()))
    if kinds == {str}:
        texts = pa.array(values, pa.large_string())
        zoned = next(value for value in values if value is not None)[-6:]
        if zoned.endswith(("Z", "z")) or (len(zoned) == 6 and zoned[0] in "+-" and zoned[3] == ":"):
            return texts.cast(TIMESTAMP_ARROW)
        # Text without an offset is UTC.
        return texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(TIMESTAMP_ARROW)
    return pa.nulls(len(values), TIMESTAMP_ARROW) if not kinds else None


def _timestamps_of_epochs(epochs: pa.Array) -> pa.Array:
    """Convert epoch numbers (int64) to microseconds, the unit of each chosen by its magnitude."""
    missing = np.asarray(epochs.is_null()) if epochs.null_count else None
    numbers = epochs.fill_null(0).to_numpy() if epochs.null_count else epochs.to_numpy()
    size = np.abs(np.maximum(numbers, INT64_MIN + 1))
    micros = np.where(
        size <= MAX_EPOCH_SECONDS,
        numbers * 1_000_000,
        np.where(
            size <= MAX_EPOCH_MILLIS,
            numbers * 1000,
            np.where(size <= MAX_EPOCH_MICROS, numbers, numbers // 1000),
        ),
    )
    return pa.array(micros, pa.int64(), mask=missing).cast(TIMESTAMP_ARROW)


def _fast_date(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    if kinds == {int}:
        days = pc.floor(
            pc.divide(pa.array(values, pa.int64()).cast(pa.float64()), float(MILLIS_PER_DAY))
        )
        ends = pc.min_max(days)
        if ends["min"].as_py() < FIRST_DAY or ends["max"].as_py() > LAST_DAY:
            return None
        return days.cast(pa.int32()).cast(pa.date32())
    if kinds == {str}:
        days = pa.array(values, pa.large_string())
        return pc.replace_substring_regex(days, f"^{DAY_IN_UTC.pattern}$", r"\1").cast(pa.date32())
    return pa.nulls(len(values), pa.date32()) if not kinds else None


def _fast_decimal(values: Sequence[Any], kinds: set[type], scale: int) -> pa.Array | None:
    target = arrow_type(dtypes.Decimal(scale))
    if kinds == {float}:
        return pa.array(values, pa.float64(), from_pandas=True).cast(target)
    if kinds <= {int}:
        return pa.array(values, pa.int64()).cast(target)
    return None


# --- single values --------------------------------------------------------------------------------


def _cast_each(values: Sequence[Any], dtype: Flat) -> tuple[pa.Array, list[BadValue]]:
    one = _caster(dtype)
    out: list[Any] = []
    bad: list[BadValue] = []
    for row, value in enumerate(values):
        if value is None or (type(value) is float and math.isnan(value)):
            out.append(None)
            continue
        try:
            out.append(one(value))
        except CastFailed as failed:
            out.append(None)
            bad.append(BadValue(row, value, str(failed).replace("{row}", str(row))))
    return pa.array(out, arrow_type(dtype)), bad


def _caster(dtype: Flat) -> Callable[[Any], Any]:
    match dtype:
        case dtypes.Int():
            return _int
        case dtypes.Float():
            return _float
        case dtypes.Str():
            return _str
        case dtypes.Bool():
            return _bool
        case dtypes.Bytes():
            return _bytes
        case dtypes.Timestamp():
            return timestamp_us
        case dtypes.Date():
            return _date
        case dtypes.Decimal(scale):
            return lambda value: _decimal(value, scale)
        case dtypes.Null():
            return _null
        case unreachable:
            assert_never(unreachable)


def _wrong_type(expected: str, value: object) -> CastFailed:
    return CastFailed(
        f"Expected type {expected}, got {type(value).__name__} for value {show_value(value)}"
    )


def _unparsable(value: object) -> CastFailed:
    return CastFailed(f'Unable to parse string "{show_value(value)}" at position {{row}}')


def _number_text(text: str) -> str:
    """Reject the underscore: Python parses `1_000` as a number, JSON producers do not mean it."""
    if "_" in text:
        raise ValueError("not a number")
    return text


def _null(value: object) -> None:
    raise _wrong_type("null", value)


def _int(value: object) -> int:
    match value:
        case bool() | int():
            number = int(value)
        case float():
            if not value.is_integer():
                raise CastFailed(f"Float value {value} was truncated converting to int64")
            number = int(value)
        case str():
            if not INTEGER_TEXT.fullmatch(value) or len(value) > MAX_INTEGER_TEXT_CHARS:
                raise _unparsable(value)
            number = int(value)
        case _:
            raise _wrong_type("int", value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise CastFailed(f"Value {show_value(number)} too large to fit in int64")
    return number


def _float(value: object) -> float | None:
    match value:
        case bool() | int() | float() | decimal.Decimal():
            try:
                return float(value)
            except OverflowError as error:
                raise CastFailed(f"Value {show_value(value)} too large to fit in double") from error
        case str():
            try:
                number = float(_number_text(value))
            except ValueError as error:
                raise _unparsable(value) from error
            return None if math.isnan(number) else number
        case _:
            raise _wrong_type("float", value)


def _str(value: object) -> str:
    match value:
        case str():
            _encoded(value)
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | decimal.Decimal():
            return str(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise CastFailed("bytes that are not UTF-8 text") from error
        case _:
            raise _wrong_type("str", value)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CastFailed(f"text with a lone surrogate is not UTF-8: {show_value(text)}") from error


def _bool(value: object) -> bool:
    match value:
        case bool():
            return value
        case int() | float() if value in (0, 1):
            return bool(value)
        case str() if value.lower() in BOOLEAN_TEXTS:
            return BOOLEAN_TEXTS[value.lower()]
        case _:
            raise _wrong_type("bool", value)


def _bytes(value: object) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            return _encoded(value)
        case dict() if value.keys() == {BYTES_KEY} and isinstance(value[BYTES_KEY], str):
            try:
                return base64.b64decode(value[BYTES_KEY], validate=True)
            except ValueError as error:
                raise CastFailed(f"not base64: {show_value(value[BYTES_KEY])}") from error
        case _:
            raise _wrong_type("bytes", value)


def timestamp_us(value: object) -> int:
    """Return microseconds since the epoch.

    `value` is a number of any unit, a text, or a `datetime` (UTC if naive).
    """
    match value:
        case bool():
            raise _wrong_type("datetime", value)
        case int():
            return _epoch_us(value)
        case float():
            if math.isinf(value):
                raise _wrong_type("datetime", value)
            return _epoch_us(int(value))
        case str():
            return _text_us(value)
        case dt.datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return (moment - EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - EPOCH.date()).days * MICROS_PER_DAY
        case _:
            raise _wrong_type("datetime", value)


def _epoch_us(number: int) -> int:
    size = abs(number)
    if size <= MAX_EPOCH_SECONDS:
        return number * 1_000_000
    if size <= MAX_EPOCH_MILLIS:
        return number * 1000
    if size <= MAX_EPOCH_MICROS:
        return number
    if size <= INT64_MAX:
        return number // 1000
    raise CastFailed(f"Value {show_value(number)} is out of the range of timestamps")


def _text_us(text: str) -> int:
    if INTEGER_TEXT.fullmatch(text) and MIN_EPOCH_DIGITS <= len(text) <= MAX_INTEGER_TEXT_CHARS:
        return _epoch_us(int(text))
    day = DAY_IN_UTC.fullmatch(text)
    try:
        moment = dt.datetime.fromisoformat(text if day is None else day[1])
    except ValueError:
        return _free_text_us(text)
    return timestamp_us(moment)


def _free_text_us(text: str) -> int:
    """Parse text that is not ISO 8601 with the library that the client uses."""
    import pandas as pd  # slow import, needed for unusual texts only

    try:
        moment = pd.to_datetime(text, utc=True) if YEAR.search(text) else pd.NaT
    except (ValueError, OverflowError) as error:
        raise _unknown_format(text) from error
    if moment is pd.NaT:
        raise _unknown_format(text)
    return int(moment.value) // 1000


def _unknown_format(text: str) -> CastFailed:
    return CastFailed(
        f"Unknown datetime string format, unable to parse: {show_value(text)}, at position {{row}}"
    )


def _date(value: object) -> dt.date:
    match value:
        case bool():
            raise _wrong_type("date", value)
        case dt.datetime():
            day = timestamp_us(value) // MICROS_PER_DAY
        case dt.date():
            return value
        case int() | float():
            day = math.floor(value / MILLIS_PER_DAY) if math.isfinite(value) else INT64_MAX
        case str():
            day = timestamp_us(value) // MICROS_PER_DAY
        case _:
            raise _wrong_type("date", value)
    try:
        return EPOCH.date() + dt.timedelta(days=day)
    except OverflowError as error:
        raise CastFailed(f"Value {show_value(value)} is out of the range of dates") from error


def _decimal(value: object, scale: int) -> decimal.Decimal:
    match value:
        case bool():
            raise _wrong_type(f"Decimal[{scale}]", value)
        case float():
            return _decimal_of_float(value, scale)
        case int() | decimal.Decimal() | str():
            try:
                number = decimal.Decimal(_number_text(value) if isinstance(value, str) else value)
            except (decimal.InvalidOperation, ValueError) as error:
                raise _unparsable(value) from error
        case _:
            raise _wrong_type(f"Decimal[{scale}]", value)
    try:
        rounded = number.quantize(decimal.Decimal(1).scaleb(-scale), context=DECIMAL_CONTEXT)
    except decimal.InvalidOperation as error:
        raise _too_large(value, scale) from error
    if not rounded.is_finite() or len(rounded.as_tuple().digits) > dtypes.DECIMAL_PRECISION:
        raise _too_large(value, scale)
    return rounded


def _decimal_of_float(value: float, scale: int) -> decimal.Decimal:
    """Round exactly as the vectorized cast rounds a column of floats."""
    try:
        rounded: decimal.Decimal = (
            pa.array([value], pa.float64()).cast(arrow_type(dtypes.Decimal(scale)))[0].as_py()
        )
    except pa.ArrowException as error:
        raise _too_large(value, scale) from error
    return rounded


def _too_large(value: object, scale: int) -> CastFailed:
    return CastFailed(
        f"Value {show_value(value)} does not fit the {dtypes.DECIMAL_PRECISION} "
        f"digits of Decimal[{scale}]"
    )
