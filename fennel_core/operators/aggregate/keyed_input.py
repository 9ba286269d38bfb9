"""Aggregate over a keyed dataset, whose rows arrive with their validity intervals.

Theory. A row is valid from its timestamp until its successor's. It counts in a window until it is
succeeded or leaves the window, whichever comes first: `from <= q < min(to, from + d + 1 s)`. So for
each window a row is added twice: with its weight at the time at which it begins to count, and with
the opposite weight at the time at which it ceases to. The value as of q is the aggregate of all
records at or before q. Each window has tiles of its own, because rows leave it at different times.
All of these times are change points of the result. They are also added, with the row's own sign, to
the tiles of change times, from which a lookup takes the timestamp of the result. A key is found
from its first change on, even after all its rows have ended.

Example. A row of key k with value 5, valid from 10:00 to 10:30. In a window of 1 h it is added as
+5 at 10:00 and as -5 at 10:30; in a window of 10 min as +5 at 10:00 and -5 at 10:10:01. A lookup as
of 10:20 finds 5 for the sum over 1 h, 0 for the sum over 10 min, and the timestamp 10:10:01.

State: tags 0x80 + 2i and 0x81 + 2i: tiles of the i-th distinct window of the specs. Where results
are assembled at read time also tags `a` and `n`: tiles of change times. Where they are emitted also
the state of `change_points.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import polars as pl

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.decay import DecayedSumAggregator
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.min_max import LastTimeAggregator
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.change_points import (
    NO_CONTRIBUTIONS,
    BatchEffect,
    ChangePoint,
    ChangePointStep,
    contributions_of,
    reach_of,
)
from fennel_core.operators.aggregate.grouping import Grouping
from fennel_core.operators.aggregate.read_time import SECOND_US, row_pages
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow
from fennel_core.operators.aggregate.tile_codec import NODES, ROOTS
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import (
    NO_SESSIONS,
    RowTimes,
    duration_and_stride,
    lookback_us,
)
from fennel_core.operators.errors import UnsupportedAggregation
from fennel_core.operators.gradual import Gradual, finished
from fennel_core.operators.rows import MAX_TIME, MIN_TIME, encode
from fennel_core.operators.spec import VALID_TO, AggregateSpec, has_validity
from fennel_core.operators.step import GradualLookupStep, Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import SIGN
from fennel_core.wire import operators as wire

_AT = "\0at"
"""The time at which a row begins or ceases to count."""
_FIRST_TAG = 0x80
MAX_WINDOWS = (0xFF - _FIRST_TAG) // 2
"""Distinct windows of one aggregation: each takes two table tags of one byte."""


class ValidityIntervals:
    """The intervals in which rows count in one kind of window: their tiles, and the aggregated
    columns that are read from them. `number` is the window's number among the distinct ones.
    """

    def __init__(self, spec: AggregateSpec, window: wire.Window, number: int) -> None:
        specs = [one for one in spec.specs if one.window == window]
        self.names = [one.name for one in specs]
        # Records are stored under other times, so the row's own time is kept as a column.
        time = spec.along or spec.input.timestamp
        aggregators = [make_aggregator(one, spec.input, time=time) for one in specs]
        self._horizons = [
            one.horizon_us if isinstance(one, DecayedSumAggregator) else None for one in aggregators
        ]
        self._start, self._end = _interval(window, pl.col(time))
        self._grouping = Grouping(spec.input, spec.keys, _AT, aggregators)
        self._tiles = Tiles(self._grouping.layout, aggregators, _tags(number))
        self._assembler = Assembler(self._tiles, aggregators, range(len(aggregators)))

    def boundaries(self, batch: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of a batch at the times (column `_AT`) at which they begin to count, and
        at the times at which they cease to.
        """
        counting = batch.with_columns(self._start.alias(_AT)).filter(
            pl.col(VALID_TO).is_null() | (pl.col(_AT) < pl.col(VALID_TO))
        )
        ended = counting.with_columns(self._end.alias(_AT)).filter(pl.col(_AT).is_not_null())
        return counting, ended

    def add(
        self, reads: StateReader, started: pl.DataFrame, ended: pl.DataFrame
    ) -> dict[bytes, bytes]:
        """Return the puts that add the result of `boundaries` to the tiles."""
        both = pl.concat([started, ended.with_columns(-pl.col(SIGN))])
        if both.is_empty():
            return {}
        grouped = self._grouping.group(both)
        return self._tiles.add(reads, grouped.keys, grouped.records, grouped.starts)

    def values(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[int]
    ) -> Gradual[list[list[object]]]:
        """Return the aggregated columns of each key as of its time."""
        ranges = [
            [
                (MIN_TIME if horizon is None else max(time - horizon, MIN_TIME), time)
                for horizon in self._horizons
            ]
            for time in as_of
        ]
        return self._assembler.values(reads, keys, ranges, as_of)


def validity_intervals(spec: AggregateSpec) -> list[ValidityIntervals]:
    """Return one per distinct window, in the order of the specs."""
    windows = dict.fromkeys(one.window for one in spec.specs)
    if len(windows) > MAX_WINDOWS:
        raise UnsupportedAggregation(
            f"an aggregation over a keyed dataset has {len(windows)} different windows, more "
            f"than the {MAX_WINDOWS} that its state can hold; aggregate into two datasets"
        )
    return [ValidityIntervals(spec, window, number) for number, window in enumerate(windows)]


@dataclass(frozen=True, slots=True)
class _AddedIntervals:
    """`changes`: the rows of a batch once per time at which they begin or cease to count."""

    puts: dict[bytes, bytes]
    changes: pl.DataFrame


def _add_intervals(
    intervals: Sequence[ValidityIntervals], reads: StateReader, batch: pl.DataFrame
) -> _AddedIntervals:
    puts: dict[bytes, bytes] = {}
    changes = []
    for one in intervals:
        started, ended = one.boundaries(batch)
        puts.update(one.add(reads, started, ended))
        changes += [started, ended]
    return _AddedIntervals(puts, pl.concat(changes))


class KeyedAggregateStep(GradualLookupStep):
    """Runs a terminal `AggregateSpec` whose input has validity intervals; serves lookups."""

    def __init__(self, spec: AggregateSpec) -> None:
        assert spec.terminal, "this step emits nothing"
        assert has_validity(spec.input), "see ReadTimeAggregateStep"
        self._intervals = validity_intervals(spec)
        last_time: tuple[Aggregator[Any], ...] = (LastTimeAggregator(),)
        self._grouping = Grouping(spec.input, spec.keys, _AT, last_time)
        self._change_times = Tiles(self._grouping.layout, last_time, (ROOTS, NODES))
        self._last_change = Assembler(self._change_times, last_time, (0,))
        names = [name for one in self._intervals for name in one.names]
        self._order = [names.index(name) for name in spec.output.value_names]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """Add each row at the times at which it begins and ceases to count."""
        assert source == 0, "an aggregation has one input"
        added = _add_intervals(self._intervals, reads, batch)
        if added.changes.is_empty():
            return Outcome(puts=added.puts)
        grouped = self._grouping.group(added.changes)
        times = self._change_times.add(reads, grouped.keys, grouped.records, grouped.starts)
        return Outcome(puts={**added.puts, **times})

    def lookup_gradually(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> Gradual[list[bytes | None]]:
        ranges = [((MIN_TIME, time),) for time in as_of]
        changed = yield from self._last_change.values(reads, keys, ranges, as_of)
        found = []
        for one in self._intervals:
            values = yield from one.values(reads, keys, as_of)
            found.append(values)
        out: list[bytes | None] = []
        for (last_change,), *parts in zip(changed, *found, strict=True):
            yield
            if last_change is None:
                out.append(None)
                continue
            row = [value for part in parts for value in part]
            out.append(encode([last_change, *(row[i] for i in self._order)]))
        return out

    def row_pages(
        self, reads: StateReader, as_of: Micros, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield up to `limit` keys with their rows as of a time, in short pages."""
        return row_pages(self, reads, as_of, limit)


class EmittedKeyedAggregateStep(ChangePointStep):
    """Runs an `AggregateSpec` that is not terminal and whose input has validity intervals: emits a
    version whenever a row begins or ceases to count.
    """

    def __init__(self, spec: AggregateSpec) -> None:
        assert not spec.terminal, "see KeyedAggregateStep"
        self._intervals = validity_intervals(spec)
        self._grouping = Grouping(spec.input, spec.keys, _AT, ())
        names = [name for one in self._intervals for name in one.names]
        super().__init__(
            ResultEmitter(self._values, names, spec.keys, spec.output, None),
            lookback_us([one.window for one in spec.specs]),
        )

    def add_batch(self, reads: StateReader, batch: pl.DataFrame) -> BatchEffect:
        added = _add_intervals(self._intervals, reads, batch)
        batch_max_time = self._grouping.largest_event_time(batch)
        if added.changes.is_empty():
            return BatchEffect(added.puts, NO_CONTRIBUTIONS, [], batch_max_time)
        grouped = self._grouping.group(added.changes)
        ts = grouped.records.ts
        return BatchEffect(
            added.puts,
            contributions_of(grouped, RowTimes(np.arange(len(ts)), ts)),
            reach_of(grouped, (ts, np.full(len(ts), MAX_TIME - 1))),
            batch_max_time,
        )

    def result_row(self, point: ChangePoint) -> ResultRow:
        return ResultRow(point.key, point.time, ())

    def _values(self, reads: StateReader, rows: Sequence[ResultRow]) -> list[list[object]]:
        keys, times = [row.key for row in rows], [row.time for row in rows]
        found = [finished(one.values(reads, keys, times)) for one in self._intervals]
        return [[value for part in parts for value in part] for parts in zip(*found, strict=True)]


def _interval(window: wire.Window, time: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return when a row begins to count in a window, and when it ceases to (null: never)."""
    match window:
        case wire.Forever():
            return time, pl.col(VALID_TO)
        case wire.Sliding(duration_us):
            left = time + pl.duration(microseconds=duration_us + SECOND_US)
            return time, pl.min_horizontal(VALID_TO, left)
        case wire.ForeverHopping(stride_us):
            return _next_multiple(time, stride_us), pl.col(VALID_TO)
        case wire.Tumbling() | wire.Hopping():
            duration_us, stride_us = duration_and_stride(window)
            last = time.cast(pl.Int64).add(duration_us).floordiv(stride_us).mul(stride_us)
            left = last.add(stride_us).cast(pl.Datetime("us", "UTC"))
            return _next_multiple(time, stride_us), pl.min_horizontal(VALID_TO, left)
        case wire.Session():
            raise UnsupportedAggregation(NO_SESSIONS)
        case unreachable:
            assert_never(unreachable)


def _next_multiple(time: pl.Expr, stride_us: int) -> pl.Expr:
    """Return the next multiple of a stride after a time."""
    following = time.cast(pl.Int64).floordiv(stride_us).add(1).mul(stride_us)
    return following.cast(pl.Datetime("us", "UTC"))


def _tags(number: int) -> tuple[bytes, bytes]:
    """Return the table tags (roots, nodes) of the tiles of the window with this number."""
    assert number < MAX_WINDOWS, "more windows than table tags"
    return bytes([_FIRST_TAG + 2 * number]), bytes([_FIRST_TAG + 2 * number + 1])
