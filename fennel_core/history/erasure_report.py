"""The progress of erasures for `fennel-core status` and metrics, read every minute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.history.erasure_progress import (
    ErasureProgress,
    erasure_progress,
    keys_left_by_workspace,
    rows_removed_by_workspace,
)
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.topics import HistoryTopics
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import WorkspaceId

PERIOD_S: Final = 60.0
KEYS_LEFT = metrics.gauge(
    "fennel_history_erased_keys_left",
    "Erased keys of which history may still have rows, by whether they are `waiting` to be removed "
    "or `kept` because the topic keeps them.",
    ("workspace", "state"),
)
ROWS_REMOVED = metrics.gauge(
    "fennel_history_erased_rows_removed", "Rows of erased keys that left history.", ("workspace",)
)
log = logger(__name__)


class ErasureReport:
    """Shows the progress of every topic with rows of a dataset with erased keys."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._topics = pool, HistoryTopics(pool)
        self._progress: Sequence[ErasureProgress] = ()
        self._keys: frozenset[tuple[WorkspaceId, str]] = frozenset()
        self._rows: frozenset[WorkspaceId] = frozenset()

    async def run(self) -> None:
        """Read it again and again; without Postgres the last one stays."""
        while True:
            try:
                await self.read()
            except SystemUnavailable as unavailable:
                log.warning("the progress of erasures is not known", reason=str(unavailable))
            await asyncio.sleep(PERIOD_S)

    async def read(self) -> None:
        """Read it once. Raises SystemUnavailable."""
        self._progress = await erasure_progress(
            self._pool, self._topics, PostgresHistoryFiles(self._pool)
        )
        keys = keys_left_by_workspace(self._progress)
        for gone in self._keys - keys.keys():
            KEYS_LEFT.remove(*gone)
        for (workspace, state), left in keys.items():
            KEYS_LEFT.labels(workspace, state).set(left)
        rows = rows_removed_by_workspace(self._progress)
        for without in self._rows - rows.keys():
            ROWS_REMOVED.remove(without)
        for workspace, removed in rows.items():
            ROWS_REMOVED.labels(workspace).set(removed)
        self._keys, self._rows = frozenset(keys), frozenset(rows)

    def rows(self) -> list[dict[str, object]]:
        """Return it as JSON."""
        return [each.as_row() for each in self._progress]
