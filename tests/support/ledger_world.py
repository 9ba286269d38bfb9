"""The simulated world of the ledgers: in-memory stores, a clock, engines that follow the registry,
and a fault at any chosen step.

Every call that leaves a step (a transaction, a request to Kafka) passes through `Faults`. A fault
is a crash of the process (the step never receives a result) or a result that is lost or wrong,
before or after the effect, or half-way through a batch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fennel_core.bank.store import AssetState
from fennel_core.blueprints.logical import AssetKind, Compiled
from fennel_core.connections.errors import SystemUnavailable, TransactionOutcomeUnknown
from fennel_core.ledger import commit_failure, creation, reservation, switching
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import BranchOccupied, CommitConflict
from fennel_core.ledger.lifecycle import COMMITTED, SETTLED, CommitState
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.reconcile import reconcile
from fennel_core.ledger.store import (
    Commit,
    CommitOptions,
    LedgerTransaction,
)
from fennel_core.ledger.topics import (
    MemoryTopicAdmin,
    OffsetRange,
    ReadRange,
    TopicRefusal,
    TopicSpec,
)
from fennel_core.ledger.transitions import commit_row
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    BranchName,
    CommitId,
    JobId,
    Millis,
    Offset,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from tests.support.simulated_engines import SimulatedEngines, incomplete

SHOP = WorkspaceId("shop")


class Crash(BaseException):
    """The process died. Not an Exception, so that no code under test catches it."""


class Fault(Enum):
    CRASH_BEFORE = "crash before the call"
    CRASH_AFTER = "crash after the call"
    CRASH_HALF = "crash halfway"
    LOST_BEFORE = "no response, nothing done"
    LOST_AFTER = "no response, all done"
    LOST_HALF = "no response, half done"
    REFUSED = "Kafka refuses one topic"


@dataclass
class Faults:
    """Strikes at the numbered calls of `plan`; counts all calls."""

    plan: Mapping[int, Fault] = field(default_factory=dict)
    calls: int = 0
    jitter: random.Random | None = None

    async def next(self) -> Fault | None:
        if self.jitter is not None:
            for _ in range(self.jitter.randrange(4)):
                await asyncio.sleep(0)
        self.calls += 1
        return self.plan.get(self.calls)


class FaultyLedger:
    """The ledger of one process; `observe` sees the state after each transaction."""

    def __init__(
        self, inner: MemoryLedger, faults: Faults, observe: Callable[[], None] = lambda: None
    ) -> None:
        self.inner, self.faults, self.observe = inner, faults, observe

    async def run(self, work: Callable[[LedgerTransaction], Awaitable[Any]]) -> Any:
        fault = await self.faults.next()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_HALF):
            raise Crash
        if fault in (Fault.LOST_BEFORE, Fault.LOST_HALF):
            raise SystemUnavailable("no response, nothing changed")
        result = await self.inner.run(work)
        self.observe()
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault is Fault.LOST_AFTER:
            raise TransactionOutcomeUnknown("no response, but committed")
        return result


class FaultyTopics:
    def __init__(self, inner: MemoryTopicAdmin, faults: Faults) -> None:
        self.inner, self.faults = inner, faults

    async def _do(
        self,
        call: Callable[[Sequence[Any]], Awaitable[Mapping[TopicName, TopicRefusal]]],
        items: Sequence[Any],
    ) -> Any:
        fault = await self.faults.next()
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.LOST_BEFORE:
            raise SystemUnavailable("no response")
        half = fault in (Fault.CRASH_HALF, Fault.LOST_HALF)
        refused = items[:1] if fault is Fault.REFUSED else []
        done = items[: len(items) // 2] if half else items[len(refused) :]
        response = dict(await call(done))
        if fault in (Fault.CRASH_AFTER, Fault.CRASH_HALF):
            raise Crash
        if fault in (Fault.LOST_AFTER, Fault.LOST_HALF):
            raise SystemUnavailable("no response")
        return response | {getattr(item, "name", item): TopicRefusal("policy") for item in refused}

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        return await self._do(self.inner.create, topics)

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        return await self._do(self.inner.delete, names)

    async def names(self) -> list[TopicName]:
        return await self.inner.names()

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        fault = await self.faults.next()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_HALF, Fault.CRASH_AFTER):
            raise Crash
        if fault in (Fault.LOST_BEFORE, Fault.LOST_HALF, Fault.LOST_AFTER):
            raise SystemUnavailable("no response")
        return await self.inner.ends(partitions)

    async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        return await self.inner.message_counts(topics)

    async def log_bounds(self, topics: Mapping[TopicName, int]) -> Sequence[OffsetRange]:
        return await self.inner.log_bounds(topics)

    async def read(
        self, ranges: Sequence[OffsetRange], *, seconds: float, size_bytes: int
    ) -> Sequence[ReadRange]:
        return await self.inner.read(ranges, seconds=seconds, size_bytes=size_bytes)


@dataclass(frozen=True)
class Switched:
    """What a commit had at its T2: its new jobs, and the records of the source topics."""

    new_jobs: frozenset[JobId]
    rows: Mapping[TopicPartition, int]


async def reserve(
    context: LedgerContext, id_: CommitId, compiled: Compiled, merged: bytes = b"merged"
) -> Commit:
    """Run T1 as for definitions that were validated when the commit was stored.

    They are not rebased: a moved branch is a conflict, and another commit is waited for.
    """
    row = await context.ledger.run(lambda tx: commit_row(tx, id_))
    for _ in range(100):
        outcome = await reservation.reserve(context, id_, compiled, merged, base=row.base)
        match outcome:
            case Commit():
                return outcome
            case reservation.BranchMoved():
                raise CommitConflict(row.branch, ["it moved"])
            case reservation.BranchBusy(other):
                await context.sleep(0.05)  # until the other commit is finished
    raise BranchOccupied(row.branch, other, 5)


HISTORY_MS = Millis(3_600_000)
"""Short, so that the ledgers are pruned while a world is still used."""


class World:
    """One platform. `context(faults)` is a process of it."""

    def __init__(self, grace_ms: int = 0) -> None:
        self.now_ms = 1_000_000
        self.ledger = MemoryLedger(lambda: self.now_ms, Millis(grace_ms))
        self.topics = MemoryTopicAdmin()
        self.engines = SimulatedEngines(self.ledger, self.topics, lambda: self.now_ms)
        self._switched: dict[CommitId, Switched] = {}
        self._served: set[CommitId] = set()
        self.read_too_early: list[str] = []
        self.served_with_backlog = 0
        """Versions that reads moved to although rows had been accepted before their T2."""

    def now(self) -> float:
        return self.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.engines.turn()
        await asyncio.sleep(0)

    def _observe(self) -> None:
        """Check that no reader of a version misses rows that were accepted before its T2."""
        state = self.ledger.state
        for branch in state.branch_rows.values():
            if branch.target is not None and branch.target not in self._switched:
                old = {id_ for commit, _, id_ in state.bank.refs if commit == branch.serving}
                held = {id_ for commit, _, id_ in state.bank.refs if commit == branch.target}
                new = frozenset(JobId(id_) for id_ in held - old if JobId(id_) in state.jobs)
                self._switched[branch.target] = Switched(new, self.engines.sources())
            if branch.serving is None or branch.serving in self._served:
                continue
            self._served.add(branch.serving)
            switched = self._switched[branch.serving]
            self.served_with_backlog += bool(switched.new_jobs and any(switched.rows.values()))
            jobs = [state.jobs[job].spec for job in sorted(switched.new_jobs)]
            missing = incomplete(self.engines, jobs, switched.rows)
            if missing:
                # Not raised here: reconcile isolates the failure of a commit.
                self.read_too_early.append(f"{branch.serving} misses rows of {missing}")

    def context(self, faults: Faults | None = None) -> LedgerContext:
        faults = faults or Faults()
        timings = LedgerTimings(retry_seconds=0.1, commit_history_ms=HISTORY_MS)
        return LedgerContext(
            FaultyLedger(self.ledger, faults, self._observe),
            FaultyTopics(self.topics, faults),
            self.sleep,
            timings,
            self.now,
        )

    async def open(self) -> None:
        await self.ledger.run(lambda tx: tx.add_workspace(SHOP))

    async def receive(
        self, id_: str, branch: BranchName = MAIN_BRANCH, *, backfill: bool = True
    ) -> CommitId:
        """Store a commit, as the definition server does before T1."""

        async def work(tx: LedgerTransaction) -> CommitId:
            row = await tx.branch(SHOP, branch)
            base = row.target if row else None
            await tx.add_commit(
                Commit(
                    CommitId(id_),
                    SHOP,
                    branch,
                    CommitState.RECEIVED,
                    id_,
                    CommitOptions(backfill=backfill),
                    base,
                ),
                b"",
            )
            return CommitId(id_)

        return await self.ledger.run(work)

    async def commit(
        self,
        id_: str,
        compiled: Compiled,
        branch: BranchName = MAIN_BRANCH,
        faults: Faults | None = None,
        *,
        backfill: bool = True,
    ) -> None:
        """Run a whole commit, as the inline orchestrator does."""
        await self.run(await self.receive(id_, branch, backfill=backfill), compiled, faults)

    async def run(self, id_: CommitId, compiled: Compiled, faults: Faults | None = None) -> None:
        context = self.context(faults)
        try:
            await reserve(context, id_, compiled)
        except ApiError as error:
            await commit_failure.reject_commit(context, id_, error)
            raise
        try:
            await creation.create_assets(context, id_)
            await switching.switch(context, id_)
            await wait_and_serve(context, id_, seconds=5)
        finally:
            await destroy_condemned(context, SHOP)

    async def reconcile_once(self) -> None:
        """Let every lease expire and reconcile once."""
        self.now_ms += 70_000
        self.engines.turn()
        await reconcile(self.context())

    async def settle_commits(self, rounds: int = 60) -> None:
        """As `settle`, but in less time than a grace period takes."""
        for _ in range(rounds):
            self.now_ms += 70_000
            self.engines.turn()
            await reconcile(self.context())
            entries = self.ledger.state.entry_rows.values()
            open_entries = [e for e in entries if e.state in ("pending", "failed")]
            if not open_entries and not await self.ledger.run(lambda tx: tx.open_commits()):
                return
        raise AssertionError("reconcile did not settle")

    async def settle(self, rounds: int = 60) -> None:
        """Advance the clock and reconcile until nothing is left to do; engines are fast again."""
        slow, self.engines.slow = self.engines.slow, None
        for _ in range(rounds):
            self.now_ms += 4_000_000
            self.engines.turn()
            if (await reconcile(self.context())).quiet and not await self.ledger.run(
                lambda tx: tx.open_commits()
            ):
                self.engines.slow = slow
                return
        raise AssertionError("reconcile did not settle")

    def target(self, branch: BranchName = MAIN_BRANCH) -> str | None:
        return self.ledger.state.branch_rows[SHOP, branch].target

    def words(self, branch: BranchName = MAIN_BRANCH) -> set[str]:
        """Return the datasets that the branch holds."""
        bank = self.ledger.state.bank
        held = {id_ for _, name, id_ in bank.refs if name == branch}
        return {
            bank.rows[id_].blueprint.title
            for id_ in held
            if bank.rows[id_].key.kind is AssetKind.TOPIC
        }

    def check_retained(self, *words: str) -> None:
        """Check that exactly the assets of these datasets are retained."""
        found = {
            a.blueprint.entity
            for a in self.ledger.state.bank.rows.values()
            if a.state is AssetState.RETAINED
        }
        assert found == set(words)

    def check(self) -> None:
        """Check the invariants at rest: no orphan, no loss, commits are atomic."""
        assert not self.read_too_early, self.read_too_early
        world = self.ledger.state
        assert all(c.state in SETTLED for c in world.commits.values())
        assert not world.bank.reservations, "a settled commit reserves nothing"
        held = {id_ for _, _, id_ in world.bank.refs}
        alive = {id_ for id_, a in world.bank.rows.items() if a.state is not AssetState.DELETED}
        retained = {id_ for id_, a in world.bank.rows.items() if a.state is AssetState.RETAINED}
        assert set(world.grace) >= retained
        assert alive == held | retained, "exactly the held and the retained assets exist"
        assert not held & retained
        assert all(world.bank.rows[id_].state is AssetState.LIVE for id_ in held)
        assert not retained or world.destroy_grace_ms
        held |= retained
        topics = {id_ for id_ in held if world.bank.rows[id_].key.kind is not AssetKind.JOB}
        assert set(self.topics.partition_counts) == topics, (
            "Kafka has exactly the topics that are held"
        )
        assert set(world.jobs) == held - topics, "the registry has exactly the jobs that are held"
        for job_id, job in world.jobs.items():
            assert not job.retired
            assert job.paused == (job_id in retained), "exactly the retained jobs are paused"
            names = {
                *job.spec.inputs,
                job.spec.replaylog,
                job.spec.dead_letters,
                *(o.topic for o in job.spec.outputs),
            }
            assert names <= set(self.topics.partition_counts), "the topics of a job exist"
        for commit, name, id_ in world.bank.refs:
            if id_ in world.jobs:
                spec = world.jobs[id_].spec
                used = {*spec.inputs, spec.replaylog, *(o.topic for o in spec.outputs)}
                own = {a for c, n, a in world.bank.refs if (c, n) == (commit, name)}
                assert used <= own, "a version holds the very topics that its jobs use"
        for branch in world.branch_rows.values():
            assert branch.target == branch.serving, "reads have moved"
            versions = {commit for commit, name, _ in world.bank.refs if name == branch.name}
            assert versions == ({branch.target} if branch.target else set()), (
                "a branch holds only its version"
            )
        bases = [
            c.base
            for c in world.commits.values()
            if c.branch == MAIN_BRANCH and c.state in COMMITTED
        ]
        assert len(set(bases)) == len(bases), (
            "of two commits with the same base only one is committed"
        )
        assert not [e for e in world.entry_rows.values() if e.state in ("pending", "failed")]
