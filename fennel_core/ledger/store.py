"""The stored state of the ledgers, as a transaction: commits, branches, entries, jobs and the bank.

`memory.py` is the in-memory implementation and `postgres.py` the real one; one contract suite tests
both. A commit, its entries, the branch pointers, the job registry and the bank change together or
not at all, so there is one transaction type with the bank inside it.

`Ledger.run(work)` runs `work(transaction)` and returns only when the outcome is certain. `work` may
be run again, so it starts by reading the state it is about to change, and does nothing if that
change was already made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from fennel_core.bank.store import Bank
from fennel_core.blueprints.logical import AssetKey, AssetKind
from fennel_core.blueprints.plan_entries import PlanRecord
from fennel_core.blueprints.revival import RetainedAsset
from fennel_core.blueprints.spec import Job
from fennel_core.connectors.store import ConnectorStore
from fennel_core.ledger.lifecycle import CommitState, EntryState
from fennel_core.vocab.ids import (
    AssetId,
    BranchName,
    CommitId,
    JobId,
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)
from fennel_core.vocab.problems import Problem

T = TypeVar("T")


NO_GRACE: Final = Millis(0)
"""No grace period: a released asset is condemned at once, unless its loss must be confirmed."""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Options of a commit.

    `incremental`: extend the branch's definitions instead of replacing them. `backfill` False:
    reject the commit if it would recompute from existing data. `allow_data_loss`: its author
    confirms that accepted rows which only this commit's predecessor holds may be destroyed.
    """

    incremental: bool = False
    backfill: bool = True
    allow_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class CommitError:
    """Why a commit failed, as its client sees it: HTTP status, stable code and text.

    `problems`: the findings of validation that the text lists.
    """

    status: int
    code: str
    text: str
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class StuckJob:
    """A new job that is parked, so that reads cannot move to its commit; `title` is for people."""

    job: JobId
    title: str
    error: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's row without its large columns.

    `digest` identifies a repeated request. `base` is the branch's target that the definitions were
    validated against: first when the commit was received, and finally when T1 ran. `attempt` counts
    the hand-overs to the orchestrator.
    """

    id: CommitId
    workspace: WorkspaceId
    branch: BranchName
    state: CommitState
    digest: str
    options: CommitOptions
    base: CommitId | None
    stuck: tuple[StuckJob, ...] = ()
    error: CommitError | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch: jobs write the version `target`, reads use the version `serving`. None: empty."""

    workspace: WorkspaceId
    name: BranchName
    target: CommitId | None
    serving: CommitId | None


class LedgerKind(StrEnum):
    """The two ledgers."""

    CREATION = "creation"
    DESTRUCTION = "destruction"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One asset to create or to destroy.

    `commit` None: no commit waits for the destruction (of a deleted branch or workspace).
    """

    id: int
    ledger: LedgerKind
    workspace: WorkspaceId
    commit: CommitId | None
    asset: AssetId
    state: EntryState
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A job partition as its owner reported it last; `idle` if it has no owner with a live lease.

    `applied`: the next offset per input topic while it is running, else empty.
    """

    job: JobId
    partition: PartitionIndex
    status: str
    error: str | None
    applied: Mapping[TopicName, Offset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleasedAsset:
    """A retained asset as it is listed: times in ms since the epoch.

    `ends_ms`: the end of its grace period; None: it has no end until a loss is confirmed.
    """

    id: AssetId
    workspace: WorkspaceId
    kind: AssetKind
    title: str
    released_ms: int
    ends_ms: int | None


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """The offsets of a topic partition that history holds: from `first`, up to before `next`.

    `removed_rows`: rows of erased keys that were removed from them. `lost`: offsets between the two
    that were deleted before history had them. `expired_rows`: rows that were removed because they
    were older than `history`.
    """

    first: Offset
    next: Offset
    removed_rows: int = 0
    lost: int = 0
    expired_rows: int = 0


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What the new jobs of a warming commit must have applied before reads move.

    `ends`: the ends of their inputs, read layer by layer in the current round. `backlog`: records
    below these ends that were not applied when the ends were read. `previous_backlog`: that of the
    round before; None in the first one. `readiness.py` explains the rounds.
    """

    ends: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    backlog: int = 0
    previous_backlog: int | None = None


class LedgerTransaction(Protocol):
    """One transaction over all of the state. Times are measured by the store's own clock."""

    @property
    def bank(self) -> Bank:
        """The asset bank inside this transaction."""
        ...

    @property
    def connectors(self) -> ConnectorStore:
        """The stored connectors inside this transaction."""
        ...

    # --- workspaces

    async def add_workspace(self, workspace: WorkspaceId) -> bool:
        """Create a workspace with its branch `main`; return False if it exists already."""
        ...

    async def close_workspace(self, workspace: WorkspaceId) -> bool:
        """Refuse further commits to the workspace; return False if it does not exist."""
        ...

    async def remove_workspace(self, workspace: WorkspaceId) -> None:
        """Delete every row of the workspace."""
        ...

    async def workspaces(self, *, closing: bool) -> list[WorkspaceId]:
        """Return the closed workspaces if `closing`, else the open ones."""
        ...

    async def partition_count(self, workspace: WorkspaceId) -> int | None:
        """Return the number of partitions of all topics and jobs of the workspace.

        None: the workspace is unknown or has had no commit yet.
        """
        ...

    async def fix_partition_count(self, workspace: WorkspaceId, if_new: int) -> int:
        """Return the workspace's number of partitions; set it to `if_new` if it has none.

        It never changes afterwards: co-partitioned inputs of a job must agree on it. Raises
        WorkspaceNotFound.
        """
        ...

    # --- commits

    async def add_commit(self, commit: Commit, request: bytes) -> None:
        """Insert a commit and the SyncRequest it was received with."""
        ...

    async def commit(self, id_: CommitId) -> Commit | None:
        """Return the commit, None if there is none."""
        ...

    async def same_commit(
        self, workspace: WorkspaceId, branch: BranchName, digest: str
    ) -> Commit | None:
        """Return the branch's newest commit with this digest that is running or succeeded."""
        ...

    async def open_commits(self, workspace: WorkspaceId | None = None) -> list[CommitId]:
        """Return the commits that are not settled, oldest first."""
        ...

    async def open_commit_rows(self, workspace: WorkspaceId) -> list[Commit]:
        """Return the rows of the workspace's commits that are not settled, oldest first."""
        ...

    async def expired_commits(self) -> list[Commit]:
        """Return the commits that are not settled and whose lease has expired, oldest first."""
        ...

    async def extend_lease(self, id_: CommitId, ms: Millis) -> bool:
        """Take or extend the commit's lease; return False if there is no such commit."""
        ...

    async def take_expired_lease(self, id_: CommitId, ms: Millis) -> bool:
        """Take the commit's lease if it has expired; return whether it was taken."""
        ...

    async def request(self, id_: CommitId) -> bytes:
        """Return the SyncRequest that the commit, which is not settled, was received with."""
        ...

    async def merged(self, id_: CommitId) -> bytes | None:
        """Return the SyncRequest of the whole version, None before T1."""
        ...

    async def catalog(self, id_: CommitId) -> bytes | None:
        """Return the encoded catalog of the version, None before T1."""
        ...

    async def set_compiled(
        self,
        id_: CommitId,
        base: CommitId | None,
        merged: bytes,
        catalog: bytes,
        plan: PlanRecord,
    ) -> None:
        """Store what T1 computed, and the version it was computed from."""
        ...

    async def set_state(
        self, id_: CommitId, state: CommitState, error: CommitError | None = None
    ) -> None:
        """Set the state, and the error if none is stored yet; a settled commit gets an end time."""
        ...

    async def plan(self, id_: CommitId) -> PlanRecord | None:
        """Return the plan of the commit, None before T1."""
        ...

    async def set_stuck(self, id_: CommitId, jobs: Sequence[StuckJob]) -> None:
        """Set the jobs that keep reads from moving to the commit now."""
        ...

    async def catch_up(self, id_: CommitId) -> CatchUp:
        """Return what the commit's new jobs must have applied; empty before warming."""
        ...

    async def set_catch_up(self, id_: CommitId, catch_up: CatchUp) -> None:
        """Store what the commit's new jobs must have applied."""
        ...

    async def next_attempt(self, id_: CommitId, seen: int) -> int | None:
        """Count one more hand-over to the orchestrator and return its number.

        Returns None if the count is no longer `seen`: another process handed the commit over.
        """
        ...

    # --- branches

    async def add_branch(self, branch: Branch) -> bool:
        """Insert a branch; return False if the name is taken."""
        ...

    async def branch(self, workspace: WorkspaceId, name: BranchName) -> Branch | None:
        """Return the branch, None if there is none."""
        ...

    async def branches(self, workspace: WorkspaceId) -> list[Branch]:
        """Return the workspace's branches in order of creation."""
        ...

    async def update_branch(self, branch: Branch) -> None:
        """Set the target and serving versions of an existing branch.

        Versions that it has no more hold rows of history, and keep their definitions, for the grace
        period: a commit may revive what they had.
        """
        ...

    async def without_target(
        self, ids: Iterable[AssetId], *, or_reservation: bool = True
    ) -> frozenset[AssetId]:
        """Return the assets that neither the target of a branch nor a running commit holds.

        Ingest writes no rows to such a topic, although reads may still use it. Without
        `or_reservation`, what only running commits hold is returned, too.
        """
        ...

    async def remove_branch(self, workspace: WorkspaceId, name: BranchName) -> None:
        """Delete the branch's row; its versions hold rows as after `update_branch`."""
        ...

    # --- ledgers

    async def add_entries(
        self,
        ledger: LedgerKind,
        workspace: WorkspaceId,
        commit: CommitId | None,
        assets: Iterable[AssetId],
    ) -> None:
        """Append one pending entry per asset."""
        ...

    async def entries(
        self,
        ledger: LedgerKind,
        *,
        commit: CommitId | None = None,
        workspace: WorkspaceId | None = None,
        only_open: bool = True,
    ) -> list[LedgerEntry]:
        """Return entries by id: of one commit, of one workspace, or all."""
        ...

    async def workspaces_with_condemned(self) -> list[WorkspaceId]:
        """Return the workspaces that have open destruction entries."""
        ...

    async def mark_entries(
        self, ids: Iterable[int], state: EntryState, error: str | None = None
    ) -> None:
        """Set the state of entries and count one more attempt for each."""
        ...

    # --- the job registry

    async def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Register jobs and their partitions; leave registered ones unchanged."""
        ...

    async def partition_progress(self, jobs: Iterable[JobId]) -> list[PartitionProgress]:
        """Return what owners with a live lease reported last about every partition of `jobs`."""
        ...

    async def registered_jobs(self, workspace: WorkspaceId) -> list[JobId]:
        """Return the registered jobs of a workspace."""
        ...

    async def topics_of_jobs(self, jobs: Iterable[JobId]) -> frozenset[AssetId]:
        """Return the topics that registered jobs read or write."""
        ...

    async def retire_jobs(self, jobs: Iterable[JobId]) -> None:
        """Request the engines to stop these jobs and to delete their local state."""
        ...

    async def remove_stopped_jobs(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Remove the retired jobs without a live lease on any partition.

        Returns those of `jobs` that are not registered (any more).
        """
        ...

    async def old_rows(self, kept_us: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        """Return how many rows the files of each topic have that may have older ones than these
        times; topics without such files are absent.
        """
        ...

    async def kept_jobs(self, workspace: WorkspaceId) -> list[Job]:
        """Return the specifications of the workspace's jobs that are not being removed."""
        ...

    async def keeps_old_rows(self, workspace: WorkspaceId) -> bool:
        """Return whether no row leaves history by its age: the workspace is older than that, and
        no commit has confirmed it.
        """
        ...

    async def let_old_rows_leave(self, workspace: WorkspaceId) -> None:
        """Note that a commit has confirmed that rows leave history by their age, from the end of
        the grace period on.
        """
        ...

    async def versions_with_held_rows(self, workspace: WorkspaceId) -> list[CommitId]:
        """Return the versions that no branch has and that hold rows in their grace period."""
        ...

    async def history_ranges(
        self, topics: Iterable[TopicName]
    ) -> dict[TopicPartition, HistoryRange]:
        """Return what history holds of each partition of `topics` of which it holds anything."""
        ...

    # --- the grace period

    @property
    def destroy_grace_ms(self) -> Millis:
        """How long a released asset is retained; 0: it is condemned at once if it may be lost."""
        ...

    async def retain(
        self,
        workspace: WorkspaceId,
        ids: Iterable[AssetId],
        kept: Collection[AssetId],
        if_empty: Collection[AssetId] = (),
    ) -> None:
        """Start the grace period of `ids` and stop the jobs among them, which keep their state.

        The period never ends before that of an asset that was released earlier, so no job outlives
        a topic that it reads. That of the assets in `kept` has no end. The assets in `if_empty` do
        not expire before `found_empty` was called for them.
        """
        ...

    async def confirm_losses(self, workspace: WorkspaceId) -> None:
        """Start the grace period of the workspace's retained assets whose period has no end."""
        ...

    async def retained(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, RetainedAsset]:
        """Return the newest retained asset of each of `keys` that has one."""
        ...

    async def released(self, workspace: WorkspaceId | None = None) -> list[ReleasedAsset]:
        """Return the retained assets of one workspace, or of all, by workspace and id."""
        ...

    async def end_grace(self, ids: Iterable[AssetId]) -> None:
        """Forget the grace period of assets that were revived, and run the jobs among them."""
        ...

    async def expired(self, workspace: WorkspaceId, *, all_of_them: bool) -> list[AssetId]:
        """Return the retained assets without a holder whose grace period is over.

        With `all_of_them`, also those whose period is not over.
        """
        ...

    async def presumed_empty(self, workspace: WorkspaceId, quiet_ms: Millis) -> list[AssetId]:
        """Return the retained assets whose period is over if they are empty.

        Only those that were released at least `quiet_ms` ago: what was on its way to them then has
        been accepted or has failed since.
        """
        ...

    async def released_within(self, workspace: WorkspaceId, ms: Millis) -> frozenset[AssetId]:
        """Return the retained assets that were released less than `ms` ago."""
        ...

    async def found_empty(self, ids: Iterable[AssetId]) -> None:
        """Let assets expire that are empty at the end of their period."""
        ...

    async def found_rows(self, ids: Iterable[AssetId]) -> None:
        """Retain assets that are not empty without an end, until a loss is confirmed."""
        ...

    async def workspaces_with_expired(self) -> list[WorkspaceId]:
        """Return the workspaces with a retained asset whose grace period is over."""
        ...

    # --- pruning (bounded: every method removes at most `limit` and returns how many)

    async def prune_commits(self, older_ms: Millis, limit: int) -> int:
        """Remove request, definitions and catalog of commits that ended `older_ms` ago or earlier.

        The rest of their rows stays. Kept whole are versions that a branch refers to, and those
        that commits were validated against which are open or ended more recently.
        """
        ...

    async def prune_entries(self, older_ms: Millis, limit: int) -> int:
        """Remove entries that were done or cancelled `older_ms` ago or earlier.

        Those of commits that are not settled stay.
        """
        ...

    async def prune_assets(self, limit: int) -> int:
        """Remove deleted assets that no ledger entry refers to any more."""
        ...

    # --- orphaned topics

    async def unaccounted(self, ids: Iterable[AssetId]) -> list[AssetId]:
        """Return those of `ids` that this installation named but the bank does not account for.

        The bank accounts for every asset that it has in a state other than deleted.
        """
        ...

    async def record_orphans(self, seen: Iterable[str], grace_ms: Millis) -> list[str]:
        """Record exactly `seen` as orphans; return those seen for `grace_ms` or longer."""
        ...


class Ledger(Protocol):
    """The store of the ledgers."""

    async def run(self, work: Callable[[LedgerTransaction], Awaitable[T]]) -> T:
        """Run `work` in one transaction and return its result once the COMMIT is certain.

        An exception of `work` rolls back and propagates. Raises SystemUnavailable (nothing changed)
        and TransactionOutcomeUnknown; after either, run the step again.
        """
        ...
