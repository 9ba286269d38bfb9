"""A few events of one key as Python values: the scalar path, which most lookups take.

Theory. NumPy costs about a microsecond per call, whatever the size; a lookup of a key with ten
events would make eighty calls. For so few events the same aggregations run on lists, with C-level
loops where nothing is retracted. `SmallEvents` is one segment with the interface of
`aggregation.Events`. Both give the same partials, to the last bit, because sums are exact in both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

from fennel_core.aggregates.records import ColumnKind, PackedRecords, RecordLayout

MAX_SMALL_EVENTS = 400
"""Events up to which lists are faster than arrays."""
_TIMES, _WEIGHTS, _CELLS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class SmallValues:
    """One column; None for null."""

    items: Sequence[Any]

    def elements(self) -> Sequence[Any]:
        return self.items


@dataclass(frozen=True)
class SmallEvents:
    """One segment of events. `columns`: times, weights (+1 or -1), then, for each stored column of
    the layout, its cells and whether each cell holds a value.
    """

    layout: RecordLayout
    columns: Sequence[Sequence[Any]]

    @property
    def times(self) -> Sequence[int]:
        return self.columns[_TIMES]

    @property
    def weights(self) -> Sequence[int]:
        return self.columns[_WEIGHTS]

    @cached_property
    def all_added(self) -> bool:
        return min(self.weights) > 0

    @property
    def added(self) -> list[bool]:
        return [weight > 0 for weight in self.weights]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(0, len(self.times))]

    def column(self, name: str) -> SmallValues:
        i = next(i for i, (stored, _) in enumerate(self.layout.stored) if stored == name)
        cells, valid = self.columns[_CELLS + 2 * i], self.columns[_CELLS + 2 * i + 1]
        if self.layout.stored[i][1] is ColumnKind.DECIMAL:
            cells = [int.from_bytes(cell, "little", signed=True) for cell in cells]
        return SmallValues(
            cells
            if all(valid)
            else [cell if there else None for cell, there in zip(cells, valid, strict=True)]
        )

    def split(self, ends: Sequence[int]) -> list[tuple[int, SmallEvents]]:
        """Return the events of each time slice that has some, with the number of the slice.

        `ends` are the ends (inclusive) of the slices; events after the last one are left out.
        """
        if max(self.times) <= ends[0]:
            return [(0, self)]
        slices = [bisect_left(ends, time) for time in self.times]
        found = []
        for number in sorted(set(slices)):
            if number < len(ends):
                inside = [one == number for one in slices]
                columns = [list(compress(column, inside)) for column in self.columns]
                found.append((number, SmallEvents(self.layout, columns)))
        return found


def parse_small(layout: RecordLayout, packs: Sequence[PackedRecords]) -> SmallEvents:
    """Return the events of some packs, of which at least one is not empty. A merged record is
    repeated.
    """
    rows = list(layout.packer.iter_unpack(b"".join(structs for structs, _ in packs)))
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    if layout.heaped:
        columns = _with_heap(layout, columns, b"".join(heap for _, heap in packs))
    times = list(map(abs, columns[_WEIGHTS]))
    if max(times) > 1:
        columns = [
            [value for value, count in zip(column, times, strict=True) for _ in range(count)]
            for column in columns
        ]
        columns[_WEIGHTS] = [1 if weight > 0 else -1 for weight in columns[_WEIGHTS]]
    return SmallEvents(layout, columns)


def _with_heap(
    layout: RecordLayout, columns: list[Sequence[Any]], heap: bytes
) -> list[Sequence[Any]]:
    """Return the columns with the lengths of heaped cells replaced by the cells."""
    heaped = [_CELLS + 2 * i for i in layout.heaped]
    cells: list[list[bytes]] = [[] for _ in heaped]
    start = 0
    for lengths in zip(*(columns[column] for column in heaped), strict=True):
        for out, length in zip(cells, lengths, strict=True):
            out.append(heap[start : start + length])
            start += length
    assert start == len(heap), "the heap holds exactly the bytes its records name"
    replaced = dict(zip(heaped, cells, strict=True))
    return [replaced.get(i, column) for i, column in enumerate(columns)]
