"""Aggregate over windows that move with the reader: written as events and tiles, assembled when it is read.

Theory. As of q a window of d covers the rows with `t <= q < t + d + 1 s` (client semantics 4.3: whole-second arithmetic, both ends
inclusive); "forever" covers `t <= q`. So q and the moments `q − d − 1 s` of all windows cut time into intervals, every window is a run of
neighbouring intervals up to q, and one walk over the key's tiles (`tiles.py`) yields the partial of each interval. A key is found once it
has had an event at or before q; its row's timestamp is the time of the last change: the last event, or the last expiry of one from a
window. Nothing is emitted, nothing is decided before it is asked, so late rows and retractions need no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import polars as pl

from fennel_core.aggregates.decay import DecayedSum
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.extremes import LastTime
from fennel_core.aggregates.make import make
from fennel_core.aggregates.records import POSITION, Layout, kind_of, of_frame
from fennel_core.aggregates.verbs import UNKNOWN, Aggregation
from fennel_core.operators.aggregate.tiles import ROOTS, Asked, Partials, Tiles
from fennel_core.operators.rows import MIN_TIME, encode
from fennel_core.operators.spec import Aggregate
from fennel_core.operators.step import Outcome, Reads
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import KEY_GROUPS, key_bytes
from fennel_core.vocab.versions import POS, SIGN
from fennel_core.wire import operators as wire

STEP_VERSION = 1
SECOND_US = 1_000_000
_CLOCK = 0
"""The first aggregation of every job: the time of the last event."""


class AggregateStep:
    """The step of a terminal `spec.Aggregate`; serves lookups."""

    def __init__(self, spec: Aggregate) -> None:
        assert spec.terminal, "windows that close are aggregated by another step"
        assert not spec.input.keyed, "a keyed input reaches an aggregation as signed facts"
        self._spec = spec
        made = [make(one, spec.input) for one in spec.specs]
        self._aggregations: tuple[Aggregation[Any], ...] = (LastTime(), *made)
        self._whole = tuple(aggregation.exhaustive() for aggregation in self._aggregations)
        spans = [_span_us(one.window, aggregation) for one, aggregation in zip(spec.specs, made, strict=True)]
        self._sliding = tuple(sorted({_span_us(one.window, None) for one in spec.specs} - {None}, key=_number))
        self._cuts = tuple(sorted({span for span in spans if span is not None} | set(map(_number, self._sliding)), reverse=True))
        self._first = [0 if span is None else self._cuts.index(span) + 1 for span in spans]
        by_name = {one.name: i for i, one in enumerate(spec.specs)}
        self._order = [by_name[name] for name in spec.output.value_names]
        self._layout = _layout(spec, self._aggregations)
        self._tiles = Tiles(self._layout, self._aggregations)

    def apply(self, reads: Reads, source: int, batch: pl.DataFrame) -> Outcome:
        """File each row under its key."""
        assert source == 0, "an aggregation has one input"
        names = self._spec.keys
        groups = batch.select(names).with_row_index("\0row").group_by(names, maintain_order=True).agg("\0row")
        rows = groups["\0row"].explode(empty_as_null=False).to_numpy().astype(np.int64)
        lengths = groups["\0row"].list.len().to_numpy().astype(np.int64)
        times = batch[self._spec.along or self._spec.input.timestamp].to_physical()
        records = of_frame(self._layout, batch, times, batch[SIGN], batch[POS]).take(rows)
        starts: Ints = np.cumsum(lengths) - lengths
        return Outcome(puts=self._tiles.add(reads, key_bytes(groups, names), records, starts))

    def lookup(self, reads: Reads, keys: Sequence[bytes], as_of: Sequence[Micros]) -> list[bytes | None]:
        asked = [
            Asked(key, (*(max(moment - span, MIN_TIME) for span in self._cuts), moment)) for key, moment in zip(keys, as_of, strict=True)
        ]
        out: list[bytes | None] = []
        unknown: list[int] = []
        for i, intervals in enumerate(self._tiles.read(reads, asked)):
            row = self._row(self._aggregations, intervals, as_of[i])
            if row is UNKNOWN:
                unknown.append(i)
            out.append(row if isinstance(row, bytes) else None)
        if unknown:
            again = self._tiles.read(reads, [asked[i] for i in unknown], exhaustive=True)
            for i, intervals in zip(unknown, again, strict=True):
                row = self._row(self._whole, intervals, as_of[i])
                assert row is not UNKNOWN, "all events are known now"
                out[i] = row if isinstance(row, bytes) else None
        return out

    def rows(self, reads: Reads, as_of: Micros, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` keys with their rows as of a time."""
        found: list[tuple[bytes, bytes]] = []
        for group in range(KEY_GROUPS):
            prefix = group.to_bytes(2, "big") + ROOTS
            entries = reads.scan(prefix, prefix[:-1] + bytes([ROOTS[0] + 1]), limit=limit)
            keys = [place[len(prefix) :] for place, _ in entries]
            found += [(key, row) for key, row in zip(keys, self.lookup(reads, keys, [as_of] * len(keys)), strict=True) if row is not None]
            if len(found) >= limit:
                break
        return found[:limit]

    def _row(self, aggregations: Sequence[Aggregation[Any]], intervals: list[Partials], as_of: int) -> object:
        """The encoded row, None if the key is not found, or UNKNOWN."""
        clock = aggregations[_CLOCK]

        def last(stop: int) -> object:
            return clock.finalize(reduce(clock.merge, (partials[_CLOCK] for partials in intervals[:stop])), as_of)

        changes = [last(len(intervals))]
        if changes[0] is None:
            return None
        for span in map(_number, self._sliding):
            before = last(self._cuts.index(span) + 1)
            changes.append(before + span if isinstance(before, int) else before)
        values = [
            aggregation.finalize(reduce(aggregation.merge, (partials[j] for partials in intervals[first:])), as_of)
            for j, (aggregation, first) in enumerate(zip(aggregations[1:], self._first, strict=True), 1)
        ]
        if UNKNOWN in changes or any(value is UNKNOWN for value in values):
            return UNKNOWN
        return encode([max(change for change in changes if isinstance(change, int)), *(values[i] for i in self._order)])


def _span_us(window: wire.Window, aggregation: Aggregation[Any] | None) -> int | None:
    """How far back from q (exclusive) a window reaches; None is for ever. A decayed sum sees no further than its horizon."""
    match window:
        case wire.Forever():
            span = None
        case wire.Sliding(duration_us):
            span = duration_us + SECOND_US
        case _:
            raise ValueError(f"{window} closes by event time: it is not assembled at read time")
    if isinstance(aggregation, DecayedSum):
        return aggregation.horizon_us if span is None else min(span, aggregation.horizon_us)
    return span


def _number(span: int | None) -> int:
    assert span is not None, "only windows with an end are listed"
    return span


def _layout(spec: Aggregate, aggregations: Sequence[Aggregation[Any]]) -> Layout:
    names = sorted({name for aggregation in aggregations for name in aggregation.prepare()} - {POSITION})
    fields = [spec.input.field(name) for name in names]
    columns = tuple((field.name, kind_of(field.dtype)) for field in fields if field is not None)
    return Layout(columns, ordered=any(POSITION in aggregation.prepare() for aggregation in aggregations))
