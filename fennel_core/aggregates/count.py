"""Count: the number of rows, or of rows that have a value."""

from __future__ import annotations

from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Events, Packed
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.totals import counts, counts_over


class CountAggregator(Aggregator[int]):
    """Counts rows where column `of` is not null, or every row if `of` is None."""

    def __init__(self, of: str | None) -> None:
        self._of = of

    def prepare(self) -> tuple[str, ...]:
        return () if self._of is None else (self._of,)

    def update(self, events: AnyEvents) -> list[int]:
        return counts(events, self._of)

    def merge(self, a: int, b: int) -> int:
        return a + b

    def delete(self, whole: int, part: int) -> int:
        return whole - part

    def finalize(self, partial: int, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        return partial

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`."""
        return list(counts_over(events, self._of, ranges))

    @property
    def empty(self) -> int:
        return 0

    def pack(self, partial: int) -> Packed:
        return partial

    def unpack(self, data: int) -> int:
        return data
