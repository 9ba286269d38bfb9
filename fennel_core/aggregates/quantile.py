"""Quantile: sorted[clamp(floor(p·n))], without interpolation (client semantics 4.1).

It is exact: the partial is the multiset of all values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fennel_core.aggregates import exact
from fennel_core.aggregates.aggregation import AnyEvents
from fennel_core.aggregates.multiset import Multiset, MultisetAggregator
from fennel_core.aggregates.totals import scale_of
from fennel_core.vocab.dtypes import Dtype


class QuantileAggregator(MultisetAggregator):
    """The p-quantile of the values of `of`; `default` when there is none."""

    def __init__(self, of: str, dtype: Dtype, p: float, default: float | None) -> None:
        self._of, self._p, self._default = of, p, default
        self._unit = 10 ** scale_of(dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.column(self._of).elements()

    def finalize(self, partial: Multiset, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        counts = sorted((value, count) for value, count in partial.items() if value is not None)
        total = sum(count for _, count in counts)
        if not total:
            return self._default
        left = min(math.floor(self._p * total), total - 1)
        for value, count in counts:
            if left < count:
                return exact.divided((value, 0), self._unit) if isinstance(value, int) else value
            left -= count
        raise AssertionError("unreachable: the rank is below the count")
