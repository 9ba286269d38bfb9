"""Create the topics of query logs, for the workspaces whose queries are to be logged.

Query servers may not create topics, so they record in the table `query_log` that a workspace logs
queries, and wait for the topic; this loop creates it within `INTERVAL_S`.
"""

from __future__ import annotations

from typing import Final

from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.definition.periodic import run_periodically
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import QueryLogNotCreated
from fennel_core.ledger.query_logs import ensure_query_log
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import WorkspaceId

INTERVAL_S: Final = 1.0
"""Query servers hold the rows of the first queries in memory until then."""
MISSING: Final = """
    SELECT q.workspace FROM query_log q JOIN workspace w ON w.name = q.workspace
    WHERE w.state = 'open' AND NOT EXISTS (
        SELECT FROM asset a
        WHERE a.workspace = q.workspace AND a.kind = 'querylog' AND a.state = 'live'
    )
    ORDER BY q.workspace
"""
log = logger(__name__)


class QueryLogTopics:
    """Creates missing topics every `INTERVAL_S`; several servers may do so."""

    def __init__(self, pool: Pool, context: LedgerContext) -> None:
        self._pool, self._context = pool, context

    async def run(self) -> None:
        """Run without end."""
        await run_periodically(self.create_missing, "query logs", INTERVAL_S)

    async def create_missing(self) -> None:
        """Create the topics that are missing now; what fails is tried again by the next call."""
        async with self._pool.connection() as connection:
            rows = await (await connection.execute(MISSING)).fetchall()
        for (name,) in rows:
            workspace = WorkspaceId(str(name))
            try:
                await ensure_query_log(self._context, workspace)
            except (SystemUnavailable, QueryLogNotCreated, WorkspaceNotFound) as failed:
                log.warning("query log not created; retrying", workspace=name, reason=str(failed))
