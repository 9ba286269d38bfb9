"""Aggregate over windows that move with the reader: written as events and tiles, assembled when it
is read.

Theory. As of q a window of d covers the rows with `t <= q < t + d + 1 s` (client semantics 4.3:
whole-second arithmetic, both ends inclusive); "forever" covers `t <= q`. So q and the moments `q −
d − 1 s` of all windows cut time into intervals, every window is a run of neighbouring intervals up
to q, and one walk over the key's tiles (`tiles.py`) yields the partial of each interval. A key is
found once it has had an event at or before q; its row's timestamp is the time of the last change:
the last event, or the last expiry of one from a window. Nothing is emitted, nothing is decided
before it is asked, so late rows and retractions need no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.decay import DecayedSumAggregator
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.min_max import LastTimeAggregator
from fennel_core.operators.aggregate.assemble import Assembler, TimeRange
from fennel_core.operators.aggregate.grouping import Grouping
from fennel_core.operators.aggregate.tile_codec import ROOTS
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.rows import MIN_TIME, encode
from fennel_core.operators.spec import AggregateSpec
from fennel_core.operators.step import LookupStep, Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import KEY_GROUPS
from fennel_core.wire import operators as wire

SECOND_US = 1_000_000


class ReadTimeAggregateStep:
    """The step of a terminal `spec.AggregateSpec`; serves lookups."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert spec.terminal, "what is emitted is aggregated by another step"
        made = [make_aggregator(one, spec.input) for one in spec.specs]
        aggregations: tuple[Aggregator[Any], ...] = (LastTimeAggregator(), *made)
        self._spec = spec
        self._sliding = sorted(
            {
                one.window.duration_us + SECOND_US
                for one in spec.specs
                if isinstance(one.window, wire.Sliding)
            }
        )
        self._spans = [
            _span_us(one.window, aggregation)
            for one, aggregation in zip(spec.specs, made, strict=True)
        ]
        self._filing = Grouping(spec.input, spec.keys, spec.along, aggregations)
        self._tiles = Tiles(self._filing.layout, aggregations)
        self._assembler = Assembler(
            self._tiles,
            aggregations,
            (*[0] * (1 + len(self._sliding)), *range(1, len(aggregations))),
        )
        self._order = [
            [one.name for one in spec.specs].index(name) for name in spec.output.value_names
        ]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """File each row under its key."""
        assert source == 0, "an aggregation has one input"
        filed = self._filing.file(batch)
        return Outcome(puts=self._tiles.add(reads, filed.keys, filed.records, filed.starts))

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        answers = self._assembler.values(reads, keys, list(map(self._ranges, as_of)), as_of)
        return list(map(self._row, answers))

    def rows(self, reads: StateReader, as_of: Micros, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` keys with their rows as of a time."""
        return rows_of(self, reads, as_of, limit)

    def _ranges(self, moment: int) -> list[TimeRange]:
        """Ranges of: the last event; per sliding window the last event that has left it; every
        aggregated column.
        """
        clocks = [
            (MIN_TIME, moment),
            *((MIN_TIME, max(moment - span, MIN_TIME)) for span in self._sliding),
        ]
        return clocks + [
            (MIN_TIME if span is None else max(moment - span, MIN_TIME), moment)
            for span in self._spans
        ]

    def _row(self, values: list[object]) -> bytes | None:
        last, *rest = values
        if last is None:
            return None
        left, columns = rest[: len(self._sliding)], rest[len(self._sliding) :]
        expiries = [
            moment + span
            for moment, span in zip(left, self._sliding, strict=True)
            if isinstance(moment, int)
        ]
        assert isinstance(last, int), "the clock tells a time"
        return encode([max(last, *expiries, last), *(columns[i] for i in self._order)])


def _span_us(window: wire.Window, aggregation: Aggregator[Any]) -> int | None:
    """How far back from q (exclusive) a window reaches; None is for ever. A decayed sum sees no
    further than its horizon.
    """
    match window:
        case wire.Forever():
            span = None
        case wire.Sliding(duration_us):
            span = duration_us + SECOND_US
        case _:
            raise ValueError(f"{window} closes by event time: it is not assembled at read time")
    if isinstance(aggregation, DecayedSumAggregator):
        return aggregation.horizon_us if span is None else min(span, aggregation.horizon_us)
    return span


def rows_of(
    step: LookupStep, reads: StateReader, as_of: Micros, limit: int
) -> list[tuple[bytes, bytes]]:
    """Up to `limit` keys with their rows as of a time, found by the roots of their tiles."""
    found: list[tuple[bytes, bytes]] = []
    for group in range(KEY_GROUPS):
        prefix = group.to_bytes(2, "big") + ROOTS
        entries = reads.scan(prefix, prefix[:-1] + bytes([ROOTS[0] + 1]), limit=limit)
        keys = [place[len(prefix) :] for place, _ in entries]
        found += [
            (key, row)
            for key, row in zip(keys, step.lookup(reads, keys, [as_of] * len(keys)), strict=True)
            if row is not None
        ]
        if len(found) >= limit:
            break
    return found[:limit]
