"""Reload caches when Postgres sends a notification.

A notification is a hint, never the only way to learn of a change. The caches are also reloaded when
the listener (re)connects, because earlier notifications were missed, and by callers whose requests
are refused. Notifications about owners come in bursts (one statement per slot and heartbeat), and a
read covers all job partitions, so reads have a pause between them. A read that fails is tried
again.
"""

from __future__ import annotations

import asyncio

from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.query.owners import Owners
from fennel_core.query.view import BranchKey
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import BranchName, WorkspaceId

CHANNELS = ("owners", "catalog")
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

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_owners())
            tasks.create_task(self._refresher.run())
            async for wakeup in listen(self._dsn, CHANNELS, name="fennel-query-wakeups"):
                match wakeup:
                    case ListenStarted():
                        self._owners_changed.set()
                        self._refresher.request_all()
                    case Notification("owners", _):
                        self._owners_changed.set()
                    case Notification(_, payload):
                        self._refresher.request(branch_key(payload))

    async def _follow_owners(self) -> None:
        while True:
            await self._owners_changed.wait()
            self._owners_changed.clear()
            try:
                await self._owners.refresh(self._owners.epoch)
            # Outermost loop: the listener must survive; the read is repeated after the pause.
            except Exception as failed:
                log.error("owners could not be reloaded", exc_info=failed)
                self._owners_changed.set()
            await asyncio.sleep(OWNERS_PAUSE_S)


def branch_key(payload: str) -> BranchKey:
    """Return the branch that a notification names: `<workspace>/<branch>`.

    Branch names may contain slashes, workspace names cannot.
    """
    workspace, _, branch = payload.partition("/")
    return WorkspaceId(workspace), BranchName(branch)
