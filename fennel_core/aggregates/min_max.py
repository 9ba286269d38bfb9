"""Min and Max, and the time of the last event: the first element of the values in ascending or
descending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fennel_core.aggregates.aggregation import INCOMPLETE, AnyEvents, Events
from fennel_core.aggregates.multiset import TopElements, TopElementsAggregator
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.small import SmallEvents
from fennel_core.aggregates.totals import default_result, to_result
from fennel_core.vocab.dtypes import Dtype

KEPT_ELEMENTS = 6
"""Elements a tile keeps, so that some of the first can be retracted before the events must be read
again.
"""


class MinMaxAggregator(TopElementsAggregator):
    """The smallest or the largest value of `of`; `default` when there is none."""

    def __init__(self, of: str, dtype: Dtype, default: float | None, *, largest: bool) -> None:
        super().__init__(KEPT_ELEMENTS, last_first=largest)
        self._of, self._dtype = of, dtype
        self._default = default_result(default, dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.column(self._of).elements()

    def finalize(self, partial: TopElements, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        found = self.first(partial)
        if found:
            return to_result(found[0][0], self._dtype)
        return self._default if partial.edge is None else INCOMPLETE

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`. No event is a retraction: cancel those out before."""
        assert events.all_added, "events are settled before ranges are read"
        values = events.column(self._of)
        distinct, ranks = np.unique(values.data, return_inverse=True)
        ranks = ranks + 1 if self._last_first else len(distinct) - ranks
        if values.valid is not None:
            ranks = np.where(values.valid, ranks, 0)
        ordered = distinct if self._last_first else distinct[::-1]
        results = [to_result(element, self._dtype) for element in ordered.tolist()]
        return [
            results[rank - 1] if rank else self._default for rank in ranges.largest(ranks).tolist()
        ]


class LastTimeAggregator(TopElementsAggregator):
    """The time of the last event in microseconds; None when there is none."""

    def __init__(self) -> None:
        super().__init__(KEPT_ELEMENTS, last_first=True)

    def prepare(self) -> tuple[str, ...]:
        return ()

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.times

    def update(self, events: AnyEvents) -> list[TopElements]:
        """Return the top elements of each segment; the largest time and its count suffice for a
        segment without retractions, unless every element is needed.

        This is decided per segment, because a partial must not depend on the other segments that
        are updated with it.
        """
        if self._keep is None:
            # A retraction of the largest time may be in another segment.
            return super().update(events)
        if not events.all_added:
            tops, added, every = super().update(events), events.added, events.times
            for i, (start, stop) in enumerate(events.bounds):
                if all(added[start:stop]):
                    tops[i] = _last(every[start:stop])
            return tops
        if isinstance(events, SmallEvents):
            return [_last(events.times)]
        lengths = np.diff(events.starts, append=len(events.ts))
        last = np.maximum.reduceat(events.ts, events.starts)
        counts = np.add.reduceat(
            events.ts == np.repeat(last, lengths), events.starts, dtype=np.int64
        )
        found = zip(last.tolist(), counts.tolist(), lengths.tolist(), strict=True)
        return [
            TopElements({time: count}, None if count == length else (time,))
            for time, count, length in found
        ]

    def finalize(self, partial: TopElements, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        found = self.first(partial)
        if found:
            return found[0][0]
        return None if partial.edge is None else INCOMPLETE


def _last(times: Sequence[int]) -> TopElements:
    """Return the top elements of times none of which is retracted: the largest and its count."""
    time = max(times)
    count = list(times).count(time)
    return TopElements({time: count}, None if count == len(times) else (time,))
