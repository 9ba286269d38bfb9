"""The interface of every aggregation, and the events that aggregations work on.

Theory. Input may be retracted, so a partial aggregate is an element of a commutative group over
signed events: `update` of events with weight -1 is the deletion of the same events with weight +1,
`merge` is addition, and the result depends on the multiset of events alone. That is what makes
tiles correct: a tile is the partial of everything that was ever added under its span, whatever the
order. Where a group element would be too large to keep (a multiset of every value), `pack` returns
None, or keeps only its first elements, and `finalize` returns INCOMPLETE once too many of those
have been retracted; then the reader goes back to the events themselves.

Example. For `Sum`, the events 5, 7 and 3 in two segments, (5, 7) and (3), have the partials 12 and
3. Merged they are 15; a retraction of 7 has the partial -7, and 15 merged with it is 8, which is
also the partial of 5 and 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.records import ColumnValues, Records
from fennel_core.aggregates.small import SmallEvents

P = TypeVar("P")
Packed: TypeAlias = "int | float | str | bytes | Sequence[Packed] | None"
"""A packed partial: a value that msgpack can carry."""


class Incomplete(Enum):
    """The result of `finalize` where a partial no longer holds enough elements."""

    INCOMPLETE = "unknown"


INCOMPLETE = Incomplete.INCOMPLETE


@dataclass(frozen=True)
class Events:
    """Events sorted into segments that begin at `starts` (none empty). Every weight is +1 or -1."""

    records: Records
    starts: Ints

    @classmethod
    def of(cls, records: Records, starts: Ints) -> Events:
        """Return the events of records sorted by segment; merged records are repeated."""
        times = np.abs(records.weight)
        if len(times) == 0 or times.max() == 1:
            return cls(records, starts)
        ends = np.concatenate([[0], np.cumsum(times)])
        repeated = records.take(np.repeat(np.arange(len(records)), times))
        fixed = repeated.fixed.copy()
        fixed["weight"] = np.sign(fixed["weight"])
        return cls(Records(repeated.layout, fixed, repeated.blobs), ends[starts].astype(np.int64))

    @cached_property
    def ts(self) -> Ints:
        return self.records.ts

    @cached_property
    def weight(self) -> Ints:
        return self.records.weight

    @property
    def times(self) -> list[int]:
        out: list[int] = self.ts.tolist()
        return out

    @property
    def added(self) -> list[bool]:
        out: list[bool] = (self.weight > 0).tolist()
        return out

    @cached_property
    def all_added(self) -> bool:
        return bool((self.weight > 0).all())

    @cached_property
    def _columns(self) -> dict[str, ColumnValues]:
        return {}

    def column(self, name: str) -> ColumnValues:
        if name not in self._columns:
            self._columns[name] = self.records.column(name)
        return self._columns[name]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The (start, stop) of each segment."""
        edges = [*self.starts.tolist(), len(self.records)]
        return list(pairwise(edges))


AnyEvents = Events | SmallEvents


class Aggregator(ABC, Generic[P]):
    """Computes one aggregated column. `P` is its partial aggregate; see `accumulate`."""

    @abstractmethod
    def prepare(self) -> tuple[str, ...]:
        """Return the input columns whose values must be kept of every event (`records.POSITION`
        where order matters).
        """

    @abstractmethod
    def update(self, events: AnyEvents) -> list[P]:
        """Return the partial of each segment."""

    @abstractmethod
    def merge(self, a: P, b: P) -> P:
        """Return the partial of the events of both."""

    def accumulate(self, total: P, part: P) -> P:
        """As `merge`, for many partials: it may change `total`, which began as `empty` here.

        No other method changes a partial.
        """
        return self.merge(total, part)

    @abstractmethod
    def delete(self, whole: P, part: P) -> P:
        """Return the partial of `whole` without the events of `part`."""

    @property
    def is_deletable(self) -> bool:
        """Whether `delete` always leaves enough to finalize. If not, `finalize` may return
        INCOMPLETE after it.
        """
        return True

    @abstractmethod
    def finalize(self, partial: P, as_of: int) -> object:
        """Return the value in the form of `vocab.keys.physical` as of a time in microseconds,
        INCOMPLETE where the partial does not hold enough.
        """

    def retract(self, total: P, part: P) -> P:
        """As `delete`, for many partials: it may change `total`, which began as `empty`."""
        return self.delete(total, part)

    def over(self, events: Events, ranges: Ranges) -> list[object]:
        """Return the value over each range of `events`, which are sorted by time within a key.

        A range is a run of segments, and the partial of the range before it is changed by those
        that only one of the two has.
        """
        cuts = np.unique(np.concatenate([ranges.starts, ranges.stops]))
        parts: list[P] = []
        if len(cuts) > 1:
            inside = events.records.take(np.arange(cuts[0], cuts[-1]))
            parts = self.update(Events(inside, cuts[:-1] - cuts[0]))
        first, last = np.searchsorted(cuts, ranges.starts), np.searchsorted(cuts, ranges.stops)
        found: list[object] = []
        total, begin, end = self.empty, 0, 0
        for start, stop, time in zip(first.tolist(), last.tolist(), ranges.times, strict=True):
            if not begin <= start <= end <= stop:
                total, begin, end = self.empty, start, start
            # Out before in: partials of events that are far apart may not be kept.
            for part in parts[begin:start]:
                total = self.retract(total, part)
            for part in parts[end:stop]:
                total = self.accumulate(total, part)
            begin, end = start, stop
            value = self.finalize(total, time)
            assert value is not INCOMPLETE, "the partial of a range has all its events"
            found.append(value)
        return found

    @property
    @abstractmethod
    def empty(self) -> P:
        """The partial of no events."""

    @abstractmethod
    def pack(self, partial: P) -> Packed:
        """Return the partial in a form that msgpack can carry, None if it is too large to keep."""

    @abstractmethod
    def unpack(self, data: Any) -> P:
        """Return the partial that `pack` packed."""

    def exhaustive(self) -> Aggregator[P]:
        """Return the aggregator without any limit on the size of partials: never INCOMPLETE."""
        return self


def pack_int(value: int) -> int | bytes:
    """Return an integer of any size in a form that msgpack, which has 64 bits, can carry."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def unpack_int(data: int | bytes) -> int:
    """Return the integer that `pack_int` packed."""
    return int.from_bytes(data, "little", signed=True) if isinstance(data, bytes) else data
