"""Session windows as keys: one row per key and session, at the session's end.

Theory. Rows of a key belong to one session while no pause longer than `gap` lies between them
(client semantics 4.3: `ts <= last + gap`). A session is visible at once, though it may still grow:
then its row is taken back and another said, because its end, and so its key, has changed. A batch
can only change the sessions that its rows touch or come near: the region from the session before
the first row, if it is within `gap`, to the end of the session after the last. Both before and
after the batch, pauses longer than `gap` enclose the region, so sessions are found inside it from
the times of its rows alone. A session ends one microsecond after its last row.

State: tiles (`aggregate/tiles.py`), and tag `t`: key, time → number of rows (msgpack); tag `s`:
key, begin of a session → its last time.
"""

from __future__ import annotations

from collections.abc import Sequence
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
Session = tuple[int, int]
"""Times of the first and the last row."""


class SessionWindowsStep:
    """The step of `spec.WindowsSpec` over session windows."""

    def __init__(self, spec: WindowsSpec) -> None:
        assert isinstance(spec.window, wire.Session), (
            "tumbling and hopping windows have a step of their own"
        )
        self._gap_us = spec.window.gap_us
        aggregations = [
            CountAggregator(None),
            *(make_aggregator(one, spec.input) for one in spec.specs),
        ]
        self._count = len(aggregations)
        self._filing = Grouping(spec.input, spec.by, None, aggregations)
        self._tiles = Tiles(self._filing.layout, aggregations)
        assembler = Assembler(self._tiles, aggregations, range(self._count))
        self._results = ResultEmitter(
            assembled(assembler),
            ["", *(one.name for one in spec.specs)],
            spec.by,
            spec.output,
            spec.field,
        )

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "windows have one input"
        filed = self._filing.file(batch)
        after = StateOverlay(
            reads, dict(self._tiles.add(reads, filed.keys, filed.records, filed.starts))
        )
        old: list[ResultRow] = []
        new: list[ResultRow] = []
        places = zip(
            filed.keys,
            _net(filed),
            prefixes(TIMES, filed.keys),
            prefixes(SESSIONS, filed.keys),
            strict=True,
        )
        for key, change, times, sessions in places:
            was, becomes = self._resolve(reads, after, change, times, sessions)
            old += [self._derived(key, session) for session in was]
            new += [self._derived(key, session) for session in becomes]
        frames = self._results.difference(reads, old, after, new)
        return Outcome(puts=after.puts, deletes=frozenset(after.deletes), emits=to_outputs(frames))

    def advance(self, reads: StateReader, frontier: Micros) -> Outcome:  # noqa: ARG002  # the contract of Advances
        """Nothing: sessions are visible at once."""
        return Outcome()

    def _resolve(
        self,
        reads: StateReader,
        after: StateOverlay,
        change: dict[int, int],
        times: bytes,
        sessions: bytes,
    ) -> tuple[list[Session], list[Session]]:
        """The sessions of one key in the region of its changes, before and after them."""
        start, stop = self._region(reads, sessions, min(change), max(change))
        held = reads.scan(times + time_bytes(start), times + time_bytes(stop + 1))
        counts = {time_of(place, len(times)): int(decode(count)) for place, count in held}
        for moment, weight in change.items():
            count = counts.get(moment, 0) + weight
            assert count >= 0, "a row is taken back once"
            if count:
                counts[moment] = count
                after.put(times + time_bytes(moment), encode(count))
            else:
                counts.pop(moment, None)
                after.delete(times + time_bytes(moment))
        entries = reads.scan(sessions + time_bytes(start), sessions + time_bytes(stop + 1))
        was = [(time_of(place, len(sessions)), int(decode(last))) for place, last in entries]
        becomes = self._sessions(sorted(counts))
        for begin, _ in was:
            after.delete(sessions + time_bytes(begin))
        for begin, last in becomes:
            after.put(sessions + time_bytes(begin), encode(last))
        return was, becomes

    def _region(
        self, reads: StateReader, sessions: bytes, first: int, last: int
    ) -> tuple[int, int]:
        before = reads.scan(sessions, sessions + time_bytes(first + 1), reverse=True, limit=1)
        start = first
        if before and int(decode(before[0][1])) >= first - self._gap_us:
            start = time_of(before[0][0], len(sessions))
        following = reads.scan(
            sessions, sessions + time_bytes(last + self._gap_us + 1), reverse=True, limit=1
        )
        return start, max(last, int(decode(following[0][1]))) if following else last

    def _sessions(self, times: Sequence[int]) -> list[Session]:
        if not times:
            return []
        pauses = [(a, b) for a, b in pairwise(times) if b - a > self._gap_us]
        return list(
            zip(
                [times[0], *(b for _, b in pauses)],
                [*(a for a, _ in pauses), times[-1]],
                strict=True,
            )
        )

    def _derived(self, key: bytes, session: Session) -> ResultRow:
        begin, last = session
        return ResultRow(
            key, last + 1, ((begin - 1, last),) * self._count, window=(begin, last + 1)
        )


def _net(filed: GroupedRecords) -> list[dict[int, int]]:
    """Per key, how the number of rows at each time changes."""
    owners = np.repeat(np.arange(len(filed.keys)), np.diff(filed.starts, append=len(filed.records)))
    rows = pl.DataFrame({"owner": owners, "time": filed.records.ts, "weight": filed.records.weight})
    out: list[dict[int, int]] = [{} for _ in filed.keys]
    for owner, time, weight in (
        rows.group_by("owner", "time", maintain_order=True).agg(pl.col("weight").sum()).rows()
    ):
        out[owner][time] = weight
    return out
