"""Change points: the times at which the result of a key changes, and which of them are visible.

Theory. The result of a key is a function of time, and its windows determine at which times a row
makes it change. Those *change points* are kept per key with a count of contributions (rows x
windows; retractions subtract), so a change point exists exactly as long as something changes there.
A batch affects the change points within reach of its rows. At each of them the result is assembled
from the tiles before and after the batch, and `-old +new` is emitted where the two differ. What has
been emitted is therefore always the recompute over the rows known so far.

Windows that close do so by event time: a change point is visible once it is at or before
*watermark - lookback*, where the watermark is the largest event time accepted from the whole input.
The step raises its watermark to the largest event time of each batch, which is part of the input
and so never too high, and whenever `advance` is called. Every change point that is not visible yet
has a timer, and timers that become due are found in order of time, so nothing waits for a clock.
Windows that move with the reader have no watermark: their expiries are emitted ahead, as versions
in the future.

Example. A tumbling window of 1 h without lookback over events of key k at 0:10, 0:50 and 1:05, in
one batch. The first two change the result at 1:00, when their window closes, and at 2:00, when they
have left it; the third at 2:00 and at 3:00. So the contributions are {1:00: 2, 2:00: 3, 3:00: 1}.
The watermark is 1:05: the result at 1:00 is emitted, and 2:00 and 3:00 have timers. When a later
watermark reaches 2:00, that timer is due, is deleted, and the result at 2:00 is emitted.

State: the tiles (`tiles.py`); tag `m`: key, time of a change point → number of contributions
(msgpack); tag `g`: time, key → nothing (a timer); tag `f` of key group 0: the watermark and a time
before which there is no timer (msgpack).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from fennel_core.aggregates.exact import Ints
from fennel_core.operators.aggregate.grouping import GroupedRecords, Grouping
from fennel_core.operators.aggregate.overlay import StateOverlay
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow, to_outputs
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import RowTimes
from fennel_core.operators.rows import (
    MAX_TIME,
    MIN_TIME,
    TIME_BYTES,
    decode,
    encode,
    prefixes,
    time_bytes,
    time_of,
)
from fennel_core.operators.step import Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import KEY_GROUPS

CHANGE_POINTS = b"m"
TIMERS = b"g"
WATERMARK_KEY = b"\x00\x00f"
NO_WATERMARK = MIN_TIME // 2
"""The watermark before anything was accepted; a lookback can be subtracted from it."""
_GROUP_BYTES = 2
_TIMER_PREFIX = _GROUP_BYTES + len(TIMERS)


class ChangePoint(NamedTuple):
    """A time at which the result of a key changes. A named tuple: it is made per row and window."""

    key: bytes
    time: int


@dataclass(frozen=True, slots=True)
class Contributions:
    """How a batch changes the number of contributions of change points, in columns: that of
    `points[i]` by `deltas[i]`. A point occurs once.
    """

    points: list[ChangePoint]
    deltas: list[int]

    def state_keys(self) -> list[bytes]:
        keys = prefixes(CHANGE_POINTS, [point.key for point in self.points])
        return [
            prefix + time_bytes(point.time) for prefix, point in zip(keys, self.points, strict=True)
        ]


NO_CONTRIBUTIONS = Contributions([], [])


@dataclass(frozen=True, slots=True)
class Reach:
    """The first and last time at which a batch can change the result of a key."""

    key: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BatchEffect:
    """The effect of a batch on tiles and change points. `batch_max_time`: its largest event time;
    None: it adds no row.
    """

    puts: dict[bytes, bytes]
    contributions: Contributions
    reach: list[Reach]
    batch_max_time: Micros | None


class ChangePointStep(ABC):
    """A step that emits a version at every change point.

    `lookback_us`: how long after its end a window stays open; None: every change point is visible.
    """

    def __init__(self, results: ResultEmitter, lookback_us: int | None) -> None:
        self._results = results
        self._lookback_us = lookback_us

    @abstractmethod
    def add_batch(self, reads: StateReader, batch: pl.DataFrame) -> BatchEffect:
        """Add a batch to the tiles."""

    @abstractmethod
    def result_row(self, point: ChangePoint) -> ResultRow:
        """Return the row of the result at a change point."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "an aggregation has one input"
        effect = self.add_batch(reads, batch)
        after = StateOverlay(reads, effect.puts)
        visible_until = self._visible_until(reads)
        points, deltas = effect.contributions.points, effect.contributions.deltas
        state_keys = effect.contributions.state_keys()
        old: list[ChangePoint] = []
        new: list[ChangePoint] = []
        for point, delta, state_key, stored in zip(
            points, deltas, state_keys, reads.get_many(state_keys), strict=True
        ):
            count = 0 if stored is None else int(decode(stored))
            is_visible = point.time <= visible_until
            _put_count(after, point, state_key, count + delta, with_timer=not is_visible)
            if is_visible and count:
                old.append(point)
            if is_visible and count + delta:
                new.append(point)
        counted = set(points)
        affected = [
            point
            for point in _stored_points(reads, effect.reach)
            if point.time <= visible_until and point not in counted
        ]
        frames = self._difference(reads, old + affected, after, new + affected)
        opened = self._advance(reads, after, effect.batch_max_time)
        return Outcome(
            puts=after.puts,
            deletes=frozenset(after.deletes),
            emits=to_outputs(frames, self._difference(reads, [], after, opened)),
        )

    def advance(self, reads: StateReader, watermark: Micros) -> Outcome:
        """Emit the change points that the watermark of the whole input makes visible."""
        after = StateOverlay(reads, {})
        opened = self._advance(reads, after, watermark)
        frames = self._difference(reads, [], after, opened)
        return Outcome(after.puts, frozenset(after.deletes), to_outputs(frames))

    def _difference(
        self,
        before: StateReader,
        old: Sequence[ChangePoint],
        after: StateReader,
        new: Sequence[ChangePoint],
    ) -> list[pl.DataFrame]:
        return self._results.difference(
            before, list(map(self.result_row, old)), after, list(map(self.result_row, new))
        )

    def _visible_until(self, reads: StateReader) -> int:
        """Return the last time whose change points are visible."""
        if self._lookback_us is None:
            return MAX_TIME
        return _read_watermark(reads).watermark - self._lookback_us

    def _advance(
        self, reads: StateReader, after: StateOverlay, received: Micros | None
    ) -> list[ChangePoint]:
        """Raise the watermark to `received` and delete the timers that become due; return their
        change points. Scans timers only if one may be due.
        """
        if self._lookback_us is None:
            return []
        stored = _read_watermark(reads)
        watermark = stored.watermark if received is None else max(stored.watermark, received)
        added = {key for key in after.puts if key[_GROUP_BYTES:_TIMER_PREFIX] == TIMERS}
        earliest = min([stored.earliest_timer, *(time_of(key, _TIMER_PREFIX) for key in added)])
        visible_until, due = watermark - self._lookback_us, set[bytes]()
        if earliest <= visible_until:
            candidates = added | {
                key
                for key in _scan_timers(reads, MIN_TIME, visible_until, None)
                if key not in after.deletes
            }
            due = {key for key in candidates if time_of(key, _TIMER_PREFIX) <= visible_until}
            later = [*(candidates - due), *_scan_timers(reads, visible_until + 1, MAX_TIME - 1, 1)]
            earliest = min((time_of(key, _TIMER_PREFIX) for key in later), default=MAX_TIME)
        for key in due:
            after.delete(key)
        raised = _Watermark(watermark, earliest)
        if raised != stored:
            after.put(WATERMARK_KEY, encode([raised.watermark, raised.earliest_timer]))
        return [
            ChangePoint(key[_TIMER_PREFIX + TIME_BYTES :], time_of(key, _TIMER_PREFIX))
            for key in sorted(due)
        ]


class RowChangePointStep(ChangePointStep):
    """A step whose change points are made by rows, each of which counts in windows around its own
    time.
    """

    def __init__(
        self, grouping: Grouping, tiles: Tiles, results: ResultEmitter, lookback_us: int | None
    ) -> None:
        super().__init__(results, lookback_us)
        self._grouping, self._tiles = grouping, tiles

    @abstractmethod
    def changes(self, ts: Ints) -> RowTimes:
        """Return the change points that rows at `ts` make."""

    @abstractmethod
    def reach(self, ts: Ints) -> tuple[Ints, Ints] | None:
        """Return the first and last time at which rows at `ts` can change a result; None if they do
        so only at the change points that they make.
        """

    def add_batch(self, reads: StateReader, batch: pl.DataFrame) -> BatchEffect:
        grouped = self._grouping.group(batch)
        ts = grouped.records.ts
        changes = self.changes(ts)
        return BatchEffect(
            dict(self._tiles.add(reads, grouped.keys, grouped.records, grouped.starts)),
            contributions_of(grouped, changes),
            reach_of(grouped, self.reach(ts)),
            self._grouping.largest_event_time(batch),
        )


def contributions_of(grouped: GroupedRecords, changes: RowTimes) -> Contributions:
    """Return how contributions change when row `changes.rows[i]` makes a change point at
    `changes.times[i]`.
    """
    owners = np.repeat(
        np.arange(len(grouped.keys)), np.diff(grouped.starts, append=len(grouped.records))
    )
    weights = grouped.records.weight[changes.rows]
    counted = pl.DataFrame(
        {"owner": owners[changes.rows], "time": changes.times, "weight": weights}
    )
    net = counted.group_by("owner", "time", maintain_order=True).agg(pl.col("weight").sum())
    keys = map(grouped.keys.__getitem__, net["owner"].to_list())
    return Contributions(
        list(map(ChangePoint, keys, net["time"].to_list())), net["weight"].to_list()
    )


def reach_of(grouped: GroupedRecords, reached: tuple[Ints, Ints] | None) -> list[Reach]:
    """Return the reach of each key, given the first and last time that each row reaches."""
    if reached is None:
        return []
    first, last = reached
    lows = np.minimum.reduceat(first, grouped.starts).tolist()
    highs = np.maximum.reduceat(last, grouped.starts).tolist()
    return list(map(Reach, grouped.keys, lows, highs))


@dataclass(frozen=True, slots=True)
class _Watermark:
    """The stored watermark, and a time before which there is no timer."""

    watermark: int
    earliest_timer: int


def _read_watermark(reads: StateReader) -> _Watermark:
    (stored,) = reads.get_many([WATERMARK_KEY])
    return _Watermark(NO_WATERMARK, MAX_TIME) if stored is None else _Watermark(*decode(stored))


def _put_count(
    after: StateOverlay, point: ChangePoint, state_key: bytes, count: int, *, with_timer: bool
) -> None:
    """Store the number of contributions of a change point, with its timer if it has one."""
    assert count >= 0, "a contribution is retracted once"
    timers = [_timer_key(point, state_key)] if with_timer else []
    if count:
        after.put(state_key, encode(count))
        for key in timers:
            after.put(key, b"")
    else:
        for key in [state_key, *timers]:
            after.delete(key)


def _timer_key(point: ChangePoint, state_key: bytes) -> bytes:
    """Return the state key of the timer of the change point stored at `state_key`."""
    return state_key[:_GROUP_BYTES] + TIMERS + state_key[-TIME_BYTES:] + point.key


def _scan_timers(reads: StateReader, first: int, last: int, limit: int | None) -> list[bytes]:
    """Return the state keys of timers from `first` to `last`, at most `limit` (the earliest) of
    each key group.
    """
    found: list[bytes] = []
    for group in range(KEY_GROUPS):
        prefix = group.to_bytes(_GROUP_BYTES, "big") + TIMERS
        entries = reads.scan(prefix + time_bytes(first), prefix + time_bytes(last + 1), limit=limit)
        found += [key for key, _ in entries]
    return found


def _stored_points(reads: StateReader, reach: Sequence[Reach]) -> list[ChangePoint]:
    """Return the stored change points within reach."""
    found: list[ChangePoint] = []
    for item, prefix in zip(
        reach, prefixes(CHANGE_POINTS, [item.key for item in reach]), strict=True
    ):
        entries = reads.scan(prefix + time_bytes(item.first), prefix + time_bytes(item.last + 1))
        found += [ChangePoint(item.key, time_of(key, len(prefix))) for key, _ in entries]
    return found
