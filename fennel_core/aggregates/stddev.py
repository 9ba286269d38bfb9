"""Standard deviation of the population: sqrt(Σx²/n - (Σx/n)²) from exact sums, as one fraction that
is rounded once, so the number under the root is never negative.
"""

from __future__ import annotations

import math
from typing import Any

from fennel_core.aggregates import exact
from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Events, Packed
from fennel_core.aggregates.exact import Exact
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.totals import (
    ZERO_TOTAL,
    Total,
    counts,
    counts_over,
    scale_of,
    squares,
    squares_over,
    totals,
    totals_over,
)
from fennel_core.vocab.dtypes import Dtype

Partial = tuple[int, Total, Exact]


class StddevAggregator(Aggregator[Partial]):
    """The standard deviation of the values of `of`; `default` when there is none."""

    def __init__(self, of: str, dtype: Dtype, default: float | None) -> None:
        self._of, self._default = of, default
        self._unit = 10 ** scale_of(dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def update(self, events: AnyEvents) -> list[Partial]:
        parts = counts(events, self._of), totals(events, self._of), squares(events, self._of)
        return list(zip(*parts, strict=True))

    def merge(self, a: Partial, b: Partial) -> Partial:
        return a[0] + b[0], a[1].plus(b[1]), exact.add(a[2], b[2])

    def delete(self, whole: Partial, part: Partial) -> Partial:
        return (
            whole[0] - part[0],
            whole[1].minus(part[1]),
            exact.add(whole[2], exact.negate(part[2])),
        )

    def finalize(self, partial: Partial, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        count, total, square = partial
        if not count:
            return self._default
        if total.positive_infinities or total.negative_infinities:
            return math.nan
        mantissa, exponent = total.number
        top = exact.add((square[0] * count, square[1]), (-mantissa * mantissa, 2 * exponent))
        below = (count * self._unit) ** 2
        return (
            exact.square_root(top[0] << top[1], below)
            if top[1] >= 0
            else exact.square_root(top[0], below << -top[1])
        )

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`."""
        parts = zip(
            counts_over(events, self._of, ranges),
            totals_over(events, self._of, ranges),
            squares_over(events, self._of, ranges),
            strict=True,
        )
        return list(map(self.finalize, parts, ranges.times))

    @property
    def empty(self) -> Partial:
        return 0, ZERO_TOTAL, exact.ZERO

    def pack(self, partial: Partial) -> Packed:
        return [partial[0], partial[1].pack(), Total(partial[2]).pack()]

    def unpack(self, data: Any) -> Partial:
        return data[0], Total.unpack(data[1]), Total.unpack(data[2]).number
