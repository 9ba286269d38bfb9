"""The in-memory bank: plain dicts, which the surrounding transaction copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fennel_core.bank.errors import AssetAlreadyAlive
from fennel_core.bank.store import ALIVE_STATES, Asset, AssetState, AssetSummary
from fennel_core.blueprints.logical import AssetKey
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, WorkspaceId


@dataclass(slots=True)
class IncarnationCounter:
    """Issues incarnations to all transactions; a failed transaction does not return its numbers."""

    first: int = 1
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


@dataclass(slots=True)
class MemoryBank:
    """See `bank.store.Bank`. Holds frozen values only, so `copy` is a consistent snapshot."""

    incarnations: IncarnationCounter = field(default_factory=IncarnationCounter)
    open_workspaces: set[WorkspaceId] = field(default_factory=set)
    rows: dict[AssetId, Asset] = field(default_factory=dict)
    reservations: set[tuple[CommitId, AssetId]] = field(default_factory=set)
    refs: set[tuple[CommitId, BranchName, AssetId]] = field(default_factory=set)
    changed_sources: set[AssetId] = field(default_factory=set)

    def copy(self) -> MemoryBank:
        """Return a copy that shares only the counter of incarnations."""
        return MemoryBank(
            self.incarnations,
            set(self.open_workspaces),
            dict(self.rows),
            set(self.reservations),
            set(self.refs),
            set(self.changed_sources),
        )

    async def lock(self, workspace: WorkspaceId) -> bool:
        return workspace in self.open_workspaces

    async def is_open(self, workspace: WorkspaceId) -> bool:
        return workspace in self.open_workspaces

    async def next_incarnation(self) -> int:
        return self.incarnations.next()

    async def alive(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, AssetId]:
        wanted = set(keys)
        return {
            a.key: a.id
            for a in self.rows.values()
            if a.workspace == workspace and a.key in wanted and a.state in ALIVE_STATES
        }

    async def add(self, assets: Sequence[Asset]) -> None:
        for asset in assets:
            if await self.alive(asset.workspace, [asset.key]):
                raise AssetAlreadyAlive(
                    f"asset `{asset.id}` cannot be added: another asset of its identity is alive"
                )
            self.rows[asset.id] = asset

    async def summaries(self, ids: Iterable[AssetId]) -> list[AssetSummary]:
        return [
            AssetSummary(a.id, a.key, a.state, a.blueprint.title) for a in await self.assets(ids)
        ]

    async def assets(self, ids: Iterable[AssetId]) -> list[Asset]:
        return [self.rows[id_] for id_ in sorted(set(ids)) if id_ in self.rows]

    async def set_state(self, ids: Iterable[AssetId], state: AssetState) -> None:
        for id_ in ids:
            self.rows[id_] = replace(self.rows[id_], state=state)

    async def mark_sources_changed(self, ids: Iterable[AssetId]) -> None:
        self.changed_sources |= set(ids)

    async def with_changed_sources(self, ids: Iterable[AssetId]) -> frozenset[AssetId]:
        return frozenset(self.changed_sources & set(ids))

    async def reserve(self, commit: CommitId, ids: Iterable[AssetId]) -> None:
        self.reservations |= {(commit, id_) for id_ in ids}

    async def reserved(self, commit: CommitId) -> list[AssetId]:
        return sorted(id_ for holder, id_ in self.reservations if holder == commit)

    async def release_reservations(self, commit: CommitId) -> list[AssetId]:
        held = await self.reserved(commit)
        self.reservations = {row for row in self.reservations if row[0] != commit}
        return held

    async def add_references(
        self, commit: CommitId, branch: BranchName, ids: Iterable[AssetId]
    ) -> None:
        self.refs |= {(commit, branch, id_) for id_ in ids}

    def _of(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None
    ) -> set[tuple[CommitId, BranchName, AssetId]]:
        return {
            row
            for row in self.refs
            if row[1] == branch
            and (commit is None or row[0] == commit)
            and self.rows[row[2]].workspace == workspace
        }

    async def references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        return sorted({id_ for _, _, id_ in self._of(workspace, branch, commit)})

    async def remove_references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        removed = self._of(workspace, branch, commit)
        self.refs -= removed
        return sorted({id_ for _, _, id_ in removed})

    async def unheld(
        self, ids: Iterable[AssetId], *, ignoring: BranchName | None = None
    ) -> list[AssetId]:
        held = {id_ for _, id_ in self.reservations} | {
            id_ for _, branch, id_ in self.refs if branch != ignoring
        }
        return sorted(set(ids) - held)
