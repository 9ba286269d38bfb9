"""Multisets of elements with signed counts, whole or only their best part: the partials of
everything that is not a sum.

Theory. A `Multiset` maps elements to non-zero counts. A `TopElements` keeps the best elements of a
bag in some order and remembers `edge`, the last one it kept when it cut: about elements beyond the
edge it says nothing, and whatever comes or goes there is ignored, so what it does say stays exact
under both merging and deletion. A head that was cut and has lost what it kept cannot answer: that
is INCOMPLETE, not a wrong value.
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
"""Distinct elements up to which a whole bag is kept in a tile."""
MAX_HEAD = 64
"""Elements up to which a head is kept in a tile."""


def multisets(elements: Sequence[Any], events: AnyEvents) -> list[Multiset]:
    """The bag of each segment."""
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
    """a + sign · b."""
    out = dict(a)
    for element, count in b.items():
        total = out.get(element, 0) + sign * count
        if total:
            out[element] = total
        else:
            del out[element]
    return out


def elements_to_pack(elements: Sequence[Any]) -> list[Any]:
    """Elements as msgpack can carry them: integers beyond 64 bits (decimals) become ["i",
    bytes].
    """
    return [
        ["i", pack_int(e)] if isinstance(e, int) and not -_HALF <= e < _HALF else e
        for e in elements
    ]


def elements_of_pack(data: Sequence[Any]) -> list[Any]:
    """The inverse of `elements_to_pack`."""
    return [
        int.from_bytes(item[1], "little", signed=True)
        if isinstance(item, list) and item[0] == "i"
        else item
        for item in data
    ]


class MultisetAggregator(Aggregator[Multiset]):
    """An aggregation whose partial is the bag of all its elements."""

    @abstractmethod
    def elements(self, events: AnyEvents) -> Sequence[Any]:
        """The element of each event."""

    def update(self, events: AnyEvents) -> list[Multiset]:
        return multisets(self.elements(events), events)

    def merge(self, a: Multiset, b: Multiset) -> Multiset:
        return union(a, b)

    def delete(self, whole: Multiset, part: Multiset) -> Multiset:
        return union(whole, part, -1)

    @property
    def empty(self) -> Multiset:
        return {}

    def pack(self, partial: Multiset) -> Packed:
        if len(partial) > MAX_PACKED:
            return None
        return [elements_to_pack(list(partial)), list(partial.values())]

    def unpack(self, data: Any) -> Multiset:
        return dict(zip(elements_of_pack(data[0]), data[1], strict=True))


@dataclass(frozen=True, slots=True)
class TopElements:
    """`bag`: the best elements; `edge`: None if nothing was cut, else the last element that was
    kept by the tightest cut.
    """

    bag: Multiset
    edge: tuple[Any] | None


class TopElementsAggregator(Aggregator[TopElements]):
    """An aggregation that needs only the first elements in some order. `keep` is how many a head
    holds; `last_first` reverses the order.
    """

    def __init__(self, keep: int, *, last_first: bool) -> None:
        self._keep: int | None = keep
        self._last_first = last_first

    @abstractmethod
    def elements(self, events: AnyEvents) -> Sequence[Any]:
        """The element of each event; None takes no part."""

    def update(self, events: AnyEvents) -> list[TopElements]:
        out = []
        for bag in multisets(self.elements(events), events):
            bag.pop(None, None)
            out.append(self._cut(TopElements(bag, None)))
        return out

    def merge(self, a: TopElements, b: TopElements) -> TopElements:
        return self._together(a, b, 1)

    def delete(self, whole: TopElements, part: TopElements) -> TopElements:
        return self._together(whole, part, -1)

    @property
    def is_deletable(self) -> bool:
        return False

    @property
    def empty(self) -> TopElements:
        return TopElements({}, None)

    def first(self, partial: TopElements) -> list[tuple[Any, int]]:
        """Elements that are present, best first, with their counts. Beyond them nothing is known if
        `partial.edge` is set.
        """
        return sorted(
            ((e, count) for e, count in partial.bag.items() if count > 0), reverse=self._last_first
        )

    def pack(self, partial: TopElements) -> Packed:
        if len(partial.bag) > MAX_HEAD or (not partial.bag and partial.edge is not None):
            return None
        edge = None if partial.edge is None else elements_to_pack(partial.edge)
        return [elements_to_pack(list(partial.bag)), list(partial.bag.values()), edge]

    def unpack(self, data: Any) -> TopElements:
        bag = dict(zip(elements_of_pack(data[0]), data[1], strict=True))
        return TopElements(bag, None if data[2] is None else (elements_of_pack(data[2])[0],))

    def exhaustive(self) -> TopElementsAggregator:
        whole = copy(self)
        whole._keep = None
        return whole

    def _together(self, a: TopElements, b: TopElements, sign: int) -> TopElements:
        if not b.bag and b.edge is None:
            return a
        edge = (
            a.edge
            if b.edge is None
            else b.edge
            if a.edge is None
            else self._tighter(a.edge, b.edge)
        )
        bag = union(a.bag, b.bag, sign)
        if edge is not None:
            bag = {
                element: count
                for element, count in bag.items()
                if not self._beyond(element, edge[0])
            }
        return self._cut(TopElements(bag, edge))

    def _tighter(self, a: tuple[Any], b: tuple[Any]) -> tuple[Any]:
        return b if self._beyond(a[0], b[0]) else a

    def _beyond(self, element: Any, edge: Any) -> bool:
        return bool(element < edge) if self._last_first else bool(element > edge)

    def _cut(self, head: TopElements) -> TopElements:
        if self._keep is None or len(head.bag) <= self._keep:
            return head
        best = sorted(head.bag, reverse=self._last_first)
        present = 0
        for rank, element in enumerate(best, 1):
            present += head.bag[element] > 0
            if present == self._keep and rank < len(best):
                return TopElements({e: head.bag[e] for e in best[:rank]}, (element,))
        return head
