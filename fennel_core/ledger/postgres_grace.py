"""The grace periods of retained assets in Postgres: the base of a ledger transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fennel_core.bank.postgres import PostgresBank
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import AssetKey, AssetKind
from fennel_core.blueprints.revival import RetainedAsset
from fennel_core.blueprints.spec import Job
from fennel_core.connections.postgres import AsyncConnection
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.ledger.store import ReleasedAsset
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, Identity, Millis, WorkspaceId

Values = Sequence[Any] | Mapping[str, Any]

RETAIN = """
    UPDATE asset SET retained_at = now(), if_empty = id = ANY(%(if_empty)s::text[]),
        destroy_after = CASE WHEN id <> ALL(%(kept)s::text[])
            THEN greatest(now() + %(grace)s * interval '1 ms',
                (SELECT max(destroy_after) FROM asset WHERE workspace = %(workspace)s)) END
    WHERE id = ANY(%(ids)s::text[])
"""
CONFIRM = """
    UPDATE asset SET if_empty = false, destroy_after = greatest(now() + %(grace)s * interval '1 ms',
        (SELECT max(destroy_after) FROM asset WHERE workspace = %(workspace)s))
    WHERE workspace = %(workspace)s AND state = 'retained' AND (destroy_after IS NULL OR if_empty)
"""
PRESUMED_EMPTY = """
    SELECT id FROM asset
    WHERE workspace = %s AND state = 'retained' AND if_empty AND destroy_after <= now()
        AND retained_at <= now() - %s * interval '1 ms'
    ORDER BY id
"""
RELEASED_WITHIN = """
    SELECT id FROM asset
    WHERE workspace = %s AND state = 'retained' AND retained_at > now() - %s * interval '1 ms'
"""
FOUND_EMPTY = "UPDATE asset SET if_empty = false WHERE id = ANY(%s::text[])"
FOUND_ROWS = """
    UPDATE asset SET if_empty = false, destroy_after = NULL WHERE id = ANY(%s::text[])
"""
RETAINED = """
    SELECT DISTINCT ON (a.kind, a.identity) a.kind, a.identity, a.id,
        (extract(epoch FROM a.retained_at) * 1000000)::bigint, j.spec, a.sources_changed
    FROM asset a JOIN unnest(%(kinds)s::text[], %(identities)s::text[]) AS w (kind, identity)
        USING (kind, identity)
    LEFT JOIN job j ON j.id = a.id
    WHERE a.workspace = %(workspace)s AND a.state = 'retained'
    ORDER BY a.kind, a.identity, a.incarnation DESC
"""
RELEASED = """
    SELECT id, workspace, kind, title, (extract(epoch FROM retained_at) * 1000)::bigint,
        (extract(epoch FROM destroy_after) * 1000)::bigint
    FROM asset WHERE state = 'retained' AND workspace = coalesce(%s, workspace)
    ORDER BY workspace COLLATE "C", id COLLATE "C"
"""
END_GRACE = """
    UPDATE asset SET retained_at = NULL, destroy_after = NULL, if_empty = false
    WHERE id = ANY(%s::text[])
"""
EXPIRED = """
    SELECT id FROM asset WHERE workspace = %(workspace)s AND state = 'retained'
        AND (%(all)s OR (destroy_after <= now() AND NOT if_empty))
"""
# As long as what is retained at once, or was before.
HOLD_ROWS = """
    UPDATE commit c SET rows_held_until = greatest(now() + %(grace)s * interval '1 ms',
        (SELECT max(destroy_after) FROM asset WHERE workspace = %(workspace)s))
    FROM branch b JOIN workspace w ON w.name = b.workspace AND w.state = 'open'
    WHERE b.workspace = %(workspace)s AND b.name = %(branch)s AND c.id IN (b.target, b.serving)
      AND c.id <> ALL(%(kept)s::text[])
"""
SET_DESIRED = "UPDATE job SET desired = %s WHERE id = ANY(%s::text[]) AND desired <> 'remove'"


class GracePeriods:
    """The part of `ledger.store.LedgerTransaction` about retained assets, and its connection."""

    def __init__(self, connection: AsyncConnection, destroy_grace_ms: Millis) -> None:
        self._connection = connection
        self.destroy_grace_ms = destroy_grace_ms
        self._bank = PostgresBank(connection)
        self._connectors = PostgresConnectorStore(connection)

    @property
    def bank(self) -> PostgresBank:
        """The asset bank inside this transaction."""
        return self._bank

    @property
    def connectors(self) -> PostgresConnectorStore:
        """The stored connectors inside this transaction."""
        return self._connectors

    async def _execute(self, query: str, values: Values = ()) -> int:
        return (await self._connection.execute(query, values)).rowcount

    async def _rows(self, query: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(query, values)).fetchall()

    async def retain(
        self,
        workspace: WorkspaceId,
        ids: Iterable[AssetId],
        kept: Collection[AssetId],
        if_empty: Collection[AssetId] = (),
    ) -> None:
        released = list(ids)
        values = {
            "workspace": workspace,
            "ids": released,
            "kept": list(kept),
            "if_empty": list(if_empty),
            "grace": self.destroy_grace_ms,
        }
        await self._execute(RETAIN, values)
        await self._execute(SET_DESIRED, ("pause", released))

    async def _hold_rows(
        self, workspace: WorkspaceId, branch: BranchName, kept: Sequence[CommitId | None]
    ) -> None:
        """Let the versions of a branch other than `kept` hold rows for the grace period."""
        values = {
            "workspace": workspace,
            "branch": branch,
            "kept": [id_ for id_ in kept if id_ is not None],
            "grace": self.destroy_grace_ms,
        }
        await self._execute(HOLD_ROWS, values)

    async def confirm_losses(self, workspace: WorkspaceId) -> None:
        values = {"workspace": workspace, "grace": self.destroy_grace_ms}
        await self._execute(CONFIRM, values)

    async def retained(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, RetainedAsset]:
        values = {
            "workspace": workspace,
            "kinds": [str(k.kind) for k in keys],
            "identities": [k.identity for k in keys],
        }
        return {
            AssetKey(AssetKind(kind), Identity(identity)): RetainedAsset(
                AssetId(id_),
                since,
                None if spec is None else stored_names.loads(bytes(spec), Job),
                changed,
            )
            for kind, identity, id_, since, spec, changed in await self._rows(RETAINED, values)
        }

    async def released(self, workspace: WorkspaceId | None = None) -> list[ReleasedAsset]:
        return [
            ReleasedAsset(id_, owner, AssetKind(kind), title, since, ends)
            for id_, owner, kind, title, since, ends in await self._rows(RELEASED, (workspace,))
        ]

    async def end_grace(self, ids: Iterable[AssetId]) -> None:
        revived = list(ids)
        await self._execute(END_GRACE, (revived,))
        await self._execute(SET_DESIRED, ("run", revived))

    async def expired(self, workspace: WorkspaceId, *, all_of_them: bool) -> list[AssetId]:
        values = {"workspace": workspace, "all": all_of_them}
        rows = await self._rows(EXPIRED, values)
        return await self._bank.unheld([AssetId(id_) for (id_,) in rows])

    async def presumed_empty(self, workspace: WorkspaceId, quiet_ms: Millis) -> list[AssetId]:
        rows = await self._rows(PRESUMED_EMPTY, (workspace, quiet_ms))
        return [AssetId(id_) for (id_,) in rows]

    async def released_within(self, workspace: WorkspaceId, ms: Millis) -> frozenset[AssetId]:
        rows = await self._rows(RELEASED_WITHIN, (workspace, ms))
        return frozenset(AssetId(id_) for (id_,) in rows)

    async def found_empty(self, ids: Iterable[AssetId]) -> None:
        await self._execute(FOUND_EMPTY, (list(ids),))

    async def found_rows(self, ids: Iterable[AssetId]) -> None:
        await self._execute(FOUND_ROWS, (list(ids),))

    async def workspaces_with_expired(self) -> list[WorkspaceId]:
        rows = await self._rows(
            "SELECT DISTINCT workspace FROM asset WHERE state = 'retained' "
            "AND destroy_after <= now() ORDER BY workspace"
        )
        return [WorkspaceId(name) for (name,) in rows]
