"""What the ledgers remember, as a transaction over it. `memory.py` is the twin, `postgres.py` the
real one, one suite holds both to it.

Theory. A commit, its entries, the branch pointers, the job registry and the bank change together or
not at all, so there is one transaction type with the bank inside it. `Ledger.run(work)` runs
`work(transaction)` and answers only when the outcome is certain; `work` may be run again, so it
begins by reading the state it is about to change and does nothing where that has been done already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from fennel_core.bank.store import Bank
from fennel_core.blueprints.spec import Job
from fennel_core.ledger.lifecycle import CommitState, EntryState
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, JobId, Millis, WorkspaceId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """How a commit is meant. `backfill` False refuses to compute anything again from data that
    exists.
    """

    incremental: bool = False
    backfill: bool = True


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit row without its large columns. `base`: the branch's target when the commit was
    received.
    """

    id: CommitId
    workspace: WorkspaceId
    branch: BranchName
    state: CommitState
    digest: str
    options: CommitOptions
    base: CommitId | None
    summary: tuple[str, ...] = ()
    error: str | None = None
    error_code: str | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """`target` is what is written, `serving` what is read. None: empty."""

    workspace: WorkspaceId
    name: BranchName
    target: CommitId | None
    serving: CommitId | None


class LedgerKind(StrEnum):
    CREATION = "creation"
    DESTRUCTION = "destruction"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of a ledger. `commit` None: a destruction that no commit waits for (a deleted branch
    or workspace).
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
    """A job partition as its engine last reported it. `lag` None: not known."""

    job: JobId
    part: int
    status: str
    lag: int | None
    error: str | None


class LedgerTransaction(Protocol):
    """One transaction over everything. Times are the store's own clock."""

    @property
    def bank(self) -> Bank: ...

    # --- workspaces

    async def add_workspace(self, workspace: WorkspaceId) -> bool:
        """Open a workspace with its branch `main`; False when it exists already."""
        ...

    async def close_workspace(self, workspace: WorkspaceId) -> bool:
        """From now on nothing is committed there; False when there is no such workspace."""
        ...

    async def remove_workspace(self, workspace: WorkspaceId) -> None: ...

    async def workspaces(self, *, closing: bool) -> list[WorkspaceId]: ...

    # --- commits

    async def add_commit(self, commit: Commit, request: bytes) -> None: ...

    async def commit(self, id_: CommitId) -> Commit | None: ...

    async def same_commit(
        self, workspace: WorkspaceId, branch: BranchName, digest: str
    ) -> Commit | None:
        """The newest commit of the branch with this digest that is under way or stands, if there is
        one.
        """
        ...

    async def open_commits(self, workspace: WorkspaceId | None = None) -> list[CommitId]:
        """Commits that are not settled, oldest first."""
        ...

    async def lease(self, id_: CommitId, ms: Millis) -> bool:
        """Take or prolong the commit's lease unconditionally; False when there is no such
        commit.
        """
        ...

    async def take_lapsed(self, id_: CommitId, ms: Millis) -> bool:
        """Take the lease only if it has lapsed."""
        ...

    async def request(self, id_: CommitId) -> bytes: ...

    async def merged(self, id_: CommitId) -> bytes | None: ...

    async def catalog(self, id_: CommitId) -> bytes | None: ...

    async def set_compiled(
        self, id_: CommitId, merged: bytes, catalog: bytes, summary: Sequence[str]
    ) -> None: ...

    async def set_state(
        self,
        id_: CommitId,
        state: CommitState,
        *,
        error: str | None = None,
        error_code: str | None = None,
    ) -> None:
        """Move; an error is added only where there is none yet. A settled commit gets its end
        time.
        """
        ...

    async def add_summary(self, id_: CommitId, lines: Sequence[str]) -> None: ...

    async def next_attempt(self, id_: CommitId, seen: int) -> int | None:
        """Count one more hand-over to the orchestrator after `seen` of them, and say which it is;
        None when somebody else was first.
        """
        ...

    # --- branches

    async def add_branch(self, branch: Branch) -> bool:
        """False when the name is taken."""
        ...

    async def branch(self, workspace: WorkspaceId, name: BranchName) -> Branch | None: ...

    async def branches(self, workspace: WorkspaceId) -> list[Branch]:
        """In order of creation."""
        ...

    async def put_branch(self, branch: Branch) -> None: ...

    async def remove_branch(self, workspace: WorkspaceId, name: BranchName) -> None: ...

    # --- ledgers

    async def add_entries(
        self,
        ledger: LedgerKind,
        workspace: WorkspaceId,
        commit: CommitId | None,
        assets: Iterable[AssetId],
    ) -> None: ...

    async def entries(
        self,
        ledger: LedgerKind,
        *,
        commit: CommitId | None = None,
        workspace: WorkspaceId | None = None,
        only_open: bool = True,
    ) -> list[LedgerEntry]:
        """By id; of one commit, of one workspace, or all."""
        ...

    async def mark(self, ids: Iterable[int], state: EntryState, error: str | None = None) -> None:
        """`attempts` grows with every mark."""
        ...

    # --- the job registry

    async def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Registers each job and its partitions; those that are registered stay as they are."""
        ...

    async def progress(self, jobs: Iterable[JobId]) -> list[PartitionProgress]: ...

    async def registered(self, workspace: WorkspaceId) -> list[JobId]: ...

    async def retire(self, jobs: Iterable[JobId]) -> None:
        """Ask the engines to stop these jobs and to remove their local state."""
        ...

    async def remove_stopped(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Remove those retired jobs of which no partition is under a live lease; says which of
        `jobs` are not registered now.
        """
        ...

    # --- strays

    async def unaccounted(self, ids: Iterable[AssetId]) -> list[AssetId]:
        """Those of `ids` whose incarnation this installation gave out, but that the bank knows only
        as gone, or not at all.
        """
        ...

    async def strays(self, seen: Iterable[str], grace_ms: Millis) -> list[str]:
        """Remember exactly `seen` as strays; answers those that have been strays for `grace_ms` or
        longer.
        """
        ...


class LedgerUnavailable(Exception):
    """The store could not be reached, or did not say in time whether the transaction happened: run
    the step again to learn it.
    """


class Ledger(Protocol):
    async def run(self, work: Callable[[LedgerTransaction], Awaitable[T]]) -> T:
        """Run `work` in one transaction and return its result when the commit is certain; its
        errors roll back and pass through.

        Raises `LedgerUnavailable`.
        """
        ...
