"""Values of aggregations over ranges of time, assembled from tiles.

Theory. The ends of all ranges asked of one key cut time into intervals; tiles answer with one
partial per interval and aggregation; a range is a run of neighbouring intervals, and partials add
up. Where a tile no longer holds enough (INCOMPLETE), the item is read again from its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from fennel_core.aggregates.aggregation import INCOMPLETE, Aggregator
from fennel_core.operators.aggregate.tile_codec import Partials
from fennel_core.operators.aggregate.tile_reader import TileQuery
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.step import StateReader

CHUNK_ITEMS = 512
"""Items read at once: each may bring a few logs of `tiles.LOG_RECORDS` records into memory."""
TimeRange = tuple[int, int]
"""Events with low < t <= high, in microseconds."""


class Assembler:
    """`wanted[j]` is the number of the aggregation whose value over range j is asked."""

    def __init__(
        self, tiles: Tiles, aggregations: Sequence[Aggregator[Any]], wanted: Sequence[int]
    ) -> None:
        self._tiles = tiles
        self._aggregations = tuple(aggregations)
        self._whole = tuple(aggregation.exhaustive() for aggregation in aggregations)
        self._wanted = tuple(wanted)

    def values(
        self,
        reads: StateReader,
        keys: Sequence[bytes],
        ranges: Sequence[Sequence[TimeRange]],
        as_of: Sequence[int],
    ) -> list[list[object]]:
        """Per item, the values of the wanted aggregations over its ranges (one range each, low <=
        high).
        """
        if len(keys) > CHUNK_ITEMS:
            parts = (
                slice(start, start + CHUNK_ITEMS) for start in range(0, len(keys), CHUNK_ITEMS)
            )
            return [
                values
                for part in parts
                for values in self.values(reads, keys[part], ranges[part], as_of[part])
            ]
        cuts = [sorted({end for span in spans for end in span}) for spans in ranges]
        width = max(map(len, cuts), default=0)
        asked = [
            TileQuery(key, (*ends, *ends[-1:] * (width - len(ends))))
            for key, ends in zip(keys, cuts, strict=True)
        ]
        out: list[list[object]] = []
        unknown: list[int] = []
        for i, intervals in enumerate(self._tiles.read(reads, asked)):
            found = self._item(self._aggregations, intervals, cuts[i], ranges[i], as_of[i])
            if any(value is INCOMPLETE for value in found):
                unknown.append(i)
            out.append(found)
        if unknown:
            again = self._tiles.read(reads, [asked[i] for i in unknown], exhaustive=True)
            for i, intervals in zip(unknown, again, strict=True):
                out[i] = self._item(self._whole, intervals, cuts[i], ranges[i], as_of[i])
                assert all(value is not INCOMPLETE for value in out[i]), "all events are known now"
        return out

    def _item(
        self,
        aggregations: Sequence[Aggregator[Any]],
        intervals: list[Partials],
        cuts: list[int],
        ranges: Sequence[TimeRange],
        as_of: int,
    ) -> list[object]:
        """An event at the cut itself lies in the interval that ends there; so a range starts with
        the interval after its low end.
        """
        found = []
        for j, (low, high) in zip(self._wanted, ranges, strict=True):
            inside = (
                partials[j] for partials in intervals[cuts.index(low) + 1 : cuts.index(high) + 1]
            )
            found.append(
                aggregations[j].finalize(
                    reduce(aggregations[j].merge, inside, aggregations[j].empty), as_of
                )
            )
        return found
