"""Exact totals of the numbers of a column, and numbers in the form of results.

Theory. Integers, decimals (as unscaled integers) and floats are all summed as a `Total`: an exact
number m · 2^e and the counts of +inf and -inf, which have no exact number but must disappear again
when they are retracted.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import lshift, mul

import numpy as np

from fennel_core.aggregates import exact
from fennel_core.aggregates.aggregation import AnyEvents, Events, pack_int, unpack_int
from fennel_core.aggregates.exact import Exact, Ints
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.records import Cells, ColumnValues
from fennel_core.aggregates.small import SmallEvents
from fennel_core.vocab.dtypes import Decimal, Dtype, Float, base

INT64 = 1 << 64
_SQUARABLE = 1 << 31
"""Integers below this in magnitude have a square that fits into 64 bits."""
_SMALL_FLOATS = 24
"""Floats positive_infinities to which adding one by one is faster than an array."""


@dataclass(frozen=True, slots=True)
class Total:
    """An exact sum."""

    number: Exact
    positive_infinities: int = 0
    negative_infinities: int = 0

    def plus(self, other: Total) -> Total:
        return Total(
            exact.add(self.number, other.number),
            self.positive_infinities + other.positive_infinities,
            self.negative_infinities + other.negative_infinities,
        )

    def minus(self, other: Total) -> Total:
        return Total(
            exact.add(self.number, exact.negate(other.number)),
            self.positive_infinities - other.positive_infinities,
            self.negative_infinities - other.negative_infinities,
        )

    def divided_by(self, count: int) -> float:
        """Return the total divided by a count, correctly rounded."""
        if self.positive_infinities or self.negative_infinities:
            return (
                math.nan
                if self.positive_infinities and self.negative_infinities
                else (math.inf if self.positive_infinities else -math.inf)
            )
        return exact.divided(self.number, count)

    def pack(self) -> list[int | bytes]:
        """Return the total in a form that msgpack can carry."""
        mantissa, exponent = exact.normal(self.number)
        return (
            [pack_int(mantissa), exponent, self.positive_infinities, self.negative_infinities]
            if self.positive_infinities or self.negative_infinities
            else [pack_int(mantissa), exponent]
        )

    @classmethod
    def unpack(cls, data: list[int | bytes]) -> Total:
        """Return the total that `pack` packed."""
        mantissa, exponent, *infinite = (unpack_int(part) for part in data)
        return cls((mantissa, exponent), *infinite)


ZERO_TOTAL = Total(exact.ZERO)


def totals(events: AnyEvents, of: str) -> list[Total]:
    """Return the weighted total of the non-null values of each segment."""
    if isinstance(events, SmallEvents):
        return [_small_total(list(weighted(events, of)))]
    return array_totals(events, events.column(of))


def array_totals(
    events: Events, values: ColumnValues, exponents: Ints | None = None
) -> list[Total]:
    """As `totals`, for arrays. `exponents` multiply each value by a power of two (floats only)."""
    weight = _weights(events, values)
    if values.data.dtype != np.float64:
        return [
            Total((total, 0))
            for total in exact.integer_sums(_weighted(values, weight), events.starts)
        ]
    finite = np.isfinite(values.data)
    mantissas, powers = exact.split(np.where(finite, values.data, 0.0))
    if exponents is not None:
        powers = powers + exponents
    numbers = exact.sums(mantissas * weight, powers, events.starts)
    if finite.all():
        return [Total(number) for number in numbers]
    positive_infinities = np.add.reduceat(weight * np.isposinf(values.data), events.starts).tolist()
    negative_infinities = np.add.reduceat(weight * np.isneginf(values.data), events.starts).tolist()
    return [
        Total(*parts)
        for parts in zip(numbers, positive_infinities, negative_infinities, strict=True)
    ]


def squares(events: AnyEvents, of: str) -> list[Exact]:
    """Return the weighted sum of the squares of the finite non-null values of each segment."""
    if isinstance(events, SmallEvents):
        numbers = (
            (exact.of_number(value), weight)
            for value, weight in weighted(events, of)
            if math.isfinite(value)
        )
        return [exact.total((weight * m * m, 2 * e) for (m, e), weight in numbers)]
    values = events.column(of)
    weight, data = _weights(events, values), values.data
    if data.dtype == np.float64:
        mantissas, powers = exact.split(np.where(np.isfinite(data), data, 0.0))
        added = exact.square_sums(mantissas * (weight > 0), powers, events.starts)
        if events.all_added:
            return added
        retracted = exact.square_sums(mantissas * (weight < 0), powers, events.starts)
        return [exact.add(a, exact.negate(r)) for a, r in zip(added, retracted, strict=True)]
    if data.dtype != object and (
        len(data) == 0 or max(int(data.max()), -int(data.min())) < _SQUARABLE
    ):
        return [(total, 0) for total in exact.integer_sums(data * data * weight, events.starts)]
    big = data.astype(object)
    return [
        (total, 0) for total in exact.integer_sums(big * big * weight.astype(object), events.starts)
    ]


def counts(events: AnyEvents, of: str | None) -> list[int]:
    """Return the weighted number of events of each segment, only of those with a value in column
    `of` if one is given.
    """
    if isinstance(events, SmallEvents):
        return [_small_count(events, of)]
    weight = events.weight if of is None else _weights(events, events.column(of))
    return list(np.add.reduceat(weight, events.starts).tolist())


def counts_over(events: Events, of: str | None, ranges: Ranges) -> list[int]:
    """Return the number that `counts` has for the events of each range."""
    weight = events.weight if of is None else _weights(events, events.column(of))
    found: list[int] = ranges.sums(weight).tolist()
    return found


def wrapped_sums_over(events: Events, of: str, ranges: Ranges) -> list[int]:
    """Return the weighted sum of the integers of each range, modulo 2^64 and signed."""
    values = events.column(of)
    found: list[int] = ranges.sums(values.data * _weights(events, values)).tolist()
    return found


def totals_over(events: Events, of: str, ranges: Ranges) -> list[Total]:
    """Return the total that `totals` has for the events of each range."""
    values = events.column(of)
    weight = _weights(events, values)
    if values.data.dtype != np.float64:
        weighted_values = map(mul, values.data.tolist(), weight.tolist())
        return [Total((total, 0)) for total in ranges.big_sums(list(weighted_values))]
    numbers, exponent = _integers(values)
    sums = ranges.big_sums(list(map(mul, numbers, weight.tolist())))
    infinite = (np.isposinf(values.data), np.isneginf(values.data))
    if not any(each.any() for each in infinite):
        return [Total((total, exponent)) for total in sums]
    counted = (ranges.sums(weight * each).tolist() for each in infinite)
    return [
        Total((total, exponent), positive, negative)
        for total, positive, negative in zip(sums, *counted, strict=True)
    ]


def squares_over(events: Events, of: str, ranges: Ranges) -> list[Exact]:
    """Return the number that `squares` has for the events of each range."""
    values = events.column(of)
    numbers, exponent = _integers(values)
    squared = map(mul, map(mul, numbers, numbers), _weights(events, values).tolist())
    return [(total, 2 * exponent) for total in ranges.big_sums(list(squared))]


def _integers(values: ColumnValues) -> tuple[list[int], int]:
    """Return integers m and one e such that each value is m · 2^e; infinite values are 0."""
    if values.data.dtype != np.float64:
        return values.data.tolist(), 0
    mantissas, powers = exact.split(np.where(np.isfinite(values.data), values.data, 0.0))
    least = int(powers[mantissas != 0].min(initial=0))
    shifts = np.where(mantissas != 0, powers - least, 0)
    return list(map(lshift, mantissas.tolist(), shifts.tolist())), least


def weighted(events: SmallEvents, of: str) -> Iterator[tuple[int | float, int]]:
    """Return non-null values with their weights."""
    pairs = zip(events.column(of).items, events.weights, strict=True)
    return ((value, weight) for value, weight in pairs if value is not None)


def _small_count(events: SmallEvents, of: str | None) -> int:
    if of is None:
        return sum(events.weights)
    items = events.column(of).items
    return (
        len(items) - items.count(None)
        if events.all_added
        else sum(weight for _, weight in weighted(events, of))
    )


def _small_total(items: list[tuple[int | float, int]]) -> Total:
    if not items:
        return ZERO_TOTAL
    values, weights = zip(*items, strict=True)
    if isinstance(values[0], int):
        return Total((sum(map(mul, values, weights)), 0))
    if not all(map(math.isfinite, values)):
        positive_infinities, negative_infinities = (
            sum(weight for value, weight in items if value == end) for end in (math.inf, -math.inf)
        )
        return replace(
            _small_total([(value, weight) for value, weight in items if math.isfinite(value)]),
            positive_infinities=positive_infinities,
            negative_infinities=negative_infinities,
        )
    if len(values) <= _SMALL_FLOATS:
        return Total(
            exact.total(
                (m * weight, e) for value, weight in items for m, e in [exact.of_number(value)]
            )
        )
    mantissas, powers = exact.split(np.array(values))
    (number,) = exact.sums(mantissas * np.array(weights), powers, np.array([0]))
    return Total(number)


def _weights(events: Events, values: ColumnValues) -> Ints:
    return events.weight if values.valid is None else events.weight * values.valid


def _weighted(values: ColumnValues, weight: Ints) -> Cells:
    if values.data.dtype != object and (len(values.data) == 0 or values.data.min() > -(1 << 63)):
        return np.asarray(values.data * weight)
    return np.asarray(values.data.astype(object) * weight.astype(object))


def to_result(element: int | float, dtype: Dtype) -> object:
    """Return a number of a column of `dtype` in the form of results: decimals as text."""
    kind = base(dtype)
    return decimal_text(int(element), kind.scale) if isinstance(kind, Decimal) else element


def decimal_text(unscaled: int, scale: int) -> str:
    """Return an unscaled decimal as text."""
    with decimal.localcontext(prec=60):
        return format(decimal.Decimal(unscaled).scaleb(-scale), "f")


def default_result(default: float | None, dtype: Dtype) -> object:
    """Return a default of the wire protocol (decimals are floats there) in the form of results."""
    kind = base(dtype)
    if default is None:
        return None
    match kind:
        case Float():
            return float(default)
        case Decimal(scale):
            return decimal_text(round(decimal.Decimal(repr(default)).scaleb(scale)), scale)
        case _:
            return int(default)


def scale_of(dtype: Dtype) -> int:
    """Return the scale of a decimal, zero for other types: value = stored integer / 10^scale."""
    kind = base(dtype)
    return kind.scale if isinstance(kind, Decimal) else 0
