"""The catalogs of the branches' target versions: the only list of what is read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.connectors.postgres import all_connectors
from fennel_core.connectors.references import Access, Stored, remedy, resolved_catalog
from fennel_core.connectors.store import StoredConnector
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import Table

CATALOGS: Final[LiteralString] = """
    SELECT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END
    FROM commit c WHERE c.catalog IS NOT NULL AND c.id IN (SELECT target FROM branch)
    ORDER BY c.created_at DESC, c.id
"""
"""The newest first: its credentials of a connector count."""


class TargetCatalogs:
    """Reads the catalogs; each is loaded once. Use from one event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, Catalog] = {}
        self._connectors: list[StoredConnector] = []
        self._stored: dict[WorkspaceId, dict[str, Access]] = {}
        self._resolved: dict[str, Catalog] = {}

    async def read(self) -> list[Catalog]:
        """Return the catalogs, the newest first, with the stored connectors that they name.

        Raises `SystemUnavailable`.
        """
        async with connection_of(self._pool) as connection:
            rows = await (
                await connection.execute(CATALOGS, {"known": list(self._known)})
            ).fetchall()
            connectors = await all_connectors(connection)
        self._known = {
            str(commit): self._known[str(commit)]
            if data is None
            else stored_names.loads(cast(bytes, data), Catalog)
            for commit, data in rows
        }
        if connectors != self._connectors or self._known.keys() != self._resolved.keys():
            stored: dict[WorkspaceId, dict[str, Access]] = {}
            for each in connectors:
                stored.setdefault(each.workspace, {})[each.name] = each.database
            # Together, behind what may fail: else the next call would return what was before.
            self._resolved, self._stored = _resolved(self._known, stored), stored
            self._connectors = connectors
        return [self._resolved[commit] for commit in self._known]

    def remedy(self, workspace: WorkspaceId, table: Table) -> str | None:
        """Return `references.remedy`, with the connectors that were stored when this read."""
        return remedy(table, self._stored.get(workspace, {}))


def _resolved(
    catalogs: Mapping[str, Catalog], stored: Mapping[WorkspaceId, Stored]
) -> dict[str, Catalog]:
    return {
        commit: resolved_catalog(catalog, stored.get(catalog.workspace, {}))
        for commit, catalog in catalogs.items()
    }
