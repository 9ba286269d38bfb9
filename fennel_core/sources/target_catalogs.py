"""The catalogs of the branches' target versions: the only list of what is read and written."""

from __future__ import annotations

from typing import Final, LiteralString, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.postgres import Pool, connection_of

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

    async def read(self) -> list[Catalog]:
        """Return the catalogs, the newest first. Raises `SystemUnavailable`."""
        async with connection_of(self._pool) as connection:
            rows = await (
                await connection.execute(CATALOGS, {"known": list(self._known)})
            ).fetchall()
        self._known = {
            str(commit): self._known[str(commit)]
            if data is None
            else stored_names.loads(cast(bytes, data), Catalog)
            for commit, data in rows
        }
        return list(self._known.values())
