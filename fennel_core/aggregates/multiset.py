"""Multisets of elements with signed counts, whole or only their first elements.

They are the partials of every aggregation that is not a sum.

Theory. A `Multiset` maps elements to non-zero counts. A `TopElements` keeps the first elements of a
multiset in some order, and `edge`, the last element that it kept when it was cut. It ignores every
element beyond the edge, so the rest stays exact under both merging and deletion. When it was cut
and all elements that it kept have been retracted, the result is INCOMPLETE, not a wrong value.

Example. Max with 2 kept elements, over 9, 7, 5 and 3: the partial is {9: 1, 7: 1} with edge 7. A
retraction of 3 is beyond the edge and is ignored; after a retraction of 9 the maximum is 7; after
one of 7 as well the partial is empty, and the maximum is unknown until the events are read again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import compress
from typing import Any

from fennel_core.aggregates.aggregation import Aggregator, AnyEvents, Packed, pack_int

_HALF = 1 << 63
Multiset = dict[Any, int]
MAX_PACKED = 256
"""Distinct elements up to which a whole multiset is kept in a tile."""
MAX_TOP_ELEMENTS = 64
"""Elements up to which a `TopElements` is kept in a tile."""


def multisets(elements: Sequence[Any], events: AnyEvents) -> list[Multiset]:
    """Return the multiset of each segment."""
    if events.all_added:
        return [dict(Counter(elements[start:stop])) for start, stop in events.bounds]
    added = events.added
    out = []
    for start, stop in events.bounds:
        here, plus = elements[start:stop], added[start:stop]
        net = Counter(compress(here, plus))
        net.subtract(compress(here, [not sign for sign in plus]))
        out.append({element: count for element, count in net.items() if count})
    return out


def union(a: Multiset, b: Multiset, sign: int = 1) -> Multiset:
    """Return a + sign · b."""
    out = dict(a)
    add_to(out, b, sign)
    return out


def add_to(total: Multiset, part: Multiset, sign: int = 1) -> None:
    """Add sign · part to `total`."""
    for element, count in part.items():
        sum_ = total.get(element, 0) + sign * count
        if sum_:
            total[element] = sum_
        else:
            del total[element]


def pack_elements(elements: Sequence[Any]) -> list[Any]:
    """Return elements in a form that msgpack can carry: integers beyond 64 bits (decimals) become
    ["i", bytes].
    """
    return [
        ["i", pack_int(e)] if isinstance(e, int) and not -_HALF <= e < _HALF else e
        for e in elements
    ]


def unpack_elements(data: Sequence[Any]) -> list[Any]:
    """Return the elements that `pack_elements` packed."""
    return [
        int.from_bytes(item[1], "little", signed=True)
        if isinstance(item, list) and item[0] == "i"
        else item
        for item in data
    ]


class MultisetAggregator(Aggregator[Multiset]):
    """An aggregator whose partial is the multiset of all its elements."""

    @abstractmethod
    def elements(self, events: AnyEvents) -> Sequence[Any]:
        """Return the element of each event."""

    def update(self, events: AnyEvents) -> list[Multiset]:
        return multisets(self.elements(events), events)

    def merge(self, a: Multiset, b: Multiset) -> Multiset:
        return union(a, b)

    def accumulate(self, total: Multiset, part: Multiset) -> Multiset:
        """Add `part` in place: to copy the total at each part would take quadratic time."""
        add_to(total, part)
        return total

    def delete(self, whole: Multiset, part: Multiset) -> Multiset:
        return union(whole, part, -1)

    def retract(self, total: Multiset, part: Multiset) -> Multiset:
        """Take `part` out in place."""
        add_to(total, part, -1)
        return total

    @property
    def empty(self) -> Multiset:
        return {}

    def pack(self, partial: Multiset) -> Packed:
        if len(partial) > MAX_PACKED:
            return None
        return [pack_elements(list(partial)), list(partial.values())]

    def unpack(self, data: Any) -> Multiset:
        return dict(zip(unpack_elements(data[0]), data[1], strict=True))


@dataclass(frozen=True, slots=True)
class TopElements:
    """The first elements of a multiset. `edge`: the last element that the tightest cut kept, in a
    tuple; None if nothing was cut.
    """

    counts: Multiset
    edge: tuple[Any] | None


class TopElementsAggregator(Aggregator[TopElements]):
    """An aggregator that needs only the first `keep` elements in ascending order, in descending
    order if `last_first`.
    """

    def __init__(self, keep: int, *, last_first: bool) -> None:
        self._keep: int | None = keep
        self._last_first = last_first

    @abstractmethod
    def elements(self, events: AnyEvents) -> Sequence[Any]:
        """Return the element of each event; None: the event does not count."""

    def update(self, events: AnyEvents) -> list[TopElements]:
        out = []
        for counts in multisets(self.elements(events), events):
            counts.pop(None, None)
            out.append(self._cut(TopElements(counts, None)))
        return out

    def merge(self, a: TopElements, b: TopElements) -> TopElements:
        return self._combine(a, b, 1)

    def delete(self, whole: TopElements, part: TopElements) -> TopElements:
        return self._combine(whole, part, -1)

    @property
    def is_deletable(self) -> bool:
        return False

    @property
    def empty(self) -> TopElements:
        return TopElements({}, None)

    def first(self, partial: TopElements) -> list[tuple[Any, int]]:
        """Return the elements that are present, in order, with their counts. If `partial.edge` is
        set, there may be others after them.
        """
        return sorted(
            ((e, count) for e, count in partial.counts.items() if count > 0),
            reverse=self._last_first,
        )

    def pack(self, partial: TopElements) -> Packed:
        if len(partial.counts) > MAX_TOP_ELEMENTS or (
            not partial.counts and partial.edge is not None
        ):
            return None
        edge = None if partial.edge is None else pack_elements(partial.edge)
        return [pack_elements(list(partial.counts)), list(partial.counts.values()), edge]

    def unpack(self, data: Any) -> TopElements:
        counts = dict(zip(unpack_elements(data[0]), data[1], strict=True))
        return TopElements(counts, None if data[2] is None else (unpack_elements(data[2])[0],))

    def exhaustive(self) -> TopElementsAggregator:
        whole = copy(self)
        whole._keep = None
        return whole

    def _combine(self, a: TopElements, b: TopElements, sign: int) -> TopElements:
        if not b.counts and b.edge is None:
            return a
        edge = self._tighter_edge(a.edge, b.edge)
        counts = union(a.counts, b.counts, sign)
        if edge is not None:
            last = edge[0]
            counts = {
                element: count
                for element, count in counts.items()
                if not self._beyond(element, last)
            }
        return self._cut(TopElements(counts, edge))

    def _tighter_edge(self, a: tuple[Any] | None, b: tuple[Any] | None) -> tuple[Any] | None:
        if a is None or b is None:
            return b if a is None else a
        return b if self._beyond(a[0], b[0]) else a

    def _beyond(self, element: Any, edge: Any) -> bool:
        return bool(element < edge) if self._last_first else bool(element > edge)

    def _cut(self, top: TopElements) -> TopElements:
        if self._keep is None or len(top.counts) <= self._keep:
            return top
        ordered = sorted(top.counts, reverse=self._last_first)
        present = 0
        for rank, element in enumerate(ordered, 1):
            present += top.counts[element] > 0
            if present == self._keep and rank < len(ordered):
                return TopElements({e: top.counts[e] for e in ordered[:rank]}, (element,))
        return top
