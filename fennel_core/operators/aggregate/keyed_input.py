"""Aggregate over a keyed dataset, which arrives as signed facts: rows with a beginning and an end.

Theory. A row counts from its beginning until it is succeeded or leaves the window, whichever is
first: `from <= q < min(to, from + d + 1 s)`. So for each window a row is filed twice, once with its
weight when it begins to count and once with the opposite weight when it ceases to; the value as of
q is the aggregate of everything filed at or before q. Each window has tiles of its own, since rows
leave at different times. All of these times are changes of the result; they are filed apart, with
the row's own sign, for the timestamp of the answer. A key is found from its first change on, even
when all its rows have ended.

State: tags 0x80 + 2i and 0x81 + 2i: tiles of the i-th distinct window of the specs. Assembled at
read time, also tags `a`, `n`: tiles of the times of changes. Emitted, also what `change_points.py`
keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
import polars as pl

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.min_max import LastTimeAggregator
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.change_points import (
    Absorbed,
    ChangePoint,
    ChangePointStep,
    reach_of,
    reasons_of,
)
from fennel_core.operators.aggregate.grouping import Grouping
from fennel_core.operators.aggregate.read_time import SECOND_US, rows_of
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow
from fennel_core.operators.aggregate.tile_codec import NODES, ROOTS
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import lookback_us
from fennel_core.operators.rows import MAX_TIME, MIN_TIME, encode
from fennel_core.operators.spec import VALID_TO, AggregateSpec, has_validity
from fennel_core.operators.step import Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import SIGN
from fennel_core.wire import operators as wire

_AT = "\0at"
"""The time a record is filed under."""
_FIRST_TAG = 0x80


class ValidityIntervals:
    """Tiles of one kind of window: rows filed when they begin and cease to count in it, and the
    columns that are read from them.
    """

    def __init__(self, spec: AggregateSpec, window: wire.Window, number: int) -> None:
        specs = [one for one in spec.specs if one.window == window]
        self.names = [one.name for one in specs]
        aggregations = [
            make_aggregator(one, spec.input, time=spec.input.timestamp) for one in specs
        ]
        self._begin, self._end = _life(window, pl.col(spec.along or spec.input.timestamp))
        self._filing = Grouping(spec.input, spec.keys, _AT, aggregations)
        self._tiles = Tiles(self._filing.layout, aggregations, _tags(number))
        self._assembler = Assembler(self._tiles, aggregations, range(len(aggregations)))

    def changes(self, batch: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The batch at the times when its rows begin to count, and at those when they cease to
        (column `_AT`).
        """
        counting = batch.with_columns(self._begin.alias(_AT)).filter(
            pl.col(VALID_TO).is_null() | (pl.col(_AT) < pl.col(VALID_TO))
        )
        return counting, counting.with_columns(self._end.alias(_AT)).filter(
            pl.col(_AT).is_not_null()
        )

    def add(
        self, reads: StateReader, begun: pl.DataFrame, ended: pl.DataFrame
    ) -> dict[bytes, bytes]:
        both = pl.concat([begun, ended.with_columns(-pl.col(SIGN))])
        if both.is_empty():
            return {}
        filed = self._filing.file(both)
        return self._tiles.add(reads, filed.keys, filed.records, filed.starts)

    def values(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[int]
    ) -> list[list[object]]:
        return self._assembler.values(
            reads, keys, [((MIN_TIME, moment),) * len(self.names) for moment in as_of], as_of
        )


def validity_intervals(spec: AggregateSpec) -> list[ValidityIntervals]:
    """One per distinct window, in the order of the specs."""
    for one in spec.specs:
        if isinstance(one, wire.ExpDecay):
            raise ValueError(
                "an exponentially decayed sum over a keyed dataset is not defined: "
                "aggregate its changelog instead"
            )
    windows = dict.fromkeys(one.window for one in spec.specs)
    return [ValidityIntervals(spec, window, number) for number, window in enumerate(windows)]


class KeyedAggregateStep:
    """The step of a terminal `spec.AggregateSpec` whose input has facts; serves lookups."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert spec.terminal, "a keyed dataset is aggregated at read time"
        assert has_validity(spec.input), "see AggregateStep"
        self._lives = validity_intervals(spec)
        clock: tuple[Aggregator[Any], ...] = (LastTimeAggregator(),)
        self._filing = Grouping(spec.input, spec.keys, _AT, clock)
        self._clock = Tiles(self._filing.layout, clock, (ROOTS, NODES))
        self._clock_assembler = Assembler(self._clock, clock, (0,))
        names = [name for lives in self._lives for name in lives.names]
        self._order = [names.index(name) for name in spec.output.value_names]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """File each row at its beginning and at its ends."""
        assert source == 0, "an aggregation has one input"
        puts: dict[bytes, bytes] = {}
        changes = []
        for lives in self._lives:
            begun, ended = lives.changes(batch)
            puts.update(lives.add(reads, begun, ended))
            changes += [begun, ended]
        every = pl.concat(changes)
        if every.is_empty():
            return Outcome(puts=puts)
        filed = self._filing.file(every)
        puts.update(self._clock.add(reads, filed.keys, filed.records, filed.starts))
        return Outcome(puts=puts)

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        ranges = [((MIN_TIME, moment),) for moment in as_of]
        clocks = self._clock_assembler.values(reads, keys, ranges, as_of)
        found = [lives.values(reads, keys, as_of) for lives in self._lives]
        out: list[bytes | None] = []
        for (changed,), *parts in zip(clocks, *found, strict=True):
            values = [value for part in parts for value in part]
            out.append(
                None if changed is None else encode([changed, *(values[i] for i in self._order)])
            )
        return out

    def rows(self, reads: StateReader, as_of: Micros, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` keys with their rows as of a time."""
        return rows_of(self, reads, as_of, limit)


class EmittedKeyedAggregateStep(ChangePointStep):
    """The step of a `spec.AggregateSpec` whose input has facts and that is not terminal: a version
    whenever a row begins or ceases to count.
    """

    def __init__(self, spec: AggregateSpec) -> None:
        assert not spec.terminal, "see FactsAggregateStep"
        self._time = spec.along or spec.input.timestamp
        self._lives = validity_intervals(spec)
        self._filing = Grouping(spec.input, spec.keys, _AT, ())
        names = [name for lives in self._lives for name in lives.names]
        super().__init__(
            ResultEmitter(self._values, names, spec.keys, spec.output, None),
            lookback_us([one.window for one in spec.specs]),
        )

    def absorb(self, reads: StateReader, batch: pl.DataFrame) -> Absorbed:
        puts: dict[bytes, bytes] = {}
        changes = []
        for lives in self._lives:
            begun, ended = lives.changes(batch)
            puts.update(lives.add(reads, begun, ended))
            changes += [begun, ended]
        latest = batch.filter(pl.col(SIGN) > 0)[self._time].cast(pl.Int64).max()
        frontier = Micros(latest) if isinstance(latest, int) else None
        every = pl.concat(changes)
        if every.is_empty():
            return Absorbed(puts, {}, [], frontier)
        filed = self._filing.file(every)
        ts = filed.records.ts
        return Absorbed(
            puts,
            reasons_of(filed, np.arange(len(ts)), ts),
            reach_of(filed, (ts, np.full(len(ts), MAX_TIME - 1))),
            frontier,
        )

    def derived(self, moment: ChangePoint) -> ResultRow:
        key, time = moment
        return ResultRow(key, time, ())

    def _values(self, reads: StateReader, rows: Sequence[ResultRow]) -> list[list[object]]:
        keys, times = [row.key for row in rows], [row.time for row in rows]
        found = [lives.values(reads, keys, times) for lives in self._lives]
        return [[value for part in parts for value in part] for parts in zip(*found, strict=True)]


def _life(window: wire.Window, time: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """When a row begins to count in a window, and when it ceases to (null: never)."""
    match window:
        case wire.Forever():
            return time, pl.col(VALID_TO)
        case wire.Sliding(duration_us):
            return time, pl.min_horizontal(
                VALID_TO, time + pl.duration(microseconds=duration_us + SECOND_US)
            )
        case wire.ForeverHopping(stride_us):
            following = time.cast(pl.Int64).floordiv(stride_us).add(1).mul(stride_us)
            return following.cast(pl.Datetime("us", "UTC")), pl.col(VALID_TO)
        case wire.Tumbling() | wire.Hopping() | wire.Session():
            raise ValueError(
                f"{window} is not defined over a keyed dataset: aggregate its "
                "changelog, or along another column"
            )
        case unreachable:
            assert_never(unreachable)


def _tags(number: int) -> tuple[bytes, bytes]:
    assert _FIRST_TAG + 2 * number + 1 < 0xFF, "more window lengths than table tags"
    return bytes([_FIRST_TAG + 2 * number]), bytes([_FIRST_TAG + 2 * number + 1])
