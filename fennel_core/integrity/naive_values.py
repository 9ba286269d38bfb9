"""The naive aggregations: from the rows of a window to one value, by the definition of each.

They are the specification that live lookups are compared with, so they import nothing of
`aggregates` and `operators.aggregate`, keep every row, and compute each value in a few lines.
Values have the physical form of stored rows (`vocab.keys.physical`): times are microseconds,
decimals are text.
"""

from __future__ import annotations

import decimal
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, assert_never

import msgspec

from fennel_core.vocab.dtypes import Decimal, Dtype, Float, base
from fennel_core.wire import operators as wire

SECOND: Final = 1_000_000
_INT_RANGE: Final = 1 << 64
DECAY_TOLERANCE: Final = 1e-9
"""Of the sum of the absolute values: powers of two of fractions are not exact in floating point."""
NEGLIGIBLE: Final = math.exp(-24)
"""Decayed sums below e^-25 are returned as zero."""
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class InputRow:
    """A row that was added and not retracted, by the time at which it counts.

    `valid_to`: the time at which its successor ends it, None without one.
    """

    time: int
    position: bytes
    values: dict[str, Any]
    is_tombstone: bool = False
    valid_to: int | None = None


def aggregated(
    spec: wire.Spec, dtype_of: Callable[[str], Dtype], rows: Sequence[InputRow], as_of: int
) -> Any:
    """Return the value of an aggregation over the rows of its window; `rows` are sorted by time and
    position.
    """
    match spec:
        case wire.Count(of=None):
            return len(rows)
        case wire.Count(of=name, unique=unique, dropnull=dropnull):
            assert name is not None, "a count of rows is above"
            counted = [row.values[name] for row in rows]
            kept = _present(counted) if dropnull else counted
            return len({_comparable(value) for value in kept}) if unique else len(kept)
        case wire.Sum(of=of):
            return _sum(_column(rows, of), dtype_of(of))
        case wire.Average(of=of, default=default):
            numbers = _numbers(_column(rows, of), dtype_of(of))
            return _quotient(_total(numbers), len(numbers)) if numbers else default
        case wire.Stddev(of=of, default=default):
            numbers = _numbers(_column(rows, of), dtype_of(of))
            return _deviation(numbers) if numbers else default
        case wire.Min(of=of, default=default) | wire.Max(of=of, default=default):
            choose = min if isinstance(spec, wire.Min) else max
            found = _column(rows, of)
            if not found:
                return _default(default, dtype_of(of))
            return choose(found, key=lambda value: _number(value, dtype_of(of)))
        case wire.Quantile(of=of, p=p, default=default):
            ordered = sorted(_numbers(_column(rows, of), dtype_of(of)))
            place = min(math.floor(p * len(ordered)), len(ordered) - 1)
            return float(ordered[place]) if ordered else default
        case wire.Distinct(of=of, dropnull=dropnull):
            values = [row.values[of] for row in rows]
            return list(
                {_comparable(v): v for v in values if not (dropnull and v is None)}.values()
            )
        case wire.FirstK() | wire.LastK():
            return _first_values(spec, rows)
        case wire.ExpDecay(of=of, half_life_us=half_life_us):
            return math.fsum(_decayed(rows, of, dtype_of(of), half_life_us, as_of))
        case unreachable:
            assert_never(unreachable)


def agrees(spec: wire.Spec, expected: Any, found: Any, magnitude: float) -> bool:
    """Return whether a value that a lookup found is the expected one.

    `magnitude`: the sum of absolute values that a decayed sum was added up from. Distinct values
    have an order that means nothing.
    """
    match spec:
        case wire.Distinct():
            return isinstance(found, list) and same_value(_sorted(expected), _sorted(found))
        case wire.ExpDecay():
            if not isinstance(found, int | float):
                return False
            if not math.isfinite(expected) or not math.isfinite(found):
                return same_value(expected, float(found))
            return bool(abs(expected - found) <= DECAY_TOLERANCE * magnitude + NEGLIGIBLE)
        case _:
            return same_value(expected, found)


def decay_magnitude(
    spec: wire.Spec, dtype_of: Callable[[str], Dtype], rows: Sequence[InputRow], as_of: int
) -> float:
    """Return the sum of the absolute values of a decayed sum; 0 for other aggregations."""
    if not isinstance(spec, wire.ExpDecay):
        return 0.0
    terms = _decayed(rows, spec.of, dtype_of(spec.of), spec.half_life_us, as_of)
    return math.fsum(map(abs, terms))


def _column(rows: Sequence[InputRow], of: str) -> list[Any]:
    return _present([row.values[of] for row in rows])


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _number(value: Any, dtype: Dtype) -> Any:
    return decimal.Decimal(value) if isinstance(base(dtype), Decimal) else value


def _numbers(values: Sequence[Any], dtype: Dtype) -> list[Any]:
    return [_number(value, dtype) for value in values]


def _total(values: Sequence[Any]) -> Fraction | float:
    """Return the exact sum; with infinities or NaN among the values, what floating point gives."""
    if all(map(math.isfinite, values)):
        return sum(map(Fraction, values), Fraction(0))
    return float(sum(value for value in values if not math.isfinite(value)))


def _quotient(total: Fraction | float, by: int) -> float:
    if isinstance(total, float):
        return total
    try:
        return float(total / by)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _sum(values: Sequence[Any], dtype: Dtype) -> Any:
    match base(dtype):
        case Decimal(scale):
            with decimal.localcontext(prec=60):
                whole = sum(map(decimal.Decimal, values), decimal.Decimal(0))
                return format(whole.quantize(decimal.Decimal(1).scaleb(-scale)), "f")
        case Float():
            return _quotient(_total(values), 1)
        case _:
            return (sum(values) + _INT_RANGE // 2) % _INT_RANGE - _INT_RANGE // 2


def _deviation(numbers: Sequence[Any]) -> float:
    if not all(map(math.isfinite, numbers)):
        return math.nan
    return float(statistics.pstdev([Fraction(number) for number in numbers]))


def _default(default: float | None, dtype: Dtype) -> Any:
    """Return a default, which the client sends as a float, in the type of the column."""
    if default is None:
        return None
    match base(dtype):
        case Decimal(scale):
            unit = decimal.Decimal(1).scaleb(-scale)
            return format(decimal.Decimal(repr(default)).quantize(unit), "f")
        case Float():
            return float(default)
        case _:
            return int(default)


def _first_values(spec: wire.FirstK | wire.LastK, rows: Sequence[InputRow]) -> list[Any]:
    ordered = rows[::-1] if isinstance(spec, wire.LastK) else rows
    values = [row.values[spec.of] for row in ordered]
    if spec.dropnull:
        values = _present(values)
    if spec.dedup:
        values = list({_encode(value): value for value in values}.values())
    return values[: spec.limit]


def _decayed(
    rows: Sequence[InputRow], of: str, dtype: Dtype, half_life_us: int, as_of: int
) -> list[float]:
    terms = []
    for row in rows:
        if (value := row.values[of]) is not None:
            age = (as_of // SECOND - row.time // SECOND) * SECOND / half_life_us
            terms.append(float(_number(value, dtype)) * 2.0**-age)
    return terms


def _comparable(value: Any) -> Any:
    """Return a value by which equal ones are counted once."""
    return _encode(value) if isinstance(value, list | dict) else value


def _sorted(values: Sequence[Any]) -> list[Any]:
    return sorted(values, key=_encode)


def same_value(expected: Any, found: Any) -> bool:
    """Return whether two values of a row are equal; NaN equals itself, also within lists."""
    return bool(expected == found) or _encode(expected) == _encode(found)
