"""Which workspaces keep rows that are older than `history`, and why, for `fennel-core status` and a
metric, read every minute.

Theory. Rows leave by their age in the same run in all workspaces, other than in those that are
older than retention and have not confirmed it, and those with a commit between T1 and T2
(`row_needs`). The first ends only with a commit; the second by itself, unless the commit is
stuck. Nothing fails in the meantime: history grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.history.row_needs import CHANGING
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import CommitId, WorkspaceId

log = logger(__name__)
PERIOD_S: Final = 60.0
STUCK: Final = timedelta(minutes=10)
"""After which a commit between T1 and T2 is reported: it takes seconds."""
READ: Final = """
    SELECT w.name, w.keeps_old_rows,
        CASE WHEN w.old_rows_held_until > now() THEN w.old_rows_held_until END,
        c.id, c.created_at
    FROM workspace w LEFT JOIN LATERAL (
        SELECT id, created_at FROM commit
        WHERE workspace = w.name AND finished_at IS NULL AND state = ANY(%(changing)s)
            AND created_at < now() - %(stuck)s
        ORDER BY created_at LIMIT 1
    ) c ON true
    WHERE w.state = 'open'
        AND (w.keeps_old_rows OR w.old_rows_held_until > now() OR c.id IS NOT NULL)
    ORDER BY w.name COLLATE "C"
"""


class Reason(StrEnum):
    """Why a workspace keeps rows that have expired."""

    UNCONFIRMED = "unconfirmed"
    """It is older than retention, and no commit has confirmed that rows may leave."""
    GRACE = "grace"
    """It was confirmed; its grace period is not over."""
    COMMIT = "commit"
    """A commit is between T1 and T2, and has been for longer than `STUCK`."""


HELD = metrics.gauge(
    "fennel_history_rows_held",
    "1 for a workspace that keeps rows older than `history`, by reason: `unconfirmed`, `grace` or "
    "`commit`.",
    ("workspace", "reason"),
)


@dataclass(frozen=True, slots=True)
class HeldRows:
    """A reason why a workspace keeps its rows.

    `at`: the end of the grace period, or when the `commit` was received.
    """

    workspace: WorkspaceId
    reason: Reason
    at: datetime | None = None
    commit: CommitId | None = None

    def as_row(self) -> dict[str, object]:
        """Return it as JSON."""
        at = None if self.at is None else self.at.isoformat(timespec="seconds")
        return {
            "workspace": self.workspace,
            "reason": str(self.reason),
            "at": at,
            "commit": self.commit,
        }


async def held_rows(pool: Pool) -> list[HeldRows]:
    """Return why workspaces keep rows now, in order. Raises SystemUnavailable."""
    async with postgres.connection_of(pool) as connection:
        values = {"changing": list(CHANGING), "stuck": STUCK}
        rows = await (await connection.execute(READ, values)).fetchall()
    found = []
    for name, unconfirmed, held_until, commit, received_at in cast(list[tuple[Any, ...]], rows):
        workspace = WorkspaceId(name)
        if unconfirmed:
            found.append(HeldRows(workspace, Reason.UNCONFIRMED))
        if held_until is not None:
            found.append(HeldRows(workspace, Reason.GRACE, held_until))
        if commit is not None:
            found.append(HeldRows(workspace, Reason.COMMIT, received_at, CommitId(commit)))
    return found


class HeldRowsReport:
    """Shows which workspaces keep rows. `retention`: the setting; without it all of them do."""

    def __init__(self, pool: Pool, *, retention: bool) -> None:
        self._pool, self._retention = pool, retention
        self._held: Sequence[HeldRows] = ()

    async def run(self) -> None:
        """Read it again and again; without Postgres the last one stays."""
        while self._retention:
            try:
                await self.read()
            except SystemUnavailable as unavailable:
                log.warning("which rows are held is not known", reason=str(unavailable))
            await asyncio.sleep(PERIOD_S)
        await asyncio.Event().wait()

    async def read(self) -> None:
        """Read it once. Raises SystemUnavailable."""
        held = await held_rows(self._pool)
        labels = {(each.workspace, each.reason) for each in held}
        for gone in {(each.workspace, each.reason) for each in self._held} - labels:
            HELD.remove(*gone)
        for each in labels:
            HELD.labels(*each).set(1)
        self._held = held

    def rows(self) -> list[dict[str, object]]:
        """Return it as JSON."""
        return [each.as_row() for each in self._held]
