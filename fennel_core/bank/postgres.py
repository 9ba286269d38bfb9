"""The bank in Postgres.

Each method is one statement over arrays, so a commit of thousands of assets takes a handful of
round trips.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from fennel_core.bank.errors import AssetAlreadyAlive
from fennel_core.bank.store import ALIVE_STATES, Asset, AssetState, AssetSummary
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import AssetKey, AssetKind, Blueprint, LogicalJob, LogicalTopic
from fennel_core.connections.postgres import AsyncConnection
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, Identity, WorkspaceId

Values = Sequence[Any] | Mapping[str, Any]

# NO KEY UPDATE excludes other commits without blocking rows that only reference the workspace
# (tokens, clocks).
LOCK = "SELECT state FROM workspace WHERE name = %s FOR NO KEY UPDATE"
STATE = "SELECT state FROM workspace WHERE name = %s"
ALIVE_OF = """
    SELECT a.kind, a.identity, a.id FROM asset a
    JOIN unnest(%(kinds)s::text[], %(identities)s::text[]) AS w (kind, identity) USING (kind,
        identity)
    WHERE a.workspace = %(workspace)s AND a.state = ANY(%(alive)s)
"""
ADD = """
    INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, blueprint)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[],
        %s::text[], %s::bytea[])
"""
SUMMARIES = (
    "SELECT id, kind, identity, state, title FROM asset WHERE id = ANY(%s::text[]) ORDER "
    'BY id COLLATE "C"'
)
ASSETS = (
    "SELECT id, workspace, incarnation, state, blueprint FROM asset WHERE id = "
    'ANY(%s::text[]) ORDER BY id COLLATE "C"'
)
RESERVE = (
    "INSERT INTO reservation (commit_id, asset_id) SELECT %s, unnest(%s::text[]) ON "
    "CONFLICT DO NOTHING"
)
REFER = (
    "INSERT INTO asset_ref (workspace, branch, commit_id, asset_id) SELECT workspace, %s, id, "
    "unnest(%s::text[]) FROM commit WHERE id = %s ON CONFLICT DO NOTHING"
)
OF_BRANCH = "workspace = %(workspace)s AND branch = %(branch)s"
OF_VERSION = OF_BRANCH + " AND commit_id = %(commit)s"
UNHELD = """
    SELECT w.id FROM unnest(%(ids)s::text[]) AS w (id)
    WHERE NOT EXISTS (SELECT 1 FROM reservation r WHERE r.asset_id = w.id)
      AND NOT EXISTS (SELECT 1 FROM asset_ref r WHERE r.asset_id = w.id AND r.branch IS DISTINCT
          FROM %(ignoring)s)
"""


class PostgresBank:
    """See `bank.store.Bank`. The connection is inside a transaction of the caller."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def _rows(self, query: str, values: Values) -> list[tuple[object, ...]]:
        cursor = await self._connection.execute(query, values)
        return await cursor.fetchall()

    async def _ids(self, query: str, values: Values) -> list[AssetId]:
        return sorted({AssetId(str(row[0])) for row in await self._rows(query, values)})

    async def lock(self, workspace: WorkspaceId) -> bool:
        return [state for (state,) in await self._rows(LOCK, (workspace,))] == ["open"]

    async def is_open(self, workspace: WorkspaceId) -> bool:
        return [state for (state,) in await self._rows(STATE, (workspace,))] == ["open"]

    async def next_incarnation(self) -> int:
        ((number,),) = await self._rows("SELECT nextval('asset_incarnation')", ())
        return int(str(number))

    async def alive(
        self, workspace: WorkspaceId, keys: Sequence[AssetKey]
    ) -> dict[AssetKey, AssetId]:
        rows = await self._rows(
            ALIVE_OF,
            {
                "kinds": [str(k.kind) for k in keys],
                "identities": [k.identity for k in keys],
                "workspace": workspace,
                "alive": [str(s) for s in ALIVE_STATES],
            },
        )
        return {
            AssetKey(AssetKind(str(kind)), Identity(str(identity))): AssetId(str(id_))
            for kind, identity, id_ in rows
        }

    async def add(self, assets: Sequence[Asset]) -> None:
        columns = (
            [a.id for a in assets],
            [a.workspace for a in assets],
            [str(a.key.kind) for a in assets],
            [a.key.identity for a in assets],
            [a.incarnation for a in assets],
            [str(a.state) for a in assets],
            [a.blueprint.title for a in assets],
            [stored_names.dumps(a.blueprint) for a in assets],
        )
        try:
            await self._connection.execute(ADD, columns)
        except psycopg.errors.UniqueViolation as violation:
            raise AssetAlreadyAlive(
                f"an asset of the same identity is alive: {violation}"
            ) from violation

    async def summaries(self, ids: Iterable[AssetId]) -> list[AssetSummary]:
        return [
            AssetSummary(
                AssetId(str(id_)),
                AssetKey(AssetKind(str(kind)), Identity(str(identity))),
                AssetState(str(state)),
                str(title),
            )
            for id_, kind, identity, state, title in await self._rows(SUMMARIES, (list(ids),))
        ]

    async def assets(self, ids: Iterable[AssetId]) -> list[Asset]:
        return [
            Asset(
                AssetId(str(id_)),
                WorkspaceId(str(workspace)),
                int(str(incarnation)),
                AssetState(str(state)),
                _blueprint(blueprint),
            )
            for id_, workspace, incarnation, state, blueprint in await self._rows(
                ASSETS, (list(ids),)
            )
        ]

    async def set_state(self, ids: Iterable[AssetId], state: AssetState) -> None:
        await self._connection.execute(
            "UPDATE asset SET state = %s WHERE id = ANY(%s::text[])", (str(state), list(ids))
        )

    async def mark_sources_changed(self, ids: Iterable[AssetId]) -> None:
        await self._connection.execute(
            "UPDATE asset SET sources_changed = true WHERE id = ANY(%s::text[])", (list(ids),)
        )

    async def with_changed_sources(self, ids: Iterable[AssetId]) -> frozenset[AssetId]:
        return frozenset(
            await self._ids(
                "SELECT id FROM asset WHERE id = ANY(%s::text[]) AND sources_changed", (list(ids),)
            )
        )

    async def reserve(self, commit: CommitId, ids: Iterable[AssetId]) -> None:
        await self._connection.execute(RESERVE, (commit, list(ids)))

    async def reserved(self, commit: CommitId) -> list[AssetId]:
        return await self._ids("SELECT asset_id FROM reservation WHERE commit_id = %s", (commit,))

    async def release_reservations(self, commit: CommitId) -> list[AssetId]:
        return await self._ids(
            "DELETE FROM reservation WHERE commit_id = %s RETURNING asset_id", (commit,)
        )

    async def add_references(
        self, commit: CommitId, branch: BranchName, ids: Iterable[AssetId]
    ) -> None:
        await self._connection.execute(REFER, (branch, list(ids), commit))

    async def references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        where = OF_BRANCH if commit is None else OF_VERSION
        values = {"workspace": workspace, "branch": branch, "commit": commit}
        return await self._ids(f"SELECT asset_id FROM asset_ref WHERE {where}", values)  # noqa: S608  # only constants are put in

    async def remove_references(
        self, workspace: WorkspaceId, branch: BranchName, commit: CommitId | None = None
    ) -> list[AssetId]:
        where = OF_BRANCH if commit is None else OF_VERSION
        values = {"workspace": workspace, "branch": branch, "commit": commit}
        return await self._ids(f"DELETE FROM asset_ref WHERE {where} RETURNING asset_id", values)  # noqa: S608  # as above

    async def unheld(
        self, ids: Iterable[AssetId], *, ignoring: BranchName | None = None
    ) -> list[AssetId]:
        return await self._ids(UNHELD, {"ids": list(ids), "ignoring": ignoring})


def _blueprint(data: object) -> Blueprint:
    assert isinstance(data, bytes | memoryview)
    blueprint = stored_names.loads(bytes(data), object)
    assert isinstance(blueprint, LogicalTopic | LogicalJob), "a bank row holds a blueprint"
    return blueprint
