"""The asset bank: which physical thing stands for which identity, and who holds it. `memory.py` is
the twin, `postgres.py` the real one.

Theory. An asset is one incarnation of a blueprint; its name is never used twice, so nothing that
was destroyed can be mistaken for what came after it. Of each (workspace, kind, identity) at most
one asset is *alive* (pending, created or live) and may be shared. An asset is held by *references*
(a branch version) and by *reservations* (a commit under way); one that nobody holds may be
condemned. Everything here happens inside a transaction of the caller; whoever decides on what is
held takes `lock` first, so that no other commit of the workspace can take hold of what is being let
go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fennel_core.blueprints.logical import AssetKey, Blueprint
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, WorkspaceId


class AssetState(StrEnum):
    """See `ledger.lifecycle` for the moves between them."""

    PENDING = "pending"
    CREATED = "created"
    FAILED = "failed"
    LIVE = "live"
    CONDEMNED = "condemned"
    DELETED = "deleted"


ALIVE_STATES = (AssetState.PENDING, AssetState.CREATED, AssetState.LIVE)
"""States in which an asset may be shared."""


@dataclass(frozen=True, slots=True)
class Asset:
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
    """An asset in short, without its blueprint: what most decisions need."""

    id: AssetId
    key: AssetKey
    state: AssetState
    title: str


class AssetAlreadyAlive(Exception):
    """Two assets of one identity would be alive: the caller planned without holding the lock."""


class Bank(Protocol):
    """The bank inside one transaction."""

    async def lock(self, workspace: WorkspaceId) -> bool:
        """Hold off every other change of what is held in the workspace until the transaction ends.
        True: the workspace is open.
        """
        ...

    async def next_incarnation(self) -> int:
        """A number that was never given out and never will be again, even if this transaction
        fails.
        """
        ...

    async def alive(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, AssetId]:
        """The alive asset of each of `keys` that has one."""
        ...

    async def add(self, assets: Sequence[Asset]) -> None:
        """New assets. Raises `AssetAlreadyAlive`."""
        ...

    async def summaries(self, ids: Iterable[AssetId]) -> list[AssetSummary]:
        """Those of `ids` that exist, by id."""
        ...

    async def assets(self, ids: Iterable[AssetId]) -> list[Asset]:
        """As `summaries`, with blueprints."""
        ...

    async def set_state(self, ids: Iterable[AssetId], state: AssetState) -> None: ...

    async def reserve(self, commit: CommitId, ids: Iterable[AssetId]) -> None:
        """Hold `ids` for a commit under way; holding twice is holding once."""
        ...

    async def reserved(self, commit: CommitId) -> list[AssetId]: ...

    async def release_reservations(self, commit: CommitId) -> list[AssetId]:
        """Let go of all the commit had reserved, and say what that was."""
        ...

    async def add_references(
        self, commit: CommitId, branch: BranchName, ids: Iterable[AssetId]
    ) -> None:
        """Hold `ids` for a version of a branch; holding twice is holding once."""
        ...

    async def references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        """What the branch holds, in one of its versions or in all of them, by id and each once."""
        ...

    async def remove_references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        """Let go of what the branch holds, in one of its versions or in all of them, and say what
        that was.
        """
        ...

    async def unheld(
        self, ids: Iterable[AssetId], *, ignoring: BranchName | None = None
    ) -> list[AssetId]:
        """Those of `ids` that no reference and no reservation holds, by id. References of the
        branch `ignoring` do not count.
        """
        ...
