"""The Job Runner: the life of one job partition under one owner, from fencing to its end.

Theory. A runner goes through these phases:

1. Fence. Opening the producer fences every earlier owner's producer; an epoch marker on the
   replaylog records the new ownership. A higher epoch in the state or on the replaylog means that a
   later owner exists: stop.
2. Replay (`replay`). Apply the iterations that an earlier owner committed and this state lacks.
3. Backfill (`backfill.publisher`). A job partition without state over long history publishes what
   a batch has computed, or reads history by itself (`backfill.archived_input`).
4. Live. Read a batch of one input, compute (`iteration`), commit outputs and marker in one Kafka
   transaction and apply the mutations (`iteration_writer`); repeat until cancelled.

A crash at any point leaves either no transaction, and nothing happened, or a committed one, and the
next owner replays it. A job without outputs has no transactions (decision record 0003), so it
starts at phase 3.

Example. Slot A owns partition 0 of a job under epoch 3, commits iteration 12 (marker at replaylog
offset 40) and is killed before it writes the state. Slot B claims epoch 4. Opening the producer
fences A, should it only have been paused; the epoch marker lands at offset 42. B restores a state
of iteration 11, replays the marker at 40 without writing outputs, and reads on live at the offset
where iteration 12 ended.

Clock, threads, broker and store are arguments, so that the simulation runs this class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.spec import Job
from fennel_core.engine.backfill.archived_input import ArchivedInput
from fennel_core.engine.backfill.client import BackfillClient
from fennel_core.engine.backfill.publisher import BackfillPublisher
from fennel_core.engine.broker import Broker
from fennel_core.engine.errors import (
    LogTruncated,
    OffsetBeyondEnd,
    OffsetTruncated,
    StateAheadOfLog,
    StateDiscarded,
)
from fennel_core.engine.iteration import IterationComputer, JobLogic, WorkerPool, portions
from fennel_core.engine.iteration_writer import IterationWriter
from fennel_core.engine.owned_producer import OwnedProducer
from fennel_core.engine.replay import ReplaylogReplay, replay_inputs
from fennel_core.engine.state_progress import PartitionState, StateProgress
from fennel_core.hangar.store import Hangar
from fennel_core.operators.step import OperatorStep, StateReader
from fennel_core.vocab.ids import Epoch, Offset, PartitionIndex, TopicName, TopicPartition

PRODUCER_IDLE_S: Final = 60.0
"""A producer without a commit for one to two of these intervals is closed until it is needed."""


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Settings that all runners of a slot share."""

    iteration_bytes: int
    """Input bytes of one iteration, unless a single record is larger."""
    environment: str
    """Hash of the platform's pinned environment, stored in markers."""
    iteration_rows: int = 10_000
    """Input rows of one iteration, unless a single record has more."""
    producer_idle_s: float = PRODUCER_IDLE_S


class Runner:
    """One ownership of one job partition; `run` ends by cancellation or by raising only."""

    def __init__(
        self,
        job: Job,
        part: int,
        epoch: Epoch,
        logic: JobLogic,
        hangar: Hangar,
        broker: Broker,
        pool: WorkerPool,
        limits: RunnerLimits,
        backfill_client: BackfillClient | None = None,
    ) -> None:
        """`backfill_client` None: every row is read live."""
        self.job, self.part, self.epoch = job, PartitionIndex(part), epoch
        self.status = "replaying"
        """`replaying`, `backfilling`, `running` or `stopped`."""
        self._logic, self._broker, self._limits = logic, broker, limits
        self._backfill_client = backfill_client
        self._state = PartitionState(hangar, epoch)
        self._computer = IterationComputer(job, self.part, logic, hangar, pool)
        self._applied: dict[TopicName, Offset] = {}
        self._ends: Callable[[], Mapping[TopicPartition, Offset] | None] = lambda: None
        self._changed = asyncio.Event()
        self.may_begin: Callable[[], Awaitable[None]] = _at_once
        """Awaited before each live iteration; the supervisor holds it while no lease is live."""
        self._task: asyncio.Task[object] | None = None
        self._discard_reason: str | None = None
        self.trust_outputs = False
        """Set before `run`: replay applies what this version computes, also if markers differ."""

    @property
    def hangar(self) -> Hangar:
        return self._state.hangar

    def view(self) -> AbstractContextManager[StateReader]:
        """Return the state as it is now, for a read that gives way to iterations."""
        return self._state.view()

    @property
    def progress(self) -> StateProgress:
        """The position of the state, as of the last iteration applied."""
        return self._state.progress

    @property
    def applied(self) -> Mapping[TopicName, Offset]:
        """Next offset per input topic: everything below is visible to lookups."""
        return self._applied

    @property
    def lag(self) -> int | None:
        """Records not yet applied, also those being computed; None while unknown."""
        ends = self._ends()
        if ends is None:
            return None
        return sum(max(0, end - self._applied[topic]) for (topic, _), end in ends.items())

    @property
    def step(self) -> OperatorStep | None:
        return self._logic.step

    def behind(self, targets: Mapping[TopicName, Offset]) -> bool:
        """Return True if anything below `targets` is not applied yet."""
        return any(self._applied.get(topic, 0) < offset for topic, offset in targets.items())

    def changed(self) -> Coroutine[None, None, object]:
        """Return an awaitable of the next change of `applied` or `status`.

        A change between this call and the await counts.
        """
        return self._changed.wait()

    def persist_offsets(self) -> StateProgress:
        """Store how far the inputs have been read, also past records that needed no iteration.

        Transaction markers and unused control records are not worth a write each, but log retention
        must be able to delete them. They mutate nothing, so no marker is owed. Returns the progress
        after it.
        """
        later = {
            topic: offset
            for topic, offset in self._applied.items()
            if offset > self._state.progress.offsets.get(topic, 0)
        }
        if later and self.status == "running":
            self._state.advance_offsets(later)
        return self._state.progress

    def discard_state(self, why: str) -> None:
        """Stop as soon as possible: `run` raises StateDiscarded."""
        self._discard_reason = why
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Fence, replay, then iterate until cancelled.

        Raises ProducerFenced or EpochSuperseded when ownership is lost, TransactionOutcomeUnknown,
        StateUnusable when the state must be rebuilt, LogTruncated when the log no longer has what
        the state needs, and whatever the step raises.
        """
        self._task = asyncio.current_task()
        try:
            await self._run()
        except asyncio.CancelledError:
            if (
                self._discard_reason is not None
                and self._task is not None
                and self._task.uncancel() == 0
            ):
                raise StateDiscarded(self._discard_reason) from None
            raise
        except OffsetTruncated as truncated:
            raise LogTruncated(
                f"{self.job.title} ({self.job.id}[{self.part}]) is before the beginning of its "
                f"log: {truncated}. Nothing is skipped. No snapshot of it is at offset "
                f"{truncated.start} or later: commit its dataset under a new version"
            ) from truncated
        except OffsetBeyondEnd as beyond:
            raise StateAheadOfLog(
                f"{self.job.id}[{self.part}] holds state of another log: {beyond}"
            ) from beyond
        finally:
            self._task = None

    async def replay_copy(self, until: StateProgress) -> StateProgress:
        """Replay a copy of the state to the position `until`, as a restart would.

        In place of `run`, for a state that is not the partition's own: no owner is fenced and
        nothing is written to the log. Returns the progress reached. Raises what replay raises:
        StateUnusable, LogTruncated, BackfillCorrupt, and the broker's errors.
        """
        self._state.load()
        try:
            if self.job.outputs:
                await self._replay().run(until.replayed)
            else:
                await self._replay_inputs(until.offsets)
        except OffsetTruncated as truncated:
            raise LogTruncated(
                f"{self.job.title} ({self.job.id}[{self.part}]) cannot be replayed from there: "
                f"{truncated}"
            ) from truncated
        return self._state.progress

    async def _run(self) -> None:
        self._state.load()
        if not self.job.outputs:
            await self._publish_and_read(self._writer(None))
            return
        producer = OwnedProducer(
            self._broker,
            f"{self.job.id}-{self.part}",
            (self.job.replaylog, self.part),
            self.epoch,
        )
        closing = asyncio.create_task(_close_while_idle(producer, self._limits.producer_idle_s))
        try:
            await self._replay_to_end(producer)
            await self._publish_and_read(self._writer(producer))
        finally:
            closing.cancel()
            await asyncio.wait([closing])
            await producer.close()

    async def _replay_to_end(self, producer: OwnedProducer) -> None:
        end = await producer.open()
        if self._state.progress.replayed > end:
            raise OffsetBeyondEnd(
                (self.job.replaylog, self.part), self._state.progress.replayed, end
            )
        await self._replay().run(end)
        await self._state.advance({}, end)

    async def _replay_inputs(self, ends: Mapping[TopicName, Offset]) -> None:
        writer = self._writer(None)
        await replay_inputs(
            self.job,
            self.part,
            ends,
            self._state,
            writer,
            self._broker,
            self._publisher(writer),
            self._limits.iteration_bytes,
            self._limits.iteration_rows,
        )

    async def _publish_and_read(self, writer: IterationWriter) -> None:
        publisher = self._publisher(writer)
        pending = await publisher.pending()
        if pending is not None:
            self._set_status("backfilling")
            await publisher.publish(pending)
        archived = self._archived(writer)
        if truncated := await archived.truncated():
            self._set_status("backfilling")
            await archived.read(truncated)
        await self._read_live(writer)

    async def _read_live(self, writer: IterationWriter) -> None:
        offsets = self._state.progress.offsets
        self._applied = {topic: offsets.get(topic, Offset(0)) for topic in self.job.inputs}
        subscription = await self._broker.subscribe(
            {(topic, self.part): offset for topic, offset in self._applied.items()}
        )
        self._ends = subscription.ends
        self._set_status("running")
        try:
            while True:
                fetched = await subscription.next(self._limits.iteration_bytes)
                for portion in portions(fetched, self._limits.iteration_rows):
                    if portion.records:
                        await self.may_begin()
                        await writer.process(portion)
                    self._applied[portion.source[0]] = portion.next
                    self._notify()
        finally:
            self._ends = lambda: None
            self._set_status("stopped")
            await subscription.close()

    def _writer(self, producer: OwnedProducer | None) -> IterationWriter:
        return IterationWriter(
            self.job,
            self.part,
            self.epoch,
            self._logic.step_version,
            self._limits.environment,
            self._computer,
            self._state,
            producer,
        )

    def _replay(self) -> ReplaylogReplay:
        return ReplaylogReplay(
            self.job,
            self.part,
            self.epoch,
            self._logic.step_version,
            self._limits.environment,
            self._state,
            self._computer,
            self._broker,
            self._backfill_client,
            trust_outputs=self.trust_outputs,
        )

    def _archived(self, writer: IterationWriter) -> ArchivedInput:
        return ArchivedInput(
            self.job,
            self.part,
            self._state,
            writer,
            self._broker,
            self._backfill_client,
            self._limits.iteration_bytes,
        )

    def _publisher(self, writer: IterationWriter) -> BackfillPublisher:
        return BackfillPublisher(
            self.job,
            self.part,
            self._logic.step_version,
            self._state,
            self._computer,
            writer,
            self._broker,
            self._backfill_client,
        )

    def _set_status(self, status: str) -> None:
        self.status = status
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _close_while_idle(producer: OwnedProducer, idle_s: float) -> None:
    while True:
        await asyncio.sleep(idle_s)
        await producer.close_if_idle()


async def _at_once() -> None:
    """Let an iteration begin."""
