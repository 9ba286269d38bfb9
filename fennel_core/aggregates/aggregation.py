"""The six verbs every aggregation has, and the events they work on.

Theory. Input may be taken back, so a partial aggregate is an element of a commutative group over
signed events: `update` of events with weight −1 is the deletion of the same events with weight +1,
`merge` is addition, and the result depends on the bag of events alone. That is what makes tiles
right: a tile is the partial of everything that was ever filed under its span, whatever the order.
Where a group element would be too large to keep (a multiset of every value), `pack` says so by
None, or keeps only its best part and `finalize` answers `INCOMPLETE` when that part has run dry;
then the reader goes back to the events themselves.
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
from fennel_core.aggregates.records import ColumnValues, Records
from fennel_core.aggregates.small import SmallEvents

P = TypeVar("P")
Packed: TypeAlias = "int | float | str | bytes | Sequence[Packed] | None"
"""A packed partial: a value that msgpack can carry."""


class Incomplete(Enum):
    INCOMPLETE = "unknown"


INCOMPLETE = Incomplete.INCOMPLETE


@dataclass(frozen=True)
class Events:
    """Events sorted into segments that begin at `starts` (none empty); every weight is +1 or −1."""

    records: Records
    starts: Ints

    @classmethod
    def of(cls, records: Records, starts: Ints) -> Events:
        """Records sorted by segment; one that stands for several equal events is unfolded."""
        times = np.abs(records.weight)
        if len(times) == 0 or times.max() == 1:
            return cls(records, starts)
        ends = np.concatenate([[0], np.cumsum(times)])
        unfolded = records.take(np.repeat(np.arange(len(records)), times))
        fixed = unfolded.fixed.copy()
        fixed["weight"] = np.sign(fixed["weight"])
        return cls(Records(unfolded.layout, fixed, unfolded.blobs), ends[starts].astype(np.int64))

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
        """(start, stop) of each segment."""
        edges = [*self.starts.tolist(), len(self.records)]
        return list(pairwise(edges))


AnyEvents = Events | SmallEvents


class Aggregator(ABC, Generic[P]):
    """One aggregated column. `P` is its partial aggregate, never mutated once made."""

    @abstractmethod
    def prepare(self) -> tuple[str, ...]:
        """The input columns whose values must be kept of every event (`records.POSITION` where
        order matters).
        """

    @abstractmethod
    def update(self, events: AnyEvents) -> list[P]:
        """The partial of each segment."""

    @abstractmethod
    def merge(self, a: P, b: P) -> P:
        """The partial of both bags together."""

    @abstractmethod
    def delete(self, whole: P, part: P) -> P:
        """The partial of `whole` without the events of `part`."""

    @property
    def is_deletable(self) -> bool:
        """Does `delete` always leave enough to finalize? If not, `finalize` may answer INCOMPLETE
        after it.
        """
        return True

    @abstractmethod
    def finalize(self, partial: P, as_of: int) -> object:
        """The value in the form of `vocab.keys.physical`, as of a time in microseconds; INCOMPLETE
        where the partial does not hold enough.
        """

    @property
    @abstractmethod
    def empty(self) -> P:
        """The partial of no events."""

    @abstractmethod
    def pack(self, partial: P) -> Packed:
        """Return the partial in a form that msgpack can carry, None if it is too large to keep."""

    @abstractmethod
    def unpack(self, data: Any) -> P:
        """The inverse of `pack`."""

    def exhaustive(self) -> Aggregator[P]:
        """The same aggregation without any limit on what a partial holds: never INCOMPLETE."""
        return self


def pack_int(value: int) -> int | bytes:
    """An integer of any size for msgpack, which carries 64 bits."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def unpack_int(data: int | bytes) -> int:
    return int.from_bytes(data, "little", signed=True) if isinstance(data, bytes) else data
