"""Reload caches when Postgres sends a notification.

A notification is a hint, never the only way to learn of a change. The caches are also reloaded when
the listener (re)connects, because earlier notifications were missed, and by callers whose requests
are refused. A notification about owners names their jobs (`bank.wakeups`), and only these are read.
Such notifications come in bursts, so reads have a pause between them and cover what was named in
the pause. A read that fails is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from fennel_core.bank.wakeups import OWNERS_CHANNEL, jobs_in
from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.query.owners import Owners
from fennel_core.query.view import BranchKey
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import BranchName, JobId, WorkspaceId

CHANNELS = (OWNERS_CHANNEL, "catalog")
OWNERS_PAUSE_S = 0.1
"""Between two reads of the owners after notifications; callers that need newer ones do not wait."""
log = logger(__name__)


class NotificationListener:
    """Keeps the owners and the views current."""

    def __init__(self, dsn: str, owners: Owners, refresher: ViewRefresher) -> None:
        self._dsn = dsn
        self._owners = owners
        self._refresher = refresher
        self._owners_changed = asyncio.Event()
        self._changed_jobs: set[JobId] | None = set()
        """Jobs that notifications named since the last read; None: all."""

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_owners())
            tasks.create_task(self._refresher.run())
            async for wakeup in listen(self._dsn, CHANNELS, name="fennel-query-wakeups"):
                match wakeup:
                    case ListenStarted():
                        self._reread(None)
                        self._refresher.request_all()
                    case Notification(channel, payload) if channel == OWNERS_CHANNEL:
                        self._reread(jobs_in(payload))
                    case Notification(_, payload):
                        self._refresher.request(branch_key(payload))

    def _reread(self, jobs: Collection[JobId] | None) -> None:
        """Request a read of the owners of `jobs`, or of all."""
        if jobs is None:
            self._changed_jobs = None
        elif self._changed_jobs is not None:
            self._changed_jobs |= set(jobs)
        self._owners_changed.set()

    async def _follow_owners(self) -> None:
        while True:
            await self._owners_changed.wait()
            self._owners_changed.clear()
            jobs, self._changed_jobs = self._changed_jobs, set()
            try:
                await self._owners.reread(jobs)
            # Outermost loop: the listener must survive; the read is repeated after the pause.
            except Exception as failed:
                log.error("owners could not be reloaded", exc_info=failed)
                self._reread(jobs)
            await asyncio.sleep(OWNERS_PAUSE_S)


def branch_key(payload: str) -> BranchKey:
    """Return the branch that a notification names: `<workspace>/<branch>`.

    Branch names may contain slashes, workspace names cannot.
    """
    workspace, _, branch = payload.partition("/")
    return WorkspaceId(workspace), BranchName(branch)
