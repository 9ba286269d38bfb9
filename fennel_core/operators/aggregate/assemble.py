"""Assemble the values of aggregations over ranges of time from tiles.

Theory. The ends of all ranges that are requested for one key cut time into slices. Tiles return one
partial per slice and aggregator, a range is a run of adjacent slices, and partials add up. Where a
partial no longer holds enough (INCOMPLETE), the key is read once more, from its events.

Example. For the ranges (0, 60] and (30, 60] the ends are 0, 30 and 60, and the slices are
(-inf, 0], (0, 30] and (30, 60]. The first range merges the partials of the last two slices, the
second range takes the partial of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fennel_core.aggregates.aggregation import INCOMPLETE, Aggregator
from fennel_core.operators.aggregate.tile_codec import Partials
from fennel_core.operators.aggregate.tile_reader import TileQuery
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.step import StateReader

CHUNK_KEYS = 512
"""Keys read at once: each may load a few buffers of `BUFFER_RECORDS` records into memory."""
TimeRange = tuple[int, int]
"""Events with low < t <= high, in microseconds."""


class Assembler:
    """Assembles rows of values: value j is that of `aggregators[wanted[j]]` over range j."""

    def __init__(
        self, tiles: Tiles, aggregators: Sequence[Aggregator[Any]], wanted: Sequence[int]
    ) -> None:
        self._tiles = tiles
        self._aggregators = tuple(aggregators)
        self._exhaustive = tuple(aggregator.exhaustive() for aggregator in aggregators)
        self._wanted = tuple(wanted)

    def values(
        self,
        reads: StateReader,
        keys: Sequence[bytes],
        ranges: Sequence[Sequence[TimeRange]],
        as_of: Sequence[int],
    ) -> Gradual[list[list[object]]]:
        """Return, per key, the wanted values over its ranges (low <= high) as of its time."""
        if len(keys) > CHUNK_KEYS:
            found: list[list[object]] = []
            for start in range(0, len(keys), CHUNK_KEYS):
                part = slice(start, start + CHUNK_KEYS)
                found += yield from self.values(reads, keys[part], ranges[part], as_of[part])
            return found
        ends = [sorted({end for span in spans for end in span}) for spans in ranges]
        width = max(map(len, ends), default=0)
        # Tiles expect the same number of slices for every key; those after the last are empty.
        queries = [
            TileQuery(key, (*own, *own[-1:] * (width - len(own))))
            for key, own in zip(keys, ends, strict=True)
        ]
        out: list[list[object]] = []
        incomplete: list[int] = []
        read = yield from self._tiles.read(reads, queries)
        for i, slices in enumerate(read):
            row = yield from self._row(self._aggregators, slices, ends[i], ranges[i], as_of[i])
            if any(value is INCOMPLETE for value in row):
                incomplete.append(i)
            out.append(row)
        if incomplete:
            wanted = [queries[i] for i in incomplete]
            again = yield from self._tiles.read(reads, wanted, exhaustive=True)
            for i, slices in zip(incomplete, again, strict=True):
                out[i] = yield from self._row(
                    self._exhaustive, slices, ends[i], ranges[i], as_of[i]
                )
                assert all(value is not INCOMPLETE for value in out[i]), "all events were read"
        return out

    def _row(
        self,
        aggregators: Sequence[Aggregator[Any]],
        slices: list[Partials],
        ends: list[int],
        ranges: Sequence[TimeRange],
        as_of: int,
    ) -> Gradual[list[object]]:
        found = []
        for j, (low, high) in zip(self._wanted, ranges, strict=True):
            yield  # a value may be a list of hundreds of thousands
            aggregator = aggregators[j]
            # A slice includes its end, so a range begins with the slice after its low end.
            inside = slices[ends.index(low) + 1 : ends.index(high) + 1]
            partial = aggregator.empty
            for one in inside:
                partial = aggregator.accumulate(partial, one[j])
            yield
            found.append(aggregator.finalize(partial, as_of))
        return found
