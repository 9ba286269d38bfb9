"""In-memory implementation of the ledgers: each transaction works on a copy of the whole state.

The copy replaces the state when the transaction succeeds. The clock is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fennel_core.bank.memory import MemoryBank
from fennel_core.bank.store import AssetState
from fennel_core.blueprints.asset_names import incarnation_of
from fennel_core.blueprints.logical import AssetKey
from fennel_core.blueprints.plan_entries import PlanRecord
from fennel_core.blueprints.revival import RetainedAsset
from fennel_core.blueprints.spec import Job
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connectors.store import MemoryConnectorStore
from fennel_core.ledger.lifecycle import OPEN_ENTRIES, SETTLED, UNDONE, CommitState, EntryState
from fennel_core.ledger.store import (
    NO_GRACE,
    Branch,
    CatchUp,
    Commit,
    CommitError,
    HistoryRange,
    LedgerEntry,
    LedgerKind,
    LedgerTransaction,
    PartitionProgress,
    ReleasedAsset,
    StuckJob,
)
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    AssetId,
    BranchName,
    CommitId,
    JobId,
    JobPartition,
    Millis,
    TopicName,
    TopicPartition,
    WorkspaceId,
    partition_indexes,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's row: its spec, whether it is retired, and when the lease of its runner ends.

    `paused`: engines stop it and keep its state.
    """

    spec: Job
    retired: bool = False
    paused: bool = False
    leased_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class GracePeriod:
    """When an asset was released, and when it expires; None: never. `if_empty`: see `retain`."""

    since_ms: int
    ends_ms: int | None
    if_empty: bool = False


@dataclass(slots=True)
class MemoryLedgerTransaction:
    """Implement `ledger.store.LedgerTransaction`."""

    now_ms: Callable[[], int]
    bank: MemoryBank = field(default_factory=MemoryBank)
    closing: set[WorkspaceId] = field(default_factory=set)
    commits: dict[CommitId, Commit] = field(default_factory=dict)
    blobs: dict[tuple[CommitId, str], bytes] = field(default_factory=dict)
    leases: dict[CommitId, int] = field(default_factory=dict)
    branch_rows: dict[tuple[WorkspaceId, BranchName], Branch] = field(default_factory=dict)
    entry_rows: dict[int, LedgerEntry] = field(default_factory=dict)
    jobs: dict[JobId, JobRow] = field(default_factory=dict)
    partitions: dict[JobPartition, PartitionProgress] = field(default_factory=dict)
    orphan_since: dict[str, int] = field(default_factory=dict)
    catch_ups: dict[CommitId, CatchUp] = field(default_factory=dict)
    partition_counts: dict[WorkspaceId, int] = field(default_factory=dict)
    plans: dict[CommitId, PlanRecord] = field(default_factory=dict)
    destroy_grace_ms: Millis = NO_GRACE
    grace: dict[AssetId, GracePeriod] = field(default_factory=dict)
    finished_ms: dict[CommitId, int] = field(default_factory=dict)
    entry_ms: dict[int, int] = field(default_factory=dict)
    last_entry: int = 0
    history: dict[TopicPartition, HistoryRange] = field(default_factory=dict)
    rows_held: dict[CommitId, int] = field(default_factory=dict)
    history_rows: dict[TopicName, list[tuple[int, int]]] = field(default_factory=dict)
    """The earliest time, µs, and the number of rows of each file."""
    keeping_old_rows: set[WorkspaceId] = field(default_factory=set)
    connectors: MemoryConnectorStore = field(default_factory=MemoryConnectorStore)

    def copy(self) -> MemoryLedgerTransaction:
        return MemoryLedgerTransaction(
            self.now_ms,
            self.bank.copy(),
            set(self.closing),
            dict(self.commits),
            dict(self.blobs),
            dict(self.leases),
            dict(self.branch_rows),
            dict(self.entry_rows),
            dict(self.jobs),
            dict(self.partitions),
            dict(self.orphan_since),
            dict(self.catch_ups),
            dict(self.partition_counts),
            dict(self.plans),
            self.destroy_grace_ms,
            dict(self.grace),
            dict(self.finished_ms),
            dict(self.entry_ms),
            self.last_entry,
            dict(self.history),
            dict(self.rows_held),
            dict(self.history_rows),
            set(self.keeping_old_rows),
            replace(self.connectors, rows=dict(self.connectors.rows)),
        )

    async def add_workspace(self, workspace: WorkspaceId) -> bool:
        if workspace in self.bank.open_workspaces | self.closing:
            return False
        self.bank.open_workspaces.add(workspace)
        return await self.add_branch(Branch(workspace, MAIN_BRANCH, None, None))

    async def close_workspace(self, workspace: WorkspaceId) -> bool:
        if workspace not in self.bank.open_workspaces | self.closing:
            return False
        self.bank.open_workspaces.discard(workspace)
        self.closing.add(workspace)
        return True

    async def remove_workspace(self, workspace: WorkspaceId) -> None:
        self.closing.discard(workspace)
        self.partition_counts.pop(workspace, None)
        self.grace = {
            id_: period
            for id_, period in self.grace.items()
            if self.bank.rows[id_].workspace != workspace
        }
        gone = {id_ for id_, c in self.commits.items() if c.workspace == workspace}
        self.commits = {id_: c for id_, c in self.commits.items() if id_ not in gone}
        self.branch_rows = {
            key: b for key, b in self.branch_rows.items() if b.workspace != workspace
        }
        self.entry_rows = {id_: e for id_, e in self.entry_rows.items() if e.workspace != workspace}
        self.bank.rows = {id_: a for id_, a in self.bank.rows.items() if a.workspace != workspace}

    async def workspaces(self, *, closing: bool) -> list[WorkspaceId]:
        return sorted(self.closing if closing else self.bank.open_workspaces)

    async def partition_count(self, workspace: WorkspaceId) -> int | None:
        return self.partition_counts.get(workspace)

    async def fix_partition_count(self, workspace: WorkspaceId, if_new: int) -> int:
        if workspace not in self.bank.open_workspaces | self.closing:
            raise WorkspaceNotFound(workspace)
        return self.partition_counts.setdefault(workspace, if_new)

    async def add_commit(self, commit: Commit, request: bytes) -> None:
        assert commit.id not in self.commits
        self.commits[commit.id] = commit
        self.blobs[commit.id, "request"] = request

    async def commit(self, id_: CommitId) -> Commit | None:
        return self.commits.get(id_)

    async def same_commit(
        self, workspace: WorkspaceId, branch: BranchName, digest: str
    ) -> Commit | None:
        same = [
            c
            for c in self.commits.values()
            if (c.workspace, c.branch, c.digest) == (workspace, branch, digest)
            and c.state not in UNDONE | {CommitState.SUPERSEDED}
        ]
        return same[-1] if same else None

    async def open_commits(self, workspace: WorkspaceId | None = None) -> list[CommitId]:
        return [
            c.id
            for c in self.commits.values()
            if c.state not in SETTLED and workspace in (None, c.workspace)
        ]

    async def open_commit_rows(self, workspace: WorkspaceId) -> list[Commit]:
        return [self.commits[id_] for id_ in await self.open_commits(workspace)]

    async def expired_commits(self) -> list[Commit]:
        now = self.now_ms()
        return [
            self.commits[id_] for id_ in await self.open_commits() if self.leases.get(id_, 0) <= now
        ]

    async def extend_lease(self, id_: CommitId, ms: Millis) -> bool:
        if id_ not in self.commits:
            return False
        self.leases[id_] = self.now_ms() + ms
        return True

    async def take_expired_lease(self, id_: CommitId, ms: Millis) -> bool:
        return self.leases.get(id_, 0) <= self.now_ms() and await self.extend_lease(id_, ms)

    async def request(self, id_: CommitId) -> bytes:
        return self.blobs[id_, "request"]

    async def merged(self, id_: CommitId) -> bytes | None:
        return self.blobs.get((id_, "merged"))

    async def catalog(self, id_: CommitId) -> bytes | None:
        return self.blobs.get((id_, "catalog"))

    async def set_compiled(
        self,
        id_: CommitId,
        base: CommitId | None,
        merged: bytes,
        catalog: bytes,
        plan: PlanRecord,
    ) -> None:
        self.blobs[id_, "merged"], self.blobs[id_, "catalog"] = merged, catalog
        self.plans[id_] = plan
        self.commits[id_] = replace(self.commits[id_], base=base)

    async def set_state(
        self, id_: CommitId, state: CommitState, error: CommitError | None = None
    ) -> None:
        row = self.commits[id_]
        self.commits[id_] = replace(row, state=state, error=row.error or error)
        if state in SETTLED:
            self.finished_ms.setdefault(id_, self.now_ms())

    async def plan(self, id_: CommitId) -> PlanRecord | None:
        return self.plans.get(id_)

    async def set_stuck(self, id_: CommitId, jobs: Sequence[StuckJob]) -> None:
        self.commits[id_] = replace(self.commits[id_], stuck=tuple(jobs))

    async def catch_up(self, id_: CommitId) -> CatchUp:
        return self.catch_ups.get(id_, CatchUp())

    async def set_catch_up(self, id_: CommitId, catch_up: CatchUp) -> None:
        self.catch_ups[id_] = catch_up

    async def next_attempt(self, id_: CommitId, seen: int) -> int | None:
        row = self.commits[id_]
        if row.attempt != seen:
            return None
        self.commits[id_] = replace(row, attempt=row.attempt + 1)
        return row.attempt + 1

    async def add_branch(self, branch: Branch) -> bool:
        if (branch.workspace, branch.name) in self.branch_rows:
            return False
        self.branch_rows[branch.workspace, branch.name] = branch
        return True

    async def branch(self, workspace: WorkspaceId, name: BranchName) -> Branch | None:
        return self.branch_rows.get((workspace, name))

    async def branches(self, workspace: WorkspaceId) -> list[Branch]:
        return [b for b in self.branch_rows.values() if b.workspace == workspace]

    async def update_branch(self, branch: Branch) -> None:
        self._hold_rows(self.branch_rows[branch.workspace, branch.name], branch)
        self.branch_rows[branch.workspace, branch.name] = branch

    async def without_target(
        self, ids: Iterable[AssetId], *, or_reservation: bool = True
    ) -> frozenset[AssetId]:
        targets = {branch.target for branch in self.branch_rows.values()}
        held = {id_ for version, _, id_ in self.bank.refs if version in targets}
        if or_reservation:
            held |= {id_ for _, id_ in self.bank.reservations}
        return frozenset(ids) - held

    async def remove_branch(self, workspace: WorkspaceId, name: BranchName) -> None:
        if (before := self.branch_rows.pop((workspace, name), None)) is not None:
            self._hold_rows(before, None)

    def _hold_rows(self, before: Branch, after: Branch | None) -> None:
        kept = set() if after is None else {after.target, after.serving}
        until = self._grace_end(before.workspace)
        for id_ in {before.target, before.serving} - kept:
            # Nothing of a workspace that is being deleted can be revived.
            if id_ is not None and before.workspace in self.bank.open_workspaces:
                self.rows_held[id_] = until

    async def add_entries(
        self,
        ledger: LedgerKind,
        workspace: WorkspaceId,
        commit: CommitId | None,
        assets: Iterable[AssetId],
    ) -> None:
        for asset in assets:
            self.last_entry += 1
            id_ = self.last_entry
            self.entry_rows[id_] = LedgerEntry(
                id_, ledger, workspace, commit, asset, EntryState.PENDING, 0, None
            )
            self.entry_ms[id_] = self.now_ms()

    async def entries(
        self,
        ledger: LedgerKind,
        *,
        commit: CommitId | None = None,
        workspace: WorkspaceId | None = None,
        only_open: bool = True,
    ) -> list[LedgerEntry]:
        return [
            e
            for e in self.entry_rows.values()
            if e.ledger is ledger
            and commit in (None, e.commit)
            and workspace in (None, e.workspace)
            and (not only_open or e.state in OPEN_ENTRIES)
        ]

    async def workspaces_with_condemned(self) -> list[WorkspaceId]:
        return sorted({e.workspace for e in await self.entries(LedgerKind.DESTRUCTION)})

    async def mark_entries(
        self, ids: Iterable[int], state: EntryState, error: str | None = None
    ) -> None:
        for id_ in ids:
            entry = self.entry_rows[id_]
            self.entry_rows[id_] = replace(
                entry, state=state, error=error, attempts=entry.attempts + 1
            )
            self.entry_ms[id_] = self.now_ms()

    async def add_jobs(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.id not in self.jobs:
                self.jobs[job.id] = JobRow(job)
                self.partitions |= {
                    (job.id, index): PartitionProgress(job.id, index, "idle", None)
                    for index in partition_indexes(job.partitions)
                }

    async def partition_progress(self, jobs: Iterable[JobId]) -> list[PartitionProgress]:
        wanted = {id_ for id_ in jobs if id_ in self.jobs}
        return [
            p
            if self.jobs[job].leased_until_ms > self.now_ms()
            else PartitionProgress(job, part, "idle", None)
            for (job, part), p in sorted(self.partitions.items())
            if job in wanted
        ]

    async def registered_jobs(self, workspace: WorkspaceId) -> list[JobId]:
        return sorted(id_ for id_, row in self.jobs.items() if row.spec.workspace == workspace)

    async def topics_of_jobs(self, jobs: Iterable[JobId]) -> frozenset[AssetId]:
        specs = [self.jobs[job].spec for job in jobs if job in self.jobs]
        return frozenset(AssetId(topic) for spec in specs for topic in spec.topics)

    async def retire_jobs(self, jobs: Iterable[JobId]) -> None:
        for job in set(jobs) & self.jobs.keys():
            self.jobs[job] = replace(self.jobs[job], retired=True)

    async def remove_stopped_jobs(self, jobs: Iterable[JobId]) -> list[JobId]:
        requested = set(jobs)
        for job in requested & self.jobs.keys():
            if self.jobs[job].retired and self.jobs[job].leased_until_ms <= self.now_ms():
                del self.jobs[job]
        self.partitions = {key: p for key, p in self.partitions.items() if key[0] in self.jobs}
        return sorted(requested - self.jobs.keys())

    async def old_rows(self, kept_us: Mapping[TopicName, int]) -> dict[TopicName, int]:
        found: dict[TopicName, int] = {}
        for topic, kept in kept_us.items():
            for oldest_us, rows in self.history_rows.get(topic, ()):
                if oldest_us < self.now_ms() * 1000 - kept:
                    found[topic] = found.get(topic, 0) + rows
        return found

    async def kept_jobs(self, workspace: WorkspaceId) -> list[Job]:
        rows = [self.jobs[id_] for id_ in await self.registered_jobs(workspace)]
        return [row.spec for row in rows if not row.retired]

    async def versions_with_held_rows(self, workspace: WorkspaceId) -> list[CommitId]:
        held = [id_ for id_, until in self.rows_held.items() if until > self.now_ms()]
        return [id_ for id_ in held if self.commits[id_].workspace == workspace]

    async def keeps_old_rows(self, workspace: WorkspaceId) -> bool:
        return workspace in self.keeping_old_rows

    async def let_old_rows_leave(self, workspace: WorkspaceId) -> None:
        self.keeping_old_rows.discard(workspace)

    async def history_ranges(
        self, topics: Iterable[TopicName]
    ) -> dict[TopicPartition, HistoryRange]:
        wanted = set(topics)
        return {at: held for at, held in self.history.items() if at[0] in wanted}

    async def retain(
        self,
        workspace: WorkspaceId,
        ids: Iterable[AssetId],
        kept: Collection[AssetId],
        if_empty: Collection[AssetId] = (),
    ) -> None:
        now, end = self.now_ms(), self._grace_end(workspace)
        for id_ in ids:
            self.grace[id_] = GracePeriod(now, None if id_ in kept else end, id_ in if_empty)
            if (job := self.jobs.get(JobId(id_))) is not None:
                self.jobs[JobId(id_)] = replace(job, paused=True)

    def _grace_end(self, workspace: WorkspaceId) -> int:
        """Return when a grace period ends that begins now: not before those that run."""
        ends = [
            period.ends_ms
            for id_, period in self.grace.items()
            if period.ends_ms is not None and self.bank.rows[id_].workspace == workspace
        ]
        return max([self.now_ms() + self.destroy_grace_ms, *ends])

    async def confirm_losses(self, workspace: WorkspaceId) -> None:
        endless = [
            id_
            for id_, period in self.grace.items()
            if (period.ends_ms is None or period.if_empty)
            and self.bank.rows[id_].workspace == workspace
        ]
        since = {id_: self.grace[id_].since_ms for id_ in endless}
        await self.retain(workspace, endless, ())
        for id_ in endless:
            self.grace[id_] = replace(self.grace[id_], since_ms=since[id_])

    async def retained(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, RetainedAsset]:
        wanted, found = set(keys), {}
        for asset in sorted(self.bank.rows.values(), key=lambda a: a.incarnation):
            if (asset.workspace, asset.state) == (workspace, AssetState.RETAINED):
                row = self.jobs.get(JobId(asset.id))
                since_us = self.grace[asset.id].since_ms * 1000
                found[asset.key] = RetainedAsset(
                    asset.id,
                    since_us,
                    row.spec if row else None,
                    asset.id in self.bank.changed_sources,
                )
        return {key: asset for key, asset in found.items() if key in wanted}

    async def released(self, workspace: WorkspaceId | None = None) -> list[ReleasedAsset]:
        found = [
            ReleasedAsset(
                a.id,
                a.workspace,
                a.key.kind,
                a.blueprint.title,
                self.grace[a.id].since_ms,
                self.grace[a.id].ends_ms,
            )
            for a in self.bank.rows.values()
            if a.state is AssetState.RETAINED and workspace in (None, a.workspace)
        ]
        return sorted(found, key=lambda a: (a.workspace, a.id))

    async def end_grace(self, ids: Iterable[AssetId]) -> None:
        for id_ in ids:
            self.grace.pop(id_, None)
            if (job := self.jobs.get(JobId(id_))) is not None:
                self.jobs[JobId(id_)] = replace(job, paused=False)

    async def expired(self, workspace: WorkspaceId, *, all_of_them: bool) -> list[AssetId]:
        over = [
            a.id
            for a in self.bank.rows.values()
            if (a.workspace, a.state) == (workspace, AssetState.RETAINED)
            and (all_of_them or (self._is_over(a.id) and not self.grace[a.id].if_empty))
        ]
        return await self.bank.unheld(over)

    async def presumed_empty(self, workspace: WorkspaceId, quiet_ms: Millis) -> list[AssetId]:
        return sorted(
            a.id
            for a in self.bank.rows.values()
            if (a.workspace, a.state) == (workspace, AssetState.RETAINED)
            and self._is_over(a.id)
            and self.grace[a.id].if_empty
            and self.grace[a.id].since_ms <= self.now_ms() - quiet_ms
        )

    async def released_within(self, workspace: WorkspaceId, ms: Millis) -> frozenset[AssetId]:
        return frozenset(
            a.id
            for a in self.bank.rows.values()
            if (a.workspace, a.state) == (workspace, AssetState.RETAINED)
            and self.grace[a.id].since_ms > self.now_ms() - ms
        )

    async def found_empty(self, ids: Iterable[AssetId]) -> None:
        for id_ in ids:
            self.grace[id_] = replace(self.grace[id_], if_empty=False)

    async def found_rows(self, ids: Iterable[AssetId]) -> None:
        for id_ in ids:
            self.grace[id_] = replace(self.grace[id_], if_empty=False, ends_ms=None)

    async def workspaces_with_expired(self) -> list[WorkspaceId]:
        return sorted(
            {
                a.workspace
                for a in self.bank.rows.values()
                if a.state is AssetState.RETAINED and self._is_over(a.id)
            }
        )

    def _is_over(self, id_: AssetId) -> bool:
        ends_ms = self.grace[id_].ends_ms
        return ends_ms is not None and ends_ms <= self.now_ms()

    async def prune_commits(self, older_ms: Millis, limit: int) -> int:
        old = {id_ for id_, at in self.finished_ms.items() if at <= self.now_ms() - older_ms}
        in_use = {v for b in self.branch_rows.values() for v in (b.target, b.serving)}
        in_use |= {c.base for c in self.commits.values() if c.id not in old}
        in_use |= {id_ for id_, until in self.rows_held.items() if until > self.now_ms()}
        pruned = [
            id_ for id_ in self.commits if id_ in old - in_use and (id_, "request") in self.blobs
        ][:limit]
        for id_ in pruned:
            for column in ("request", "merged", "catalog"):
                self.blobs.pop((id_, column), None)
            self.catch_ups.pop(id_, None)
        return len(pruned)

    async def prune_entries(self, older_ms: Millis, limit: int) -> int:
        open_commits = set(await self.open_commits())
        pruned = [
            e.id
            for e in self.entry_rows.values()
            if e.state not in OPEN_ENTRIES
            and self.entry_ms[e.id] <= self.now_ms() - older_ms
            and e.commit not in open_commits
        ][:limit]
        for id_ in pruned:
            del self.entry_rows[id_], self.entry_ms[id_]
        return len(pruned)

    async def prune_assets(self, limit: int) -> int:
        referred = {e.asset for e in self.entry_rows.values()}
        pruned = [
            a.id
            for a in self.bank.rows.values()
            if a.state is AssetState.DELETED and a.id not in referred
        ][:limit]
        for id_ in pruned:
            del self.bank.rows[id_]
            self.grace.pop(id_, None)
        return len(pruned)

    async def unaccounted(self, ids: Iterable[AssetId]) -> list[AssetId]:
        known = {
            id_ for id_, asset in self.bank.rows.items() if asset.state is not AssetState.DELETED
        }
        issued = range(self.bank.incarnations.first, self.bank.incarnations.last + 1)
        return sorted(id_ for id_ in ids if id_ not in known and incarnation_of(id_) in issued)

    async def record_orphans(self, seen: Iterable[str], grace_ms: Millis) -> list[str]:
        now = self.now_ms()
        self.orphan_since = {topic: self.orphan_since.get(topic, now) for topic in seen}
        return sorted(
            topic for topic, since in self.orphan_since.items() if since + grace_ms <= now
        )


class MemoryLedger:
    """Implement `ledger.store.Ledger`; transactions run one at a time."""

    def __init__(self, now_ms: Callable[[], int], destroy_grace_ms: Millis = NO_GRACE) -> None:
        self.state = MemoryLedgerTransaction(now_ms, destroy_grace_ms=destroy_grace_ms)
        self._one_at_a_time = asyncio.Lock()

    async def run(self, work: Callable[[LedgerTransaction], Awaitable[T]]) -> T:
        async with self._one_at_a_time:
            draft = self.state.copy()
            result = await work(draft)
            self.state = draft
            return result
