"""The Job Runner: one job partition, from fencing to the end of its ownership.

Theory. Start: fence every earlier owner (open the producer), say so in the replaylog (epoch
marker), read the replaylog to its end, replay what the state has not applied (same step, same
ranges, no output, digests compared), then run live. An iteration reads one batch of one input, runs
the pure step, commits outputs and marker in one Kafka transaction, and only then applies mutations,
offsets and replaylog position to state in one write batch. Die at any point: either the transaction
did not commit and nothing happened, or it did and replay applies it. A job partition that begins
over long history is computed by a batch first (`backfill`) and published here, chunk by chunk, in
the same way.

A job without outputs has nothing to make atomic: its state is a function of the offsets it holds,
so it writes no transaction at all (decision record 0003). Clock, threads, broker and store are
arguments: the simulation runs this class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import polars as pl

from fennel_core.blueprints.spec import Job
from fennel_core.connections.errors import TransactionAborted
from fennel_core.engine import state_progress as progress_of_state
from fennel_core.engine.backfill.client import BackfillClient, BackfillImpossible
from fennel_core.engine.backfill.manifest import (
    BackfillCorrupt,
    BackfillManifest,
    Chunk,
    backfill_in_progress,
    input_topic,
    manifest_key,
)
from fennel_core.engine.broker import Broker, FetchedRecords, OutgoingRecord, Producer, Record
from fennel_core.engine.errors import (
    EpochSuperseded,
    LogTruncated,
    OffsetBeyondEnd,
    OffsetTruncated,
    ReplayMismatch,
    StateAheadOfLog,
    StateDiscarded,
)
from fennel_core.engine.outputs import messages
from fennel_core.engine.state_progress import StateProgress
from fennel_core.engine.watermarks import OutputWatermarks, given, told
from fennel_core.hangar.store import Hangar
from fennel_core.operators.aggregate.overlay import StateOverlay
from fennel_core.operators.step import OperatorStep, Outcome, StateReader, WatermarkStep
from fennel_core.replaylog import marker as markers
from fennel_core.replaylog.marker import ConsumedRange, EpochMarker, IterationMarker
from fennel_core.vocab.ids import Epoch, Micros, Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import decode

T = TypeVar("T")
COMMIT_ATTEMPTS = 3
"""A transaction that was aborted wrote nothing: it is tried again this often before the runner is
restarted.
"""


class WorkerPool(Protocol):
    """Where CPU work runs: a thread in production, the simulation's own order of events in
    tests.
    """

    async def run(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    iteration_bytes: int
    environment: str
    """Hash of the platform's pinned environment, stored in markers."""


@dataclass(frozen=True, slots=True)
class JobLogic:
    """What a job partition computes. `apply` is pure; `prepare` runs user code first where the job
    has any.
    """

    step: OperatorStep | None
    """None where the job only runs user code."""
    advances: WatermarkStep | None
    """The side of the step that closes windows, if it has one."""
    version: int
    prepare: Callable[[pl.DataFrame], Awaitable[Outcome]] | None


@dataclass(frozen=True, slots=True)
class IterationResult:
    """What one iteration came to, all of it worked out before anything is written."""

    outcome: Outcome
    digest: bytes
    state_hash: int
    outgoing: tuple[OutgoingRecord, ...]
    heard: Micros | None
    """How far event time has come, by what the iteration was given and told; for the frontier of
    outputs that carry one.
    """


class Runner:
    """One ownership of one job partition. `run` returns never; it ends by cancellation or by
    raising.
    """

    def __init__(
        self,
        job: Job,
        part: int,
        epoch: Epoch,
        work: JobLogic,
        hangar: Hangar,
        broker: Broker,
        pool: WorkerPool,
        limits: RunnerLimits,
        backfill_client: BackfillClient | None = None,
    ) -> None:
        """`backfill_client` None: every row comes live."""
        self.job, self.part, self.epoch = job, PartitionIndex(part), epoch
        self._backfill_client = backfill_client
        self.status = "replaying"
        self._work, self._hangar, self._broker, self._pool, self._limits = (
            work,
            hangar,
            broker,
            pool,
            limits,
        )
        self._producer: Producer | None = None
        self._frontiers = OutputWatermarks(job)
        self._progress: StateProgress = progress_of_state.NO_PROGRESS
        self._applied: dict[TopicName, Offset] = {}
        self._lag: Callable[[], int | None] = lambda: None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[object] | None = None
        self._condemned: str | None = None

    @property
    def hangar(self) -> Hangar:
        return self._hangar

    @property
    def progress(self) -> StateProgress:
        """What the state has come to: as of the last iteration applied."""
        return self._progress

    @property
    def applied(self) -> Mapping[TopicName, Offset]:
        """Next offset per input topic: everything below is visible to lookups."""
        return self._applied

    @property
    def lag(self) -> int | None:
        """Records not yet applied; None while unknown."""
        return self._lag()

    @property
    def step(self) -> OperatorStep | None:
        return self._work.step

    def behind(self, targets: Mapping[TopicName, Offset]) -> bool:
        """Is anything below `targets` not applied yet?"""
        return any(self._applied.get(topic, 0) < offset for topic, offset in targets.items())

    def changed(self) -> Coroutine[None, None, object]:
        """To be awaited: returns when `applied` or `status` has changed since this call, even if it
        is awaited later.
        """
        return self._changed.wait()

    def persist_offsets(self) -> StateProgress:
        """Write down how far the inputs have been passed, also over what needed no iteration; the
        progress then.

        Transaction markers and control records that nobody here listens to are not worth a write
        each, but whoever deletes what is behind us must not wait for them. Nothing of interest lies
        between, so no marker on the replaylog is owed.
        """
        passed = {
            topic: offset
            for topic, offset in self._applied.items()
            if offset > self._progress.offsets.get(topic, 0)
        }
        if passed and self.status == "running":
            known = self._progress
            self._progress = self._store(
                known.iteration, Outcome(), known.state_hash, passed, known.replayed
            )
        return self._progress

    def discard_state(self, why: str) -> None:
        """Stop as soon as possible: `run` raises Condemned."""
        self._condemned = why
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Fence, recover, then iterate until cancelled.

        Raises Fenced, Superseded and Unknown; Unusable when the state must be rebuilt; Missing when
        the log no longer has what it needs; and what the step raises.
        """
        self._task = asyncio.current_task()
        try:
            await self._run()
        except asyncio.CancelledError:
            if (
                self._condemned is not None
                and self._task is not None
                and self._task.uncancel() == 0
            ):
                raise StateDiscarded(self._condemned) from None
            raise
        except OffsetTruncated as gone:
            raise LogTruncated(
                f"{self.job.title} ({self.job.id}[{self.part}]) stands before the "
                f"beginning of its log: {gone}. Nothing is skipped. "
                f"No snapshot of it stands at {gone.start} or later: commit its "
                "dataset under a new version"
            ) from gone
        except OffsetBeyondEnd as beyond:
            raise StateAheadOfLog(
                f"{self.job.id}[{self.part}] holds state of another log: {beyond}"
            ) from beyond
        finally:
            self._task = None

    async def replay_copy(self, until: StateProgress) -> StateProgress:
        """Bring a copy of the state to where `until` stands, as a recovery would; the progress
        then.

        In place of `run`, for a state that is not the partition's own: nobody is fenced and nothing
        is written to the log. Raises what a recovery would: Unusable, Missing, LoadDamaged, and the
        broker's errors.
        """
        self._progress = progress_of_state.load(self._hangar)
        try:
            if self.job.outputs:
                await self._replay_until(until.replayed)
            else:
                await self._read_until(until.offsets)
        except OffsetTruncated as gone:
            raise LogTruncated(
                f"{self.job.title} ({self.job.id}[{self.part}]) could not be "
                f"recovered from there: {gone}"
            ) from gone
        return self._progress

    async def _read_until(self, ends: Mapping[TopicName, Offset]) -> None:
        """Without outputs there are no markers: the state is a function of the offsets, whatever
        the batches (decision 0003).
        """
        for topic, following in ends.items():
            if (name := manifest_key(topic)) is not None:
                assert self._backfill_client is not None, "a backfill needs its client"
                load = await self._backfill_client.manifest(name)
                for number in range(self._progress.offsets.get(topic, 0), following):
                    await self._publish(
                        load, number, await self._backfill_client.chunk(load, number)
                    )
        wanted = {
            topic: ends[topic]
            for topic in self.job.inputs
            if ends.get(topic, 0) > self._progress.offsets.get(topic, 0)
        }
        if not wanted:
            return
        self._applied = {topic: self._progress.offsets.get(topic, Offset(0)) for topic in wanted}
        subscription = await self._broker.subscribe(
            {(topic, self.part): offset for topic, offset in self._applied.items()}
        )
        try:
            while self.behind(wanted):
                fetched = await subscription.next(self._limits.iteration_bytes)
                topic = fetched.source[0]
                records = tuple(
                    record for record in fetched.records if record.offset < wanted[topic]
                )
                if records:
                    await self._iterate(
                        FetchedRecords(fetched.source, records, min(fetched.next, wanted[topic]))
                    )
                self._applied[topic] = fetched.next
        finally:
            await subscription.close()

    async def _run(self) -> None:
        self._progress = progress_of_state.load(self._hangar)
        if self.job.outputs:
            self._producer = await self._broker.producer(f"{self.job.id}-{self.part}")
            try:
                await self._recover(self._producer)
                await self._load()
                await self._live()
            finally:
                await self._producer.close()
        else:
            await self._load()
            await self._live()

    async def _recover(self, producer: Producer) -> None:
        written = await producer.commit([self._to_replaylog(EpochMarker(self.epoch))])
        end = written[(self.job.replaylog, self.part)]
        if self._progress.replayed > end:
            raise OffsetBeyondEnd((self.job.replaylog, self.part), self._progress.replayed, end)
        await self._replay_until(end)
        self._progress = self._store(
            self._progress.iteration, Outcome(), self._progress.state_hash, {}, end
        )

    async def _replay_until(self, end: Offset) -> None:
        log = await self._broker.read((self.job.replaylog, self.part), self._progress.replayed, end)
        found = [(record.offset, markers.decode_marker(record.value)) for record in log]
        self._refuse_later_than_ours(max((marker.epoch for _, marker in found), default=self.epoch))
        for offset, marker in found:
            if isinstance(marker, IterationMarker):
                await self._replay(marker, Offset(offset + 1))

    def _refuse_later_than_ours(self, highest: Epoch) -> None:
        """Opening the producer fenced whoever has it, also an owner that came after us; they will
        open theirs anew.
        """
        if highest > self.epoch:
            raise EpochSuperseded(
                f"epoch {highest} is at the end of the replaylog, ours is {self.epoch}"
            )

    async def _replay(self, marker: IterationMarker, replayed: Offset) -> None:
        """Apply what an earlier owner committed and did not apply; emits nothing."""
        made = self._made(self._hangar, Outcome(), None)
        name = manifest_key(marker.ranges[0].topic)
        if marker.digest != made.digest and name is not None:
            assert self._backfill_client is not None, "a backfill needs its client"
            made = await self._of_chunk(
                await self._backfill_client.chunk(
                    await self._backfill_client.manifest(name), marker.ranges[0].first
                )
            )
        elif marker.digest != made.digest:
            for covered in marker.ranges:
                records = await self._broker.read(
                    (covered.topic, self.part), covered.first, covered.next
                )
                made = await self._work_out(self.job.inputs.index(covered.topic), tuple(records))
        if made.digest != marker.digest:
            raise ReplayMismatch(
                f"iteration {marker.iteration} replayed to other mutations than it "
                f"made (step version {marker.step_version} then, "
                f"{self._work.version} now; environment {marker.environment} then, "
                f"{self._limits.environment} now): "
                "this state is given up for an older snapshot"
            )
        offsets = {covered.topic: covered.next for covered in marker.ranges}
        self._progress = self._store(
            marker.iteration, made.outcome, made.state_hash, offsets, replayed
        )

    async def _load(self) -> None:
        """Publish what a batch has computed over history, if there is enough of it or the log lacks
        it; then none of it is read live.
        """
        offsets = self._progress.offsets
        if self._backfill_client is None or any(topic in offsets for topic in self.job.inputs):
            return
        known = backfill_in_progress(offsets)
        if known is not None:
            load, following = await self._backfill_client.manifest(known[0]), known[1]
        else:
            starts = await self._broker.starts([(topic, self.part) for topic in self.job.inputs])
            begins = {topic: start for (topic, _), start in starts.items()}
            try:
                asked, following = (
                    await self._backfill_client.obtain(self.job, PartitionIndex(self.part), begins),
                    Offset(0),
                )
            except BackfillImpossible as lost:
                raise LogTruncated(str(lost)) from lost
            if asked is None:
                return
            load = asked
        made_by = (load.step_version, load.state_format)
        if made_by != (self._work.version, progress_of_state.STATE_FORMAT):
            raise BackfillCorrupt(
                f"load {load.key} was of step version and state format {made_by}: "
                "commit its dataset under a new version"
            )
        self.status = "backfilling"
        self._announce()
        for number in range(following, len(load.chunks)):
            await self._publish(load, number, await self._backfill_client.chunk(load, number))

    async def _publish(self, load: BackfillManifest, number: int, chunk: Chunk) -> None:
        made = await self._of_chunk(chunk)
        covered = [ConsumedRange(input_topic(load.key), Offset(number), Offset(number + 1))]
        if number + 1 == len(load.chunks):
            covered += [
                ConsumedRange(TopicName(topic), Offset(0), Offset(end))
                for topic, end in load.end_offsets.items()
            ]
        replayed = self._progress.replayed
        if self._producer is not None:
            replayed = await self._commit(self._producer, made, tuple(covered))
        offsets = {each.topic: each.next for each in covered}
        self._progress = self._store(
            self._progress.iteration + 1, made.outcome, made.state_hash, offsets, replayed
        )

    async def _of_chunk(self, chunk: Chunk) -> IterationResult:
        made = await self._pool.run(
            partial(self._made, self._hangar, Outcome(puts=chunk.puts), None)
        )
        return replace(made, outgoing=chunk.outgoing)

    async def _live(self) -> None:
        offsets = {topic: self._progress.offsets.get(topic, Offset(0)) for topic in self.job.inputs}
        self._applied = dict(offsets)
        subscription = await self._broker.subscribe(
            {(topic, self.part): offset for topic, offset in offsets.items()}
        )
        self._lag = subscription.lag
        self.status = "running"
        self._announce()
        try:
            while True:
                fetched = await subscription.next(self._limits.iteration_bytes)
                if fetched.records:
                    await self._iterate(fetched)
                self._applied[fetched.source[0]] = fetched.next
                self._announce()
        finally:
            self.status = "stopped"
            self._lag = lambda: None
            self._announce()
            await subscription.close()

    async def _iterate(self, fetched: FetchedRecords) -> None:
        topic = fetched.source[0]
        first = self._progress.offsets.get(topic, Offset(0))
        assert fetched.records[0].offset >= first, (
            f"record {fetched.records[0].offset} of {topic} was applied before (next is {first})"
        )
        if (
            self._work.advances is None
            and not self._frontiers.wanted
            and all(record.control is not None for record in fetched.records)
        ):
            return  # control records that nobody here listens to, nor behind us
        made = await self._work_out(self.job.inputs.index(topic), fetched.records)
        assert self._producer is not None or not made.outgoing, (
            "a job without outputs emits nothing"
        )
        replayed = self._progress.replayed
        if self._producer is not None:
            replayed = await self._commit(
                self._producer, made, (ConsumedRange(topic, first, fetched.next),)
            )
        iteration = self._progress.iteration + 1
        self._progress = self._store(
            iteration, made.outcome, made.state_hash, {topic: fetched.next}, replayed
        )

    async def _work_out(self, source: int, records: tuple[Record, ...]) -> IterationResult:
        """One trip to the worker thread for everything there is to compute: each further one would
        wait its turn behind other runners.
        """
        data = [record for record in records if record.control is None]
        frontier = told(records)
        if self._work.prepare is not None:
            outcome = (
                await self._work.prepare(await self._pool.run(partial(_frame, data)))
                if data
                else Outcome()
            )
            return await self._pool.run(partial(self._made, self._hangar, outcome, frontier))
        return await self._pool.run(partial(self._computed, source, data, frontier))

    def _computed(
        self, source: int, data: Sequence[Record], frontier: Micros | None
    ) -> IterationResult:
        reads = progress_of_state.CachedReads(self._hangar)
        batch = _frame(data) if data else None
        heard = [
            frontier,
            given(self.job, source, batch)
            if batch is not None and self._frontiers.wanted
            else None,
        ]
        outcome = self._step(reads, source, batch, frontier)
        return self._made(
            reads, outcome, max((time for time in heard if time is not None), default=None)
        )

    def _made(self, reads: StateReader, outcome: Outcome, heard: Micros | None) -> IterationResult:
        state_hash = progress_of_state.updated_state_hash(reads, self._progress.state_hash, outcome)
        outgoing = messages(self.job, self.part, outcome.emits, outcome.dead)
        digest = (
            progress_of_state.digest(outcome) if self.job.outputs else b""
        )  # without outputs there is no marker to put it into
        return IterationResult(outcome, digest, state_hash, tuple(outgoing), heard)

    def _step(
        self, reads: StateReader, source: int, batch: pl.DataFrame | None, frontier: Micros | None
    ) -> Outcome:
        step = self._work.step
        assert step is not None, "a job has a step or runs user code"
        outcome = Outcome() if batch is None else step.apply(reads, source, batch)
        if frontier is None or self._work.advances is None:
            return outcome
        after = StateOverlay(reads, dict(outcome.puts))
        after.deletes.update(outcome.deletes)
        return _then(outcome, self._work.advances.advance(after, frontier))

    async def _commit(
        self, producer: Producer, made: IterationResult, covered: tuple[ConsumedRange, ...]
    ) -> Offset:
        iteration = self._progress.iteration + 1
        state_format = progress_of_state.STATE_FORMAT
        marker = IterationMarker(
            self.epoch,
            iteration,
            covered,
            self._work.version,
            state_format,
            self._limits.environment,
            made.digest,
        )
        outgoing = [
            *made.outgoing,
            *self._frontiers.messages(made.outcome.emits, made.heard),
            self._to_replaylog(marker),
        ]
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                return (await producer.commit(outgoing))[(self.job.replaylog, self.part)]
            except TransactionAborted:
                if attempt == COMMIT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _store(
        self,
        iteration: int,
        outcome: Outcome,
        state_hash: int,
        offsets: Mapping[TopicName, Offset],
        replayed: Offset,
    ) -> StateProgress:
        """Apply an iteration to state. It runs on the thread that also serves lookups: they never
        see half of it.
        """
        after = StateProgress(
            iteration, replayed, {**self._progress.offsets, **offsets}, state_hash
        )
        self._hangar.write(progress_of_state.batch(after, outcome))
        return after

    def _to_replaylog(self, marker: markers.Marker) -> OutgoingRecord:
        return OutgoingRecord(self.job.replaylog, self.part, markers.encode_marker(marker))

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _then(first: Outcome, second: Outcome) -> Outcome:
    """One outcome for two that were made one over the other."""
    puts = {key: value for key, value in first.puts.items() if key not in second.deletes} | dict(
        second.puts
    )
    deletes = (first.deletes - second.puts.keys()) | second.deletes
    return Outcome(puts, deletes, first.emits + second.emits, first.dead + second.dead)


def _frame(data: Sequence[Record]) -> pl.DataFrame:
    frames = [decode(record.value) for record in data]
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical")
