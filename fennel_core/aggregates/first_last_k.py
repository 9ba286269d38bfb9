"""LastK and FirstK: the values of the newest or oldest events, ordered by (timestamp, position).

Theory. An element is (timestamp, position, msgpack of the value). With `dedup` an event whose value
occurred before is skipped: newest first keeps the newest occurrence, oldest first the oldest, and
the limit applies to the remaining events.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from fennel_core.aggregates.aggregation import INCOMPLETE, AnyEvents, Events
from fennel_core.aggregates.multiset import TopElements, TopElementsAggregator
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.records import POSITION, ColumnKind, column_kind
from fennel_core.aggregates.totals import to_result
from fennel_core.vocab.dtypes import Dtype

NULL = b"\xc0"
SPARE = 4
"""Elements kept beyond the limit, so that some can be retracted before the events must be read
again.
"""
_encode = msgspec.msgpack.Encoder().encode


class FirstLastKAggregator(TopElementsAggregator):
    """The `limit` newest or oldest values. `time`: the column to order by, if it is not the event's
    own time.
    """

    def __init__(
        self,
        of: str,
        dtype: Dtype,
        limit: int,
        *,
        newest: bool,
        dedup: bool,
        dropnull: bool,
        time: str | None = None,
    ) -> None:
        super().__init__((2 * limit if dedup else limit) + SPARE, last_first=newest)
        self._time = time
        self._of, self._dtype, self._limit, self._dedup, self._dropnull = (
            of,
            dtype,
            limit,
            dedup,
            dropnull,
        )
        self._heaped, self._decimal = (
            column_kind(dtype) is ColumnKind.RAW,
            column_kind(dtype) is ColumnKind.DECIMAL,
        )

    def prepare(self) -> tuple[str, ...]:
        return (self._of, POSITION) if self._time is None else (self._of, POSITION, self._time)

    def elements(self, events: AnyEvents) -> Sequence[Any]:
        values = events.column(self._of).elements()
        if self._heaped:
            packed = [NULL if v is None else v for v in values]
        else:
            packed = list(
                map(
                    _encode,
                    [v if v is None else to_result(v, self._dtype) for v in values]
                    if self._decimal
                    else values,
                )
            )
        times = events.times if self._time is None else events.column(self._time).elements()
        placed = zip(times, events.column(POSITION).elements(), packed, strict=True)
        return [None if self._dropnull and element[2] == NULL else element for element in placed]

    def finalize(self, partial: TopElements, as_of: int) -> object:  # noqa: ARG002  # the contract of Aggregator
        values = [value for (_, _, value), count in self.first(partial) for _ in range(count)]
        if self._dedup:
            values = list(dict.fromkeys(values))
        if len(values) < self._limit and partial.edge is not None:
            return INCOMPLETE
        return [msgspec.Raw(value) for value in values[: self._limit]]

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """See `Aggregator.over`. No event is a retraction: cancel those out before."""
        assert events.all_added, "events are settled before ranges are read"
        assert self._time is None, "events are sorted by their own time"
        elements = self.elements(events)
        counts = [element is not None for element in elements]
        kept = list(compress(elements, counts))
        before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        bounds = zip(before[ranges.starts].tolist(), before[ranges.stops].tolist(), strict=True)
        return [self._values(kept, start, stop) for start, stop in bounds]

    def _values(self, elements: Sequence[Any], start: int, stop: int) -> list[object]:
        """Return the values of elements [start, stop), which are sorted but for their values."""
        size = self._limit
        while True:
            some = elements[slice(*self._end(elements, start, stop, size))]
            values = [value for _, _, value in sorted(some, reverse=self._last_first)]
            if self._dedup:
                values = list(dict.fromkeys(values))
            if len(values) >= self._limit or len(some) == stop - start:
                return [msgspec.Raw(value) for value in values[: self._limit]]
            size *= 2

    def _end(self, elements: Sequence[Any], start: int, stop: int, size: int) -> tuple[int, int]:
        """Return the bounds of the newest or oldest `size` elements, whole positions."""
        if self._last_first:
            first = max(start, stop - size)
            while first > start and elements[first - 1][:2] == elements[first][:2]:
                first -= 1
            return first, stop
        last = min(stop, start + size)
        while last < stop and elements[last][:2] == elements[last - 1][:2]:
            last += 1
        return start, last

    def unpack(self, data: Any) -> TopElements:
        counts = {tuple(element): count for element, count in zip(data[0], data[1], strict=True)}
        return TopElements(counts, None if data[2] is None else (tuple(data[2][0]),))
