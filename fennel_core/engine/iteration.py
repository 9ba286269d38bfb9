"""Compute one iteration: a batch of records of one input becomes an `IterationResult`.

Theory. An iteration is a function of the state, the input number and the records, and nothing else.
The live path, the replay of what an earlier owner committed, and a drill therefore compute it with
the same class and get the same bytes. Nothing is written here: `iteration_writer` makes a result
durable.

Example. A job keeps the sum per key; its state is `{a: 3}`. The records at offsets 7 and 8 hold the
rows `a+2` and `b+1`. `compute` decodes them into one frame and runs the step, which returns the
puts `{a: 5, b: 1}` and the rows to emit. The result adds what else has to be written: the digest of
the puts for the marker, the hash of the state after them, the encoded output records, and the
largest event time of the rows for the watermark of the outputs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.engine import state_progress
from fennel_core.engine.backfill.manifest import Chunk
from fennel_core.engine.broker import FetchedRecords, OutgoingRecord, Record
from fennel_core.engine.outputs import output_records
from fennel_core.engine.watermarks import batch_max_time, carries_watermark, received_watermark
from fennel_core.hangar.store import Hangar
from fennel_core.operators.aggregate.overlay import StateOverlay
from fennel_core.operators.step import OperatorStep, Outcome, StateReader, WatermarkStep
from fennel_core.vocab.ids import Micros, PartitionIndex
from fennel_core.vocab.versions import decode, row_count

T = TypeVar("T")


class WorkerPool(Protocol):
    """Runs CPU work: a thread in production, the simulation's own order of events in tests."""

    async def run(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class JobLogic:
    """The computation of a job."""

    step: OperatorStep | None
    """None where the job only runs user code."""
    watermark_step: WatermarkStep | None
    """The same step where it closes windows by watermark, else None."""
    step_version: int
    run_user_code: Callable[[pl.DataFrame], Awaitable[Outcome]] | None
    """None where the job has no user code."""


@dataclass(frozen=True, slots=True)
class IterationResult:
    """Everything that one iteration writes, computed before any of it is written."""

    outcome: Outcome
    digest: bytes
    """Of the mutations; empty for a job without outputs, which writes no marker."""
    state_hash: int
    """Of the state after the iteration."""
    outgoing: tuple[OutgoingRecord, ...]
    max_time: Micros | None
    """The largest event time that the iteration received, as a watermark or, where an output
    carries the watermark, in rows.
    """


def portions(fetched: FetchedRecords, max_rows: int) -> Iterator[FetchedRecords]:
    """Cut what was fetched into portions of at most `max_rows` rows, unless one record has more.

    A write batch keeps the interpreter, and with it the lease, for as long as it takes; its size
    follows the rows of the iteration.
    """
    if len(fetched.records) < 2:
        yield fetched
        return
    taken: list[Record] = []
    rows = 0
    for record in fetched.records:
        more = 0 if record.control is not None else row_count(record.value)
        if taken and rows + more > max_rows:
            yield FetchedRecords(fetched.source, tuple(taken), record.offset)
            taken, rows = [], 0
        taken.append(record)
        rows += more
    yield FetchedRecords(fetched.source, tuple(taken), fetched.next)


class IterationComputer:
    """Computes the iterations of one job partition over its state."""

    def __init__(
        self, job: Job, part: PartitionIndex, logic: JobLogic, hangar: Hangar, pool: WorkerPool
    ) -> None:
        self._job, self._part, self._logic = job, part, logic
        self._hangar, self._pool = hangar, pool
        self._carries_watermark = carries_watermark(job)

    def skips(self, records: Sequence[Record]) -> bool:
        """Return True for control records that neither the step nor a consumer of its outputs uses.

        Such records need no iteration; a batch with rows always does.
        """
        return (
            self._logic.watermark_step is None
            and not self._carries_watermark
            and all(record.control is not None for record in records)
        )

    async def compute(
        self, source: int, records: Sequence[Record], state_hash: int
    ) -> IterationResult:
        """Compute the iteration over `records` of input number `source`.

        `state_hash`: hash of the state before it. Raises what the step or the user code raises.
        """
        rows = [record for record in records if record.control is None]
        watermark = received_watermark(records)
        run_user_code = self._logic.run_user_code
        if run_user_code is None:
            # One trip to the worker thread for all of it: a second one would queue behind the
            # other runners of the slot again.
            return await self._pool.run(
                partial(self._apply_step, source, rows, watermark, state_hash)
            )
        outcome = Outcome()
        if rows:
            outcome = await run_user_code(await self._pool.run(partial(_frame, rows)))
        return await self._pool.run(
            partial(self.result, self._hangar, outcome, watermark, state_hash)
        )

    async def compute_chunk(self, chunk: Chunk, state_hash: int) -> IterationResult:
        """Return the iteration that publishes a chunk of a backfill, computed by a batch."""
        outcome = Outcome(puts=chunk.puts)
        result = await self._pool.run(partial(self.result, self._hangar, outcome, None, state_hash))
        return replace(result, outgoing=chunk.outgoing)

    def unchanged(self, state_hash: int) -> IterationResult:
        """Return the result of an iteration that mutates nothing."""
        return self.result(self._hangar, Outcome(), None, state_hash)

    def result(
        self, reads: StateReader, outcome: Outcome, max_time: Micros | None, state_hash: int
    ) -> IterationResult:
        """Complete an outcome with its digest, the state hash after it and its output records."""
        return IterationResult(
            outcome,
            state_progress.mutations_digest(outcome) if self._job.outputs else b"",
            state_progress.updated_state_hash(reads, state_hash, outcome),
            tuple(output_records(self._job, self._part, outcome.emits, outcome.dead)),
            max_time,
        )

    def _apply_step(
        self, source: int, rows: Sequence[Record], watermark: Micros | None, state_hash: int
    ) -> IterationResult:
        reads = state_progress.CachedReads(self._hangar)
        batch = _frame(rows) if rows else None
        max_time = watermark
        if batch is not None and self._carries_watermark:
            of_rows = batch_max_time(self._job, source, batch)
            max_time = max((t for t in (watermark, of_rows) if t is not None), default=None)
        return self.result(
            reads, self._run_step(reads, source, batch, watermark), max_time, state_hash
        )

    def _run_step(
        self, reads: StateReader, source: int, batch: pl.DataFrame | None, watermark: Micros | None
    ) -> Outcome:
        step = self._logic.step
        assert step is not None, "a job has a step or runs user code"
        outcome = Outcome() if batch is None else step.apply(reads, source, batch)
        if watermark is None or self._logic.watermark_step is None:
            return outcome
        after = StateOverlay(reads, dict(outcome.puts))
        after.deletes.update(outcome.deletes)
        return _merged(outcome, self._logic.watermark_step.advance(after, watermark))


def _merged(first: Outcome, second: Outcome) -> Outcome:
    """Return one outcome for two, where `second` was computed over the state after `first`."""
    puts = {key: value for key, value in first.puts.items() if key not in second.deletes} | dict(
        second.puts
    )
    deletes = (first.deletes - second.puts.keys()) | second.deletes
    return Outcome(puts, deletes, first.emits + second.emits, first.dead + second.dead)


def _frame(rows: Sequence[Record]) -> pl.DataFrame:
    frames = [decode(record.value) for record in rows]
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical")
