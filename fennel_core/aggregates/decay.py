"""ExpDecaySum: Σ v · 2^(-(q - t)/h) as of q, times in whole seconds (client semantics 4.2);
assembled at read time.

Theory. With t/h = k + f (k whole, 0 <= f < 1) an event weighs v · 2^f · 2^k at a fixed origin,
whatever q is: 2^f is a float that depends on t alone, and 2^k only changes the exponent. So the sum
at the origin is an exact `Total` like any other, neither order nor tiles matter, and a reader
multiplies it once by 2^(-q/h). Exponents of events that are many half-lives apart would make huge
integers. Therefore a partial that spans more than `MAX_SPAN_HALF_LIVES` is not kept (None), and
readers look back only `HORIZON_HALF_LIVES`, beyond which every value has decayed below the smallest
float.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fennel_core.aggregates import exact
from fennel_core.aggregates.aggregation import INCOMPLETE, Aggregator, AnyEvents, Packed
from fennel_core.aggregates.exact import Floats, Ints
from fennel_core.aggregates.records import ColumnValues
from fennel_core.aggregates.small import SmallEvents
from fennel_core.aggregates.totals import ZERO_TOTAL, Total, array_totals, scale_of
from fennel_core.vocab.dtypes import Dtype

SECOND_US = 1_000_000
HORIZON_HALF_LIVES = 2300
MAX_SPAN_HALF_LIVES = 8192
NEGLIGIBLE = math.exp(-25)
"""Sums up to this size are returned as zero, as in the client."""

Partial = Total | None


class DecayedSumAggregator(Aggregator[Partial]):
    """The exponentially decayed sum of the values of `of`. `time`: the column to decay by, if it is
    not the event's own time.
    """

    def __init__(
        self, of: str, dtype: Dtype, half_life_us: int, *, time: str | None = None
    ) -> None:
        assert half_life_us > 0, "the half-life is positive"
        self._of, self._half_life_us, self._time = of, half_life_us, time
        self._unit = float(10 ** scale_of(dtype))

    @property
    def horizon_us(self) -> int:
        """How far back an event can still affect the sum."""
        return HORIZON_HALF_LIVES * self._half_life_us

    def prepare(self) -> tuple[str, ...]:
        return (self._of,) if self._time is None else (self._of, self._time)

    def update(self, events: AnyEvents) -> list[Partial]:
        if isinstance(events, SmallEvents):
            return [self._small(events)]
        values = events.column(self._of)
        times, is_counted = events.ts, values.valid
        if self._time is not None:
            own, oldest = events.column(self._time).data, times - self.horizon_us
            is_near = own > oldest
            times = np.maximum(own, oldest)
            is_counted = is_near if is_counted is None else is_near & is_counted
        whole, fractions = self._weights(times)
        mantissas, exponents = np.frexp(values.data.astype(np.float64) / self._unit)
        near = ColumnValues(mantissas * fractions, is_counted)
        base = np.minimum.reduceat(whole, events.starts)
        span = np.maximum.reduceat(whole, events.starts) - base
        if span.max() <= MAX_SPAN_HALF_LIVES:
            return list(array_totals(events, near, whole + exponents))
        first = np.repeat(base, np.diff(events.starts, append=len(whole)))
        kept = np.minimum(whole - first, MAX_SPAN_HALF_LIVES)
        found = array_totals(events, near, kept + first + exponents)
        return [
            total if wide <= MAX_SPAN_HALF_LIVES else None
            for total, wide in zip(found, span.tolist(), strict=True)
        ]

    def _small(self, events: SmallEvents) -> Partial:
        times, is_counted = np.array(events.times), [True] * len(events.times)
        if self._time is not None:
            own, oldest = np.array(events.column(self._time).items), times - self.horizon_us
            times, is_counted = np.maximum(own, oldest), (own > oldest).tolist()
        whole, fractions = self._weights(times)
        if whole.max() - whole.min() > MAX_SPAN_HALF_LIVES:
            return None
        out = ZERO_TOTAL
        values = zip(
            events.column(self._of).items,
            events.weights,
            whole.tolist(),
            fractions.tolist(),
            is_counted,
            strict=True,
        )
        for value, weight, k, fraction, counts in values:
            if value is not None and counts:
                mantissa, exponent = math.frexp(float(value) / self._unit)
                out = out.plus(_scaled(mantissa * fraction, weight, exponent + k))
        return out

    def _weights(self, ts: Ints) -> tuple[Ints, Floats]:
        """Return 2^(t/h) as a whole power of two and a factor in [1, 2)."""
        whole, rest = np.divmod(ts // SECOND_US * SECOND_US, self._half_life_us)
        return whole, np.exp2(rest / self._half_life_us)

    def merge(self, a: Partial, b: Partial) -> Partial:
        return None if a is None or b is None or _too_far_apart(a, b) else a.plus(b)

    def delete(self, whole: Partial, part: Partial) -> Partial:
        return (
            None
            if whole is None or part is None or _too_far_apart(whole, part)
            else whole.minus(part)
        )

    def retract(self, total: Partial, part: Partial) -> Partial:
        """As `delete`; the exponent follows the events that are left, or numbers would grow."""
        left = self.delete(total, part)
        return None if left is None else replace(left, number=exact.normal(left.number))

    @property
    def is_deletable(self) -> bool:
        return False

    def finalize(self, partial: Partial, as_of: int) -> object:
        if partial is None:
            return INCOMPLETE
        whole, rest = divmod(as_of // SECOND_US * SECOND_US, self._half_life_us)
        mantissa, exponent = partial.number
        now = Total(
            (mantissa, exponent - whole), partial.positive_infinities, partial.negative_infinities
        ).divided_by(1)
        value = now * float(np.exp2(-rest / self._half_life_us)) if np.isfinite(now) else now
        return 0.0 if abs(value) <= NEGLIGIBLE else value

    @property
    def empty(self) -> Partial:
        return ZERO_TOTAL

    def pack(self, partial: Partial) -> Packed:
        return None if partial is None else partial.pack()

    def unpack(self, data: Any) -> Partial:
        return Total.unpack(data)


def _too_far_apart(a: Total, b: Total) -> bool:
    """Return whether two totals are too far apart to keep their exact sum."""
    (m, e), (n, f) = exact.normal(a.number), exact.normal(b.number)
    return bool(m and n and abs(e - f) > 2 * MAX_SPAN_HALF_LIVES)


def _scaled(near: float, weight: int, exponent: int) -> Total:
    if math.isinf(near):
        return Total(exact.ZERO, weight * (near > 0), weight * (near < 0))
    mantissa, power = exact.of_number(near)
    return Total((mantissa * weight, power + exponent))
