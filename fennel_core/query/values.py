"""JSON values as the physical values that rows hold, by declared type: defaults of definitions, and unusual values of requests.

Theory. The client writes a default as JSON text of `str` of whatever is not JSON (datetimes, dates, decimals). It is read once per
plan, so a default that cannot be read is found before the first row is. In requests datetimes and dates are epoch milliseconds (or
text), decimals floats; an epoch is taken for the unit that puts it between 1678 and 2262, as the client's own parser does.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Exact
from decimal import InvalidOperation
from typing import Any, assert_never

from fennel_core.query.errors import BadValue
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, show

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = EPOCH.date().toordinal()
ISO_DAY_CHARS = 10
"""Of a text that may go on with a time of day."""
DAY_US = 24 * 3600 * 10**6
EPOCH_SECONDS_MAX = 9_223_372_036
"""Seconds that nanoseconds in 64 bits can count: beyond it a number is of a finer unit."""
_MICROSECOND = timedelta(microseconds=1)


def default_value(default_json: str | None, dtype: Dtype) -> object:
    """The physical value of a default; None when there is none. BadValue when the text is not a value of `dtype`."""
    if default_json is None:
        return None
    try:
        return _physical(json.loads(default_json), dtype)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation) as error:
        raise BadValue(f"the default {default_json} is not a value of type {show(dtype)}: {error}") from error


def request_value(dtype: Dtype, name: str, value: Any) -> object:
    """The physical value of one JSON value of the column `name`; BadValue names both when it cannot be cast."""
    if value is None or value != value:
        if not dtypes.is_optional(dtype):
            raise BadValue(f"Failed to cast data of column `{name}` to type `{show(dtype)}`: Null values found in non-optional field.")
        return None
    try:
        return _physical(value, dtype)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation, OverflowError) as error:
        raise BadValue(f"Failed to cast data of column `{name}` to type `{show(dtype)}`: {value!r}: {error}") from error


def micros(moment: datetime) -> int:
    """Microseconds since 1970 of a datetime; a naive one is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // _MICROSECOND


def _int(value: Any) -> int:
    found = int(value)
    if isinstance(value, float) and found != value:
        raise ValueError(f"Float value {value} was truncated converting to int64")
    if not -(2**63) <= found < 2**63:
        raise ValueError("it does not fit 64 bits")
    return found


def _day(value: Any) -> int:
    if isinstance(value, int | float):
        return _epoch_micros(value) // DAY_US
    return date.fromisoformat(value[:ISO_DAY_CHARS]).toordinal() - EPOCH_DAY


def _epoch_micros(value: float) -> int:
    """Microseconds of an epoch number in seconds, milliseconds, microseconds or nanoseconds: the first that fits."""
    whole = int(value)
    for per_second in (1, 10**3, 10**6, 10**9):
        if abs(whole) <= EPOCH_SECONDS_MAX * per_second:
            return whole * (10**6 // per_second) if per_second <= 10**6 else whole // 10**3
    raise ValueError("it is no epoch number of any unit")


def _physical(value: Any, dtype: Dtype) -> object:
    if value is None:
        return None
    match dtypes.base(dtype):
        case dtypes.Int():
            return _int(value)
        case dtypes.Float():
            return float(value)
        case dtypes.Str() | dtypes.Regex():
            return str(value)
        case dtypes.Bool():
            return bool(value)
        case dtypes.Bytes():
            return value.encode()
        case dtypes.Timestamp():
            return _epoch_micros(value) if isinstance(value, int | float) else micros(datetime.fromisoformat(value))
        case dtypes.Date():
            return _day(value)
        case dtypes.Decimal(scale):
            return str(Exact(str(value)).quantize(Exact(1).scaleb(-scale)))
        case dtypes.Embedding():
            return [float(item) for item in value]
        case dtypes.List(of):
            return [_physical(item, of) for item in value]
        case dtypes.Map(of):
            return [{"key": key, "value": _physical(item, of)} for key, item in value.items()]
        case dtypes.Struct(_, fields):
            return {f.name: _physical(value.get(f.name), f.dtype) for f in fields}
        case dtypes.Null():
            return None
        case dtypes.Optional() | dtypes.Between() | dtypes.OneOf():
            raise AssertionError("base() has removed these")
        case unreachable:
            assert_never(unreachable)
