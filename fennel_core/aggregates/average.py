"""Average: the exact sum divided by the count, rounded once."""

from __future__ import annotations

from typing import Any

from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Events, Packed
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.totals import (
    ZERO_TOTAL,
    Total,
    counts,
    counts_over,
    scale_of,
    totals,
    totals_over,
)
from fennel_core.vocab.dtypes import Dtype

Partial = tuple[int, Total]


class AverageAggregator(Aggregator[Partial]):
    """The average of the values of `of`; `default` when there is none."""

    def __init__(self, of: str, dtype: Dtype, default: float | None) -> None:
        self._of, self._default = of, default
        self._unit = 10 ** scale_of(dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def update(self, events: AnyEvents) -> list[Partial]:
        return list(zip(counts(events, self._of), totals(events, self._of), strict=True))

    def merge(self, a: Partial, b: Partial) -> Partial:
        return a[0] + b[0], a[1].plus(b[1])

    def delete(self, whole: Partial, part: Partial) -> Partial:
        return whole[0] - part[0], whole[1].minus(part[1])

    def finalize(self, partial: Partial, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        count, total = partial
        return total.divided_by(count * self._unit) if count else self._default

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`."""
        numbers = counts_over(events, self._of, ranges)
        totals = totals_over(events, self._of, ranges)
        return list(map(self.finalize, zip(numbers, totals, strict=True), ranges.times))

    @property
    def empty(self) -> Partial:
        return 0, ZERO_TOTAL

    def pack(self, partial: Partial) -> Packed:
        return [partial[0], partial[1].pack()]

    def unpack(self, data: Any) -> Partial:
        return data[0], Total.unpack(data[1])
