"""Secrets that user code reads, with an audit event at the first use by each version of code.

An event per call would be a write per query, and say no more. A version is a commit of a branch,
the catalog of a source, or a job. The event is written before the value is handed out, once per
installation: processes remember what they have written, and the database has the last word.
"""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections import secrets
from fennel_core.connections.audit_events import record_use
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.postgres import Pool
from fennel_core.connections.secrets import Sealer
from fennel_core.vocab.ids import WorkspaceId

MOST_REMEMBERED = 10_000
"""Uses that a process remembers; then it asks the database again."""
_NOT_AUDITED = (
    psycopg.OperationalError,
    PoolTimeout,
    TransactionAborted,
    TransactionOutcomeUnknown,
)


class SecretUses:
    """Reads secrets for user code. `sealer` None: the installation has no secrets."""

    def __init__(self, pool: Pool, sealer: Sealer | None) -> None:
        self._pool = pool
        self._sealer = sealer
        self._written: set[tuple[WorkspaceId, str, str]] = set()

    async def read(self, workspace: WorkspaceId, version: str, name: str) -> str | None:
        """Return the value of a secret, None if there is none, for code of a version.

        Raises SystemUnavailable, also if the use cannot be audited.
        """
        if self._sealer is None:
            return None
        value = await secrets.get(self._pool, self._sealer, workspace, name)
        use = (workspace, version, name)
        if value is None or use in self._written:
            return value
        actor, subject = f"user code of {version}", f"secret {name}"
        try:
            await record_use(self._pool, actor, subject, workspace)
        except _NOT_AUDITED as lost:
            raise SystemUnavailable(f"Postgres: {lost}") from lost
        if len(self._written) >= MOST_REMEMBERED:
            self._written.clear()
        self._written.add(use)
        return value
