"""Moments: when the results of a key change, how many reasons there are for it, and which of them
may be seen.

Theory. The result of a key is a function of time, and its windows say at which times rows make it
change. Those *moments* are kept per key with the number of reasons for each (rows × windows,
retractions subtract), so a moment exists exactly as long as something changes there. A batch
affects the moments inside the reach of its rows; at each of them the result is assembled from the
tiles before and after the batch, and `−old +new` is emitted where they differ. So what has been
emitted is always the recompute over the rows known so far.

Windows that close do so by event time: a moment is visible once it is at or before the *frontier* −
lookback, the frontier being the largest event time accepted from the whole input. The step raises
its frontier to the largest event time of each batch (that is part of the input, so never too far)
and whenever it is told (`advance`); moments that become visible are found on the agenda, so nothing
waits for a clock. Windows that move with the reader have no frontier: their expiries are emitted
ahead, as versions in the future.

State: tiles (`tiles.py`), and tag `m`: key, moment → number of reasons (msgpack); tag `g`: moment,
key → nothing, for moments that are not visible yet (the agenda); tag `f` of key group 0: the
frontier and a time before which nothing is on the agenda (msgpack).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fennel_core.aggregates.exact import Ints
from fennel_core.operators.aggregate.grouping import GroupedRecords, Grouping
from fennel_core.operators.aggregate.overlay import StateOverlay
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow, to_outputs
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.window_times import Changes
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

MOMENTS = b"m"
AGENDA = b"g"
FRONTIER_PLACE = b"\x00\x00f"
NO_FRONTIER = MIN_TIME // 2
"""The frontier before anything was accepted; a lookback can be taken off it."""
PREFIX = 3
"""Bytes before the time in a place on the agenda: key group and tag."""
ChangePoint = tuple[bytes, int]
"""A key and a time."""


Reach = tuple[bytes, int, int]
"""A key, and the first and last moment at which a batch can change its results."""


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What a batch does to the tiles and to moments. `reasons`: how their number changes; `latest`:
    its largest event time, if any.
    """

    puts: dict[bytes, bytes]
    reasons: dict[ChangePoint, int]
    reach: list[Reach]
    latest: Micros | None


class ChangePointStep(ABC):
    """A step whose results stand at moments. `lookback_us` None: every moment is visible."""

    def __init__(self, results: ResultEmitter, lookback_us: int | None) -> None:
        self._results = results
        self._lookback_us = lookback_us

    @abstractmethod
    def absorb(self, reads: StateReader, batch: pl.DataFrame) -> Absorbed:
        """File a batch."""

    @abstractmethod
    def derived(self, moment: ChangePoint) -> ResultRow:
        """The result at a moment."""

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "an aggregation has one input"
        absorbed = self.absorb(reads, batch)
        reasons, after = absorbed.reasons, StateOverlay(reads, absorbed.puts)
        visible = self._visible(reads)
        counts = dict(
            zip(reasons, map(_count, reads.get_many(list(map(_place, reasons)))), strict=True)
        )
        for moment, change in reasons.items():
            self._record(after, moment, counts[moment] + change, visible=moment[1] <= visible)
        affected = [
            m for m in _moments(reads, absorbed.reach) if m[1] <= visible and m not in counts
        ]
        now = [m for m in counts if m[1] <= visible]
        held = [m for m in now if counts[m]]
        kept = [m for m in now if counts[m] + reasons[m]]
        frames = self._difference(reads, held + affected, after, kept + affected)
        opened = self._raise(reads, after, absorbed.latest)
        return Outcome(
            puts=after.puts,
            deletes=frozenset(after.deletes),
            emits=to_outputs(frames, self._difference(reads, [], after, opened)),
        )

    def advance(self, reads: StateReader, frontier: Micros) -> Outcome:
        """Emit what the frontier of the whole input (its largest accepted event time) makes
        visible.
        """
        after = StateOverlay(reads, {})
        opened = self._raise(reads, after, frontier)
        return Outcome(
            after.puts,
            frozenset(after.deletes),
            to_outputs(self._difference(reads, [], after, opened)),
        )

    def _difference(
        self,
        before: StateReader,
        old: Sequence[ChangePoint],
        after: StateReader,
        new: Sequence[ChangePoint],
    ) -> list[pl.DataFrame]:
        return self._results.difference(
            before, list(map(self.derived, old)), after, list(map(self.derived, new))
        )

    # --- moments ----------------------------------------------------------------------------------

    def _record(
        self, after: StateOverlay, moment: ChangePoint, count: int, *, visible: bool
    ) -> None:
        """Keep the number of reasons for a moment, and whether it waits for the frontier."""
        assert count >= 0, "a reason is taken back once"
        waiting = [] if visible else [_waiting(moment)]
        if count:
            after.put(_place(moment), encode(count))
            for place in waiting:
                after.put(place, b"")
        else:
            for place in [_place(moment), *waiting]:
                after.delete(place)

    # --- the frontier -----------------------------------------------------------------------------

    def _visible(self, reads: StateReader) -> int:
        """The last moment that may be seen."""
        return MAX_TIME if self._lookback_us is None else _horizon(reads)[0] - self._lookback_us

    def _raise(
        self, reads: StateReader, after: StateOverlay, told: Micros | None
    ) -> list[ChangePoint]:
        """Raise the frontier; the moments that become visible, taken off the agenda. Walks the
        agenda only if something on it is due.
        """
        if self._lookback_us is None:
            return []
        known, earliest = _horizon(reads)
        frontier = known if told is None else max(known, told)
        fresh = {place for place in after.puts if place[2:3] == AGENDA}
        earliest = min([earliest, *(time_of(place, PREFIX) for place in fresh)])
        visible, due = frontier - self._lookback_us, set[bytes]()
        if earliest <= visible:
            waiting = fresh | {
                place
                for place in _agenda(reads, MIN_TIME, visible, None)
                if place not in after.deletes
            }
            due = {place for place in waiting if time_of(place, PREFIX) <= visible}
            later = [*(waiting - due), *_agenda(reads, visible + 1, MAX_TIME - 1, 1)]
            earliest = min((time_of(place, PREFIX) for place in later), default=MAX_TIME)
        for place in due:
            after.delete(place)
        if (frontier, earliest) != _horizon(reads):
            after.put(FRONTIER_PLACE, encode([frontier, earliest]))
        return [(place[PREFIX + TIME_BYTES :], time_of(place, PREFIX)) for place in sorted(due)]


def _horizon(reads: StateReader) -> tuple[int, int]:
    """The frontier, and a time before which nothing is on the agenda."""
    (stored,) = reads.get_many([FRONTIER_PLACE])
    if stored is None:
        return NO_FRONTIER, MAX_TIME
    frontier, earliest = decode(stored)
    return frontier, earliest


def _agenda(reads: StateReader, first: int, last: int, limit: int | None) -> list[bytes]:
    """What waits for a time from `first` to `last`; at most `limit` of each key group, the
    earliest.
    """
    found: list[bytes] = []
    for group in range(KEY_GROUPS):
        prefix = group.to_bytes(2, "big") + AGENDA
        entries = reads.scan(prefix + time_bytes(first), prefix + time_bytes(last + 1), limit=limit)
        found += [place for place, _ in entries]
    return found


class RowChangePointStep(ChangePointStep):
    """Moments made by rows, each of which counts in windows around its own time."""

    def __init__(
        self, filing: Grouping, tiles: Tiles, results: ResultEmitter, lookback_us: int | None
    ) -> None:
        super().__init__(results, lookback_us)
        self._filing, self._tiles = filing, tiles

    @abstractmethod
    def changes(self, ts: Ints) -> Changes:
        """The moments that rows at `ts` make."""

    @abstractmethod
    def reach(self, ts: Ints) -> tuple[Ints, Ints] | None:
        """First and last moment at which rows at `ts` can change a result; None if they only do at
        the moments they make.
        """

    def absorb(self, reads: StateReader, batch: pl.DataFrame) -> Absorbed:
        filed = self._filing.file(batch)
        ts = filed.records.ts
        made = self.changes(ts)
        added = ts[filed.records.weight > 0]
        return Absorbed(
            dict(self._tiles.add(reads, filed.keys, filed.records, filed.starts)),
            reasons_of(filed, made.rows, made.times),
            reach_of(filed, self.reach(ts)),
            Micros(int(added.max())) if len(added) else None,
        )


def reach_of(filed: GroupedRecords, reached: tuple[Ints, Ints] | None) -> list[Reach]:
    """The reach of each key from those of its rows."""
    if reached is None:
        return []
    first, last = reached
    lows, highs = (
        np.minimum.reduceat(first, filed.starts).tolist(),
        np.maximum.reduceat(last, filed.starts).tolist(),
    )
    return list(zip(filed.keys, lows, highs, strict=True))


def _moments(reads: StateReader, reach: Sequence[Reach]) -> list[ChangePoint]:
    """Moments that are there, inside the reach."""
    found: list[ChangePoint] = []
    for (key, low, high), prefix in zip(
        reach, prefixes(MOMENTS, [key for key, _, _ in reach]), strict=True
    ):
        entries = reads.scan(prefix + time_bytes(low), prefix + time_bytes(high + 1))
        found += [(key, time_of(place, len(prefix))) for place, _ in entries]
    return found


def reasons_of(filed: GroupedRecords, rows: Ints, times: Ints) -> dict[ChangePoint, int]:
    """How the number of reasons changes when row `rows[i]` makes a moment at `times[i]`."""
    owners = np.repeat(np.arange(len(filed.keys)), np.diff(filed.starts, append=len(filed.records)))
    counted = pl.DataFrame(
        {"owner": owners[rows], "time": times, "weight": filed.records.weight[rows]}
    )
    net = counted.group_by("owner", "time", maintain_order=True).agg(pl.col("weight").sum())
    return {(filed.keys[owner], time): weight for owner, time, weight in net.rows()}


def _place(moment: ChangePoint) -> bytes:
    key, time = moment
    return prefixes(MOMENTS, [key])[0] + time_bytes(time)


def _waiting(moment: ChangePoint) -> bytes:
    key, time = moment
    (prefix,) = prefixes(AGENDA, [key])
    return prefix[:3] + time_bytes(time) + key


def _count(stored: bytes | None) -> int:
    return 0 if stored is None else int(decode(stored))
