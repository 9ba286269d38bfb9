"""Aggregate into a keyed dataset: a version of the result at every time at which it changes.

Theory. The result of a key is a function of time, and `timeline.py` says at which times rows make it change. Those *moments* are kept per
key with the number of reasons for each (rows × windows, retractions subtract), so a moment exists exactly as long as something changes
there. A batch affects the moments inside the reach of its rows; at each of them the value is assembled from the tiles before and after
the batch, and `−old +new` is emitted where they differ. So what has been emitted is always the recompute over the rows known so far.

Windows that close do so by event time: a moment is visible once it is at or before the *frontier* − lookback, the frontier being the
largest event time accepted from the whole input. The step raises its frontier to the largest event time of each batch (that is part of
the input, so never too far) and whenever it is told (`advance`); moments that become visible are found on the agenda, so nothing waits
for a clock. Windows that move with the reader have no frontier: their expiries are emitted ahead, as versions in the future.

A version's position is derived from its key: there is one version per key and time, and keys do not share positions.

State: tiles (`tiles.py`), and tag `m`: key, moment → number of reasons (msgpack); tag `g`: moment, key → nothing, for moments that are
not visible yet; tag `f` of key group 0: the frontier.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import polars as pl

from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.make import make
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.filing import Filed, Filing
from fennel_core.operators.aggregate.overlay import Overlay
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.aggregate.timeline import changes, covered, lookback_us, reach
from fennel_core.operators.rows import (
    MAX_TIME,
    MIN_TIME,
    TIME_BYTES,
    columns_of,
    decode,
    decode_rows,
    encode,
    output_names,
    prefixes,
    time_bytes,
    time_of,
)
from fennel_core.operators.spec import Aggregate
from fennel_core.operators.step import Emit, Outcome, Reads
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import KEY_GROUPS
from fennel_core.vocab.versions import GONE, POS, SIGN

STEP_VERSION = 1
MOMENTS = b"m"
AGENDA = b"g"
FRONTIER_PLACE = b"\x00\x00f"
Moment = tuple[bytes, int]
"""A key and a time."""


class EmittedAggregateStep:
    """The step of a `spec.Aggregate` that is not terminal."""

    def __init__(self, spec: Aggregate) -> None:
        aggregations = [make(one, spec.input) for one in spec.specs]
        self._windows = [one.window for one in spec.specs]
        self._lookback_us = lookback_us(self._windows)
        self._filing = Filing(spec.input, spec.keys, spec.along, aggregations)
        self._tiles = Tiles(self._filing.layout, aggregations)
        self._assembler = Assembler(self._tiles, aggregations, range(len(aggregations)))
        self._order = [[one.name for one in spec.specs].index(name) for name in spec.output.value_names]
        self._keys = columns_of(spec.output, spec.output.key_names)
        self._values = columns_of(spec.output, (spec.output.timestamp, *spec.output.value_names))
        self._names = output_names(spec.output)

    def apply(self, reads: Reads, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "an aggregation has one input"
        filed = self._filing.file(batch)
        after = Overlay(reads, dict(self._tiles.add(reads, filed.keys, filed.records, filed.starts)))
        added = filed.records.ts[filed.records.weight > 0]
        visible = self._visible(reads)
        reasons = _reasons(filed, *self._changes(filed))
        counts = dict(zip(reasons, map(_count, reads.get_many(list(map(_place, reasons)))), strict=True))
        for moment, change in reasons.items():
            self._record(after, moment, counts[moment] + change, visible=moment[1] <= visible)
        affected = [m for m in self._affected(reads, filed) if m[1] <= visible and m not in counts]
        now, frontier = [m for m in counts if m[1] <= visible], int(added.max()) if len(added) else MIN_TIME
        held = [m for m in now if counts[m]]
        kept = [m for m in now if counts[m] + reasons[m]]
        emits = self._difference(reads, held + affected, after, kept + affected)
        opened = self._raise(reads, after, Micros(frontier))
        return Outcome(puts=after.puts, deletes=frozenset(after.deletes), emits=_merged(emits, self._difference(reads, [], after, opened)))

    def advance(self, reads: Reads, frontier: Micros) -> Outcome:
        """Emit what the frontier of the whole input (its largest accepted event time) makes visible."""
        after = Overlay(reads, {})
        opened = self._raise(reads, after, frontier)
        return Outcome(after.puts, frozenset(after.deletes), _merged(self._difference(reads, [], after, opened)))

    # --- moments ------------------------------------------------------------------------------------------------------

    def _changes(self, filed: Filed) -> tuple[Ints, Ints]:
        found = changes(self._windows, filed.records.ts)
        return found.rows, found.times

    def _record(self, after: Overlay, moment: Moment, count: int, *, visible: bool) -> None:
        """Keep the number of reasons for a moment, and whether it waits for the frontier."""
        assert count >= 0, "a reason is taken back once"
        waiting = _waiting(moment)
        if not count:
            after.delete(_place(moment))
            after.delete(waiting)
            return
        after.put(_place(moment), encode(count))
        if not visible:
            after.put(waiting, b"")

    def _affected(self, reads: Reads, filed: Filed) -> list[Moment]:
        """Moments that were there before, inside the reach of the batch's rows of the same key."""
        first, last = reach(self._windows, filed.records.ts)
        lows, highs = np.minimum.reduceat(first, filed.starts).tolist(), np.maximum.reduceat(last, filed.starts).tolist()
        found: list[Moment] = []
        for key, prefix, low, high in zip(filed.keys, prefixes(MOMENTS, filed.keys), lows, highs, strict=True):
            entries = reads.scan(prefix + time_bytes(low), prefix + time_bytes(high + 1))
            found += [(key, time_of(place, len(prefix))) for place, _ in entries]
        return found

    # --- the frontier -------------------------------------------------------------------------------------------------

    def _visible(self, reads: Reads) -> int:
        """The last moment that may be seen."""
        if self._lookback_us is None:
            return MAX_TIME
        (stored,) = reads.get_many([FRONTIER_PLACE])
        return MIN_TIME if stored is None else int(decode(stored)) - self._lookback_us

    def _raise(self, reads: Reads, after: Overlay, frontier: Micros) -> list[Moment]:
        """Raise the frontier; the moments that become visible, taken off the agenda."""
        if self._lookback_us is None:
            return []
        before, visible = self._visible(after), frontier - self._lookback_us
        if visible <= before:
            return []
        after.put(FRONTIER_PLACE, encode(int(frontier)))
        due = {place for place in after.puts if place[2:3] == AGENDA and time_of(place, 3) <= visible}
        for group in range(KEY_GROUPS):
            prefix = group.to_bytes(2, "big") + AGENDA
            due.update(place for place, _ in reads.scan(prefix, prefix + time_bytes(visible + 1)) if place not in after.deletes)
        for place in due:
            after.delete(place)
        return [(place[3 + TIME_BYTES :], time_of(place, 3)) for place in sorted(due)]

    # --- what is emitted ----------------------------------------------------------------------------------------------

    def _difference(self, before: Reads, old: Sequence[Moment], after: Reads, new: Sequence[Moment]) -> list[pl.DataFrame]:
        was = dict(zip(old, self._rows(before, old), strict=True))
        becomes = dict(zip(new, self._rows(after, new), strict=True))
        gone = [(moment, row) for moment, row in was.items() if becomes.get(moment) != row]
        come = [(moment, row) for moment, row in becomes.items() if was.get(moment) != row]
        return [self._frame(rows, sign) for rows, sign in ((gone, -1), (come, 1)) if rows]

    def _rows(self, reads: Reads, moments: Sequence[Moment]) -> list[bytes]:
        ranges = [[covered(window, time) for window in self._windows] for _, time in moments]
        found = self._assembler.values(reads, [key for key, _ in moments], ranges, [time for _, time in moments])
        return [encode([time, *(values[i] for i in self._order)]) for (_, time), values in zip(moments, found, strict=True)]

    def _frame(self, rows: Sequence[tuple[Moment, bytes]], sign: int) -> pl.DataFrame:
        keys = [key for (key, _), _ in rows]
        frame = pl.concat([decode_rows(keys, self._keys), decode_rows([row for _, row in rows], self._values)], how="horizontal")
        positions = pl.Series(POS, list(map(position_of, keys)), dtype=pl.Binary)
        return frame.with_columns(positions, pl.lit(sign, pl.Int8).alias(SIGN), pl.lit(value=False).alias(GONE)).select(self._names)


def position_of(key: bytes) -> bytes:
    """The position of every version of a derived key: as long as any, and a function of the key alone."""
    return b"\x01" + blake2b(key, digest_size=13).digest()


def _reasons(filed: Filed, rows: Ints, times: Ints) -> dict[Moment, int]:
    """How the number of reasons for each moment changes."""
    owners = np.repeat(np.arange(len(filed.keys)), np.diff(filed.starts, append=len(filed.records)))
    counted = pl.DataFrame({"owner": owners[rows], "time": times, "weight": filed.records.weight[rows]})
    net = counted.group_by("owner", "time", maintain_order=True).agg(pl.col("weight").sum())
    return {(filed.keys[owner], time): weight for owner, time, weight in net.rows()}


def _place(moment: Moment) -> bytes:
    key, time = moment
    return prefixes(MOMENTS, [key])[0] + time_bytes(time)


def _waiting(moment: Moment) -> bytes:
    key, time = moment
    (prefix,) = prefixes(AGENDA, [key])
    return prefix[:3] + time_bytes(time) + key


def _count(stored: bytes | None) -> int:
    return 0 if stored is None else int(decode(stored))


def _merged(*parts: list[pl.DataFrame]) -> tuple[Emit, ...]:
    frames = [frame for part in parts for frame in part]
    return (Emit(0, pl.concat(frames)),) if frames else ()
