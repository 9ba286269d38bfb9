"""Session windows as keys: one row per key and session, at the session's end.

Theory. Rows of a key belong to one session while no pause longer than `gap` lies between them
(client semantics 4.3: `ts <= last + gap`). A session is visible at once, though it may still grow;
then its row is retracted and another one added, because its end, and so its key, has changed. A
batch can only change the sessions that its rows touch or come near: the region from the session
before the first row, if it is within `gap`, to the end of the session after the last row. Pauses
longer than `gap` enclose the region both before and after the batch, so sessions are found inside
it from the times of its rows alone. A session ends one microsecond after its last row.

Example. With a gap of 10 min and rows at 0:00, 0:05 and 0:20 there are two sessions, 0:00-0:05 and
0:20-0:20. A late row at 0:12 is within the gap of both: both are retracted, and one session
0:00-0:20 is added.

State: tiles (`aggregate/tiles.py`); tag `t`: key, time → number of rows (msgpack); tag `s`: key,
first time of a session → its last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from fennel_core.aggregates.count import CountAggregator
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.operators.aggregate.assemble import Assembler
from fennel_core.operators.aggregate.grouping import GroupedRecords, Grouping
from fennel_core.operators.aggregate.overlay import StateOverlay
from fennel_core.operators.aggregate.results import ResultEmitter, ResultRow, assembled, to_outputs
from fennel_core.operators.aggregate.tiles import Tiles
from fennel_core.operators.rows import decode, encode, prefixes, time_bytes, time_of
from fennel_core.operators.spec import WindowsSpec
from fennel_core.operators.step import Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.wire import operators as wire

TIMES = b"t"
SESSIONS = b"s"


@dataclass(frozen=True, slots=True)
class SessionSpan:
    """Times of the first and the last row of a session."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Touched:
    """One key of a batch. `counts`: by how much the number of rows at each time changes; the state
    keys of its times and sessions begin with the two prefixes.
    """

    counts: dict[int, int]
    times_prefix: bytes
    sessions_prefix: bytes


class SessionWindowsStep:
    """Runs a `WindowsSpec` over session windows."""

    def __init__(self, spec: WindowsSpec) -> None:
        assert isinstance(spec.window, wire.Session), "see HoppingWindowsStep"
        self._gap_us = spec.window.gap_us
        aggregators = [
            CountAggregator(None),
            *(make_aggregator(one, spec.input) for one in spec.specs),
        ]
        self._value_count = len(aggregators)
        self._grouping = Grouping(spec.input, spec.by, None, aggregators)
        self._tiles = Tiles(self._grouping.layout, aggregators)
        # The first value, the number of rows, is not a column: no column has the empty name.
        names = ["", *(one.name for one in spec.specs)]
        assembler = Assembler(self._tiles, aggregators, range(self._value_count))
        self._results = ResultEmitter(assembled(assembler), names, spec.by, spec.output, spec.field)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "windows have one input"
        grouped = self._grouping.group(batch)
        puts = self._tiles.add(reads, grouped.keys, grouped.records, grouped.starts)
        after = StateOverlay(reads, dict(puts))
        old: list[ResultRow] = []
        new: list[ResultRow] = []
        touched = map(
            _Touched,
            _count_changes(grouped),
            prefixes(TIMES, grouped.keys),
            prefixes(SESSIONS, grouped.keys),
        )
        for key, one in zip(grouped.keys, touched, strict=True):
            was, becomes = self._resolve(reads, after, one)
            old += [self._result_row(key, session) for session in was]
            new += [self._result_row(key, session) for session in becomes]
        frames = self._results.difference(reads, old, after, new)
        return Outcome(puts=after.puts, deletes=frozenset(after.deletes), emits=to_outputs(frames))

    def advance(self, reads: StateReader, watermark: Micros) -> Outcome:  # noqa: ARG002  # the contract of WatermarkStep
        """Change nothing: sessions are visible at once."""
        return Outcome()

    def _resolve(
        self, reads: StateReader, after: StateOverlay, touched: _Touched
    ) -> tuple[list[SessionSpan], list[SessionSpan]]:
        """Return the sessions of one key in the region of its changes, before and after them, and
        write the changes to `after`.
        """
        times, sessions = touched.times_prefix, touched.sessions_prefix
        start, stop = self._region(reads, sessions, min(touched.counts), max(touched.counts))
        stored = reads.scan(times + time_bytes(start), times + time_bytes(stop + 1))
        counts = {time_of(state_key, len(times)): int(decode(count)) for state_key, count in stored}
        for time, delta in touched.counts.items():
            count = counts.get(time, 0) + delta
            assert count >= 0, "a row is retracted once"
            if count:
                counts[time] = count
                after.put(times + time_bytes(time), encode(count))
            else:
                counts.pop(time, None)
                after.delete(times + time_bytes(time))
        entries = reads.scan(sessions + time_bytes(start), sessions + time_bytes(stop + 1))
        was = [
            SessionSpan(time_of(state_key, len(sessions)), int(decode(last)))
            for state_key, last in entries
        ]
        becomes = self._sessions(sorted(counts))
        for session in was:
            after.delete(sessions + time_bytes(session.first))
        for session in becomes:
            after.put(sessions + time_bytes(session.first), encode(session.last))
        return was, becomes

    def _region(
        self, reads: StateReader, sessions: bytes, first: int, last: int
    ) -> tuple[int, int]:
        """Return the first and last time of the region that rows from `first` to `last` can
        change.
        """
        before = reads.scan(sessions, sessions + time_bytes(first + 1), reverse=True, limit=1)
        start = first
        if before and int(decode(before[0][1])) >= first - self._gap_us:
            start = time_of(before[0][0], len(sessions))
        following = reads.scan(
            sessions, sessions + time_bytes(last + self._gap_us + 1), reverse=True, limit=1
        )
        return start, max(last, int(decode(following[0][1]))) if following else last

    def _sessions(self, times: Sequence[int]) -> list[SessionSpan]:
        """Return the sessions of rows at `times` (ascending)."""
        if not times:
            return []
        pauses = [(a, b) for a, b in pairwise(times) if b - a > self._gap_us]
        firsts = [times[0], *(b for _, b in pauses)]
        lasts = [*(a for a, _ in pauses), times[-1]]
        return list(map(SessionSpan, firsts, lasts))

    def _result_row(self, key: bytes, session: SessionSpan) -> ResultRow:
        end = session.last + 1
        ranges = ((session.first - 1, session.last),) * self._value_count
        return ResultRow(key, end, ranges, window=(session.first, end))


def _count_changes(grouped: GroupedRecords) -> list[dict[int, int]]:
    """Return, per key, by how much the number of rows at each time changes."""
    owners = np.repeat(
        np.arange(len(grouped.keys)), np.diff(grouped.starts, append=len(grouped.records))
    )
    rows = pl.DataFrame(
        {"owner": owners, "time": grouped.records.ts, "weight": grouped.records.weight}
    )
    net = rows.group_by("owner", "time", maintain_order=True).agg(pl.col("weight").sum())
    out: list[dict[int, int]] = [{} for _ in grouped.keys]
    for owner, time, weight in net.rows():
        out[owner][time] = weight
    return out
