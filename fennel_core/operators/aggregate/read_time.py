"""Aggregate over windows that move with the reader: stored as tiles, assembled at read time.

Theory. As of q a window of d covers the rows with `t <= q < t + d + 1 s` (client semantics 4.3:
whole-second arithmetic, both ends inclusive); "forever" covers `t <= q`. So q and the times
`q - d - 1 s` of all windows cut time into slices, every window is a run of adjacent slices up to q,
and one walk over the key's tiles (`tiles.py`) yields the partial of each slice. A key is found once
it has had an event at or before q. Its row's timestamp is the time of the last change: the last
event, or the last expiry of an event from a window. Nothing is emitted and nothing is computed
before a lookup, so late rows and retractions need no special case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from fennel_core.operators.errors import UnsupportedAggregation
from fennel_core.operators.gradual import Gradual
from fennel_core.operators.rows import MIN_TIME, encode
from fennel_core.operators.spec import AggregateSpec
from fennel_core.operators.step import GradualLookupStep, LookupStep, Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import KEY_GROUPS
from fennel_core.wire import operators as wire

SECOND_US = 1_000_000
PAGE_KEYS = 32
"""Keys per page of a scan; one takes 50 to 300 µs."""


class ReadTimeAggregateStep(GradualLookupStep):
    """Runs a terminal `AggregateSpec` over a keyless input; serves lookups.

    `expiries`: whether the timestamp of a row counts expiries. Finding them costs a reader that
    does not need the timestamp as much as another column per window.
    """

    def __init__(self, spec: AggregateSpec, *, expiries: bool = True) -> None:
        assert spec.terminal, "see EmittedAggregateStep"
        columns = [make_aggregator(one, spec.input) for one in spec.specs]
        aggregators: tuple[Aggregator[Any], ...] = (LastTimeAggregator(), *columns)
        sliding = [one.window for one in spec.specs if isinstance(one.window, wire.Sliding)]
        spans = {window.duration_us + SECOND_US for window in sliding}
        self._sliding_spans = sorted(spans) if expiries else []
        self._spans = [
            span_us(one.window, aggregator)
            for one, aggregator in zip(spec.specs, columns, strict=True)
        ]
        self._grouping = Grouping(spec.input, spec.keys, spec.along, aggregators)
        self._tiles = Tiles(self._grouping.layout, aggregators)
        last_times = [0] * (1 + len(self._sliding_spans))
        self._assembler = Assembler(
            self._tiles, aggregators, (*last_times, *range(1, len(aggregators)))
        )
        names = [one.name for one in spec.specs]
        self._order = [names.index(name) for name in spec.output.value_names]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """Add each row to the tiles of its key."""
        assert source == 0, "an aggregation has one input"
        grouped = self._grouping.group(batch)
        return Outcome(puts=self._tiles.add(reads, grouped.keys, grouped.records, grouped.starts))

    def lookup_gradually(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> Gradual[list[bytes | None]]:
        ranges = list(map(self._ranges, as_of))
        found = yield from self._assembler.values(reads, keys, ranges, as_of)
        out: list[bytes | None] = []
        for values in found:
            yield
            out.append(self._row(values))
        return out

    def row_pages(
        self, reads: StateReader, as_of: Micros, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield up to `limit` keys with their rows as of a time, in short pages."""
        return row_pages(self, reads, as_of, limit)

    def _ranges(self, time: int) -> list[TimeRange]:
        """Return the range of the last event, per sliding window that of the last event which has
        left it, and that of every aggregated column.
        """
        last_times = [
            (MIN_TIME, time),
            *((MIN_TIME, max(time - span, MIN_TIME)) for span in self._sliding_spans),
        ]
        columns = [
            (MIN_TIME if span is None else max(time - span, MIN_TIME), time) for span in self._spans
        ]
        return last_times + columns

    def _row(self, values: list[object]) -> bytes | None:
        last, *rest = values
        if last is None:
            return None
        expired, columns = rest[: len(self._sliding_spans)], rest[len(self._sliding_spans) :]
        expiries = [
            time + span
            for time, span in zip(expired, self._sliding_spans, strict=True)
            if isinstance(time, int)
        ]
        assert isinstance(last, int), "the last time is a time"
        return encode([max([last, *expiries]), *(columns[i] for i in self._order)])


def span_us(window: wire.Window, aggregator: Aggregator[Any]) -> int | None:
    """Return how far back from q (exclusive) a window reaches; None: forever. A decayed sum reaches
    no further than its horizon.
    """
    match window:
        case wire.Forever():
            span = None
        case wire.Sliding(duration_us):
            span = duration_us + SECOND_US
        case _:
            raise UnsupportedAggregation(
                f"{window} closes by event time; it cannot be assembled at read time"
            )
    if isinstance(aggregator, DecayedSumAggregator):
        return aggregator.horizon_us if span is None else min(span, aggregator.horizon_us)
    return span


def row_pages(
    step: LookupStep, reads: StateReader, as_of: Micros, limit: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield up to `limit` keys with their rows as of a time, found by the roots of their tiles.

    A page is short work, so a reader can give way between two of them.
    """
    left = limit
    for group in range(KEY_GROUPS):
        prefix = group.to_bytes(2, "big") + ROOTS
        start, stop = prefix, prefix[:-1] + bytes([ROOTS[0] + 1])
        while left > 0 and (entries := reads.scan(start, stop, limit=PAGE_KEYS)):
            keys = [state_key[len(prefix) :] for state_key, _ in entries]
            rows = step.lookup(reads, keys, [as_of] * len(keys))
            page = [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None]
            yield page[:left]
            left -= len(page)
            start = entries[-1][0] + b"\0"
