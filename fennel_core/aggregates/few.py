"""A handful of events of one key, as Python values: what most lookups read.

Theory. NumPy pays about a microsecond per call, whatever the size; a lookup of a key with ten events would make eighty calls. For so few
events the same aggregations run on lists. `FewEvents` is one segment with the face of `verbs.Events`; both give the same partials, to the
last bit, because sums are exact either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fennel_core.aggregates.records import Kind, Layout

MAX_EVENTS = 48
"""Events up to which lists are faster than arrays."""
Row = tuple[Any, ...]
"""Time, weight, then (cell, is there a value) per stored column; heaped cells hold the bytes themselves."""


@dataclass(frozen=True, slots=True)
class FewValues:
    """One column; None for null."""

    items: list[Any]

    def elements(self) -> list[Any]:
        return self.items


@dataclass(frozen=True)
class FewEvents:
    layout: Layout
    rows: Sequence[Row]

    @cached_property
    def times(self) -> list[int]:
        return [row[0] for row in self.rows]

    @cached_property
    def weights(self) -> list[int]:
        return [row[1] for row in self.rows]

    @cached_property
    def all_added(self) -> bool:
        return min(self.weights) > 0

    @property
    def added(self) -> list[bool]:
        return [weight > 0 for weight in self.weights]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(0, len(self.rows))]

    def column(self, name: str) -> FewValues:
        i = next(i for i, (stored, _) in enumerate(self.layout.stored) if stored == name)
        cell, valid = 2 + 2 * i, 3 + 2 * i
        if self.layout.stored[i][1] is Kind.DECIMAL:
            return FewValues([int.from_bytes(row[cell], "little", signed=True) if row[valid] else None for row in self.rows])
        return FewValues([row[cell] if row[valid] else None for row in self.rows])


def parse(layout: Layout, structs: bytes, heap: bytes) -> list[Row]:
    """The rows of a pack; one that stands for several equal events comes as often."""
    rows: list[Row] = list(layout.packer.iter_unpack(structs))
    if layout.heaped:
        rows = _with_heap(layout, rows, heap)
    if any(row[1] not in (1, -1) for row in rows):
        rows = [(row[0], 1 if row[1] > 0 else -1, *row[2:]) for row in rows for _ in range(abs(row[1]))]
    return rows


def _with_heap(layout: Layout, rows: list[Row], heap: bytes) -> list[Row]:
    out = []
    start = 0
    for row in rows:
        cells = list(row)
        for i in layout.heaped:
            stop = start + cells[2 + 2 * i]
            cells[2 + 2 * i] = heap[start:stop]
            start = stop
        out.append(tuple(cells))
    assert start == len(heap), "the heap holds exactly the bytes its records name"
    return out
