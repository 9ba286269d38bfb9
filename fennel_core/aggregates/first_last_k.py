"""LastK and FirstK: the values of the newest or oldest events, ordered by (timestamp, position).

Theory. An element is (timestamp, position, msgpack of the value). With `dedup` an event whose value
occurred before is skipped: newest first keeps the newest occurrence, oldest first the oldest, and
the limit applies to the remaining events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fennel_core.aggregates.aggregation import INCOMPLETE, AnyEvents
from fennel_core.aggregates.multiset import TopElements, TopElementsAggregator
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

    def unpack(self, data: Any) -> TopElements:
        counts = {tuple(element): count for element, count in zip(data[0], data[1], strict=True)}
        return TopElements(counts, None if data[2] is None else (tuple(data[2][0]),))
