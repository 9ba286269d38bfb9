"""Min and Max, and the time of the last event: the first element of the values in one order or the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fennel_core.aggregates.aggregation import INCOMPLETE, AnyEvents
from fennel_core.aggregates.multiset import TopElements, TopElementsAggregator
from fennel_core.aggregates.small import SmallEvents
from fennel_core.aggregates.totals import default_result, to_result
from fennel_core.vocab.dtypes import Dtype

KEEP = 6
"""Elements a tile keeps, so that some of the best can be taken back before the events must be read
again.
"""


class MinMaxAggregator(TopElementsAggregator):
    def __init__(self, of: str, dtype: Dtype, default: float | None, *, largest: bool) -> None:
        super().__init__(KEEP, last_first=largest)
        self._of, self._dtype = of, dtype
        self._default = default_result(default, dtype)

    def prepare(self) -> tuple[str, ...]:
        return (self._of,)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.column(self._of).elements()

    def finalize(self, partial: TopElements, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregation
        found = self.first(partial)
        if found:
            return to_result(found[0][0], self._dtype)
        return self._default if partial.edge is None else INCOMPLETE


class LastTimeAggregator(TopElementsAggregator):
    """The time of the last event in microseconds; None when there is none."""

    def __init__(self) -> None:
        super().__init__(KEEP, last_first=True)

    def prepare(self) -> tuple[str, ...]:
        return ()

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        return events.times

    def update(self, events: AnyEvents) -> list[TopElements]:
        """As any head; where nothing of a segment is taken back the largest time and its count are
        enough.

        That is decided for each segment by itself: a partial must not depend on what else was at
        hand.
        """
        if not events.all_added:
            heads, added, every = super().update(events), events.added, events.times
            for i, (start, stop) in enumerate(events.bounds):
                if all(added[start:stop]):
                    heads[i] = _last(every[start:stop])
            return heads
        if isinstance(events, SmallEvents):
            return [_last(events.times)]
        lengths = np.diff(events.starts, append=len(events.ts))
        last = np.maximum.reduceat(events.ts, events.starts)
        counts = np.add.reduceat(
            events.ts == np.repeat(last, lengths), events.starts, dtype=np.int64
        )
        found = zip(last.tolist(), counts.tolist(), lengths.tolist(), strict=True)
        return [
            TopElements({moment: count}, None if count == length else (moment,))
            for moment, count, length in found
        ]

    def finalize(self, partial: TopElements, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregation
        found = self.first(partial)
        if found:
            return found[0][0]
        return None if partial.edge is None else INCOMPLETE


def _last(times: Sequence[int]) -> TopElements:
    """The largest of some times that are all there, and its count."""
    moment = max(times)
    count = list(times).count(moment)
    return TopElements({moment: count}, None if count == len(times) else (moment,))
