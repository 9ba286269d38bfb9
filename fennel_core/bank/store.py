"""The asset bank: which physical asset realises each identity, and which commits hold it.

An asset is one incarnation of a blueprint. Its name is never used twice, so a deleted asset cannot
be mistaken for a later one. Of each (workspace, kind, identity) at most one asset is *alive*
(pending, created or live) and can be shared.

An asset is *held* by references (of branch versions) and by reservations (of commits in progress).
An asset that is not held may be *retained* for a grace period, in which a commit can revive it, and
then condemned, that is, marked for deletion. All methods run inside a
transaction of the caller. To decide on held assets, take `lock` first, so that no other commit of
the workspace can hold an asset that is about to be condemned.

`memory.py` is the in-memory implementation, `postgres.py` the durable one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fennel_core.blueprints.logical import AssetKey, Blueprint
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, WorkspaceId


class AssetState(StrEnum):
    """The state of an asset; see `ledger.lifecycle` for the transitions."""

    PENDING = "pending"
    CREATED = "created"
    FAILED = "failed"
    LIVE = "live"
    RETAINED = "retained"
    CONDEMNED = "condemned"
    DELETED = "deleted"


ALIVE_STATES = (AssetState.PENDING, AssetState.CREATED, AssetState.LIVE)
"""States in which an asset can be shared."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A physical asset and its blueprint."""

    id: AssetId
    workspace: WorkspaceId
    incarnation: int
    state: AssetState
    blueprint: Blueprint

    @property
    def key(self) -> AssetKey:
        return self.blueprint.key


@dataclass(frozen=True, slots=True)
class AssetSummary:
    """An asset without its blueprint, which most decisions do not need."""

    id: AssetId
    key: AssetKey
    state: AssetState
    title: str


class Bank(Protocol):
    """The bank inside one transaction of the caller."""

    async def lock(self, workspace: WorkspaceId) -> bool:
        """Lock the workspace against other commits until the transaction ends.

        Returns True if the workspace is open, False if it is closed or unknown.
        """
        ...

    async def is_open(self, workspace: WorkspaceId) -> bool:
        """Return whether the workspace exists and is not closed; it may be closed right after."""
        ...

    async def next_incarnation(self) -> int:
        """Return a number that is never returned again, even if this transaction fails."""
        ...

    async def alive(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, AssetId]:
        """Return the alive asset of each of `keys` that has one."""
        ...

    async def add(self, assets: Sequence[Asset]) -> None:
        """Add assets. Raises `errors.AssetAlreadyAlive` if another one of its key is alive."""
        ...

    async def summaries(self, ids: Iterable[AssetId]) -> list[AssetSummary]:
        """Return those of `ids` that exist, ordered by id, without their blueprints."""
        ...

    async def assets(self, ids: Iterable[AssetId]) -> list[Asset]:
        """Return those of `ids` that exist, ordered by id, with their blueprints."""
        ...

    async def set_state(self, ids: Iterable[AssetId], state: AssetState) -> None:
        """Set the state of assets; `ledger.lifecycle` decides which changes are allowed."""
        ...

    async def mark_sources_changed(self, ids: Iterable[AssetId]) -> None:
        """Record that topics were continued with other sources than their content began with."""
        ...

    async def with_changed_sources(self, ids: Iterable[AssetId]) -> frozenset[AssetId]:
        """Return those of `ids` that `mark_sources_changed` has marked."""
        ...

    async def reserve(self, commit: CommitId, ids: Iterable[AssetId]) -> None:
        """Hold `ids` for a commit in progress. Idempotent."""
        ...

    async def reserved(self, commit: CommitId) -> list[AssetId]:
        """Return the assets that a commit has reserved, ordered by id."""
        ...

    async def release_reservations(self, commit: CommitId) -> list[AssetId]:
        """Drop all reservations of a commit; return their assets."""
        ...

    async def add_references(
        self, commit: CommitId, branch: BranchName, ids: Iterable[AssetId]
    ) -> None:
        """Hold `ids` for one version of a branch. Idempotent."""
        ...

    async def references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        """Return the distinct assets that a branch references, ordered by id.

        With `commit`, only those of that version of the branch.
        """
        ...

    async def remove_references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        """Drop the references of a branch; return their distinct assets.

        With `commit`, only those of that version of the branch.
        """
        ...

    async def unheld(
        self, ids: Iterable[AssetId], *, ignoring: BranchName | None = None
    ) -> list[AssetId]:
        """Return those of `ids` without any reference or reservation, ordered by id.

        References of the branch `ignoring` do not count.
        """
        ...
