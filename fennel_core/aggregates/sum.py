"""Sum: exact. An integer sum wraps around at 64 bits, as the column's type does."""

from __future__ import annotations

from typing import Any

from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Events, Packed
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.totals import (
    INT64,
    ZERO_TOTAL,
    Total,
    decimal_text,
    totals,
    totals_over,
    wrapped_sums_over,
)
from fennel_core.vocab.dtypes import Decimal, Dtype, Float, base


class SumAggregator(Aggregator[Total]):
    """The sum of the values of `of`."""

    def __init__(self, of: str, dtype: Dtype) -> None:
        self._of, self._dtype = of, base(dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def update(self, events: AnyEvents) -> list[Total]:
        return totals(events, self._of)

    def merge(self, a: Total, b: Total) -> Total:
        return a.plus(b)

    def delete(self, whole: Total, part: Total) -> Total:
        return whole.minus(part)

    def finalize(self, partial: Total, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        match self._dtype:
            case Float():
                return partial.divided_by(1)
            case Decimal(scale):
                return decimal_text(_whole(partial), scale)
            case _:
                return (_whole(partial) + INT64 // 2) % INT64 - INT64 // 2

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`."""
        if not isinstance(self._dtype, Float | Decimal):
            return list(wrapped_sums_over(events, self._of, ranges))
        totals = totals_over(events, self._of, ranges)
        return list(map(self.finalize, totals, ranges.times))

    @property
    def empty(self) -> Total:
        return ZERO_TOTAL

    def pack(self, partial: Total) -> Packed:
        return partial.pack()

    def unpack(self, data: Any) -> Total:
        return Total.unpack(data)


def _whole(total: Total) -> int:
    mantissa, exponent = total.number
    assert exponent >= 0, "a sum of integers is an integer"
    return mantissa << exponent
