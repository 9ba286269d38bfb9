"""Reload caches when Postgres sends a notification.

A notification is a hint, never the only way to learn of a change. The caches are also reloaded when
the listener (re)connects, because earlier notifications were missed, and by callers whose requests
are refused. Notifications about owners come in bursts (one statement per slot and heartbeat), so a
read that is running when one arrives is followed by exactly one more.
"""

from __future__ import annotations

import asyncio

from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.query.owners import Owners
from fennel_core.query.view import BranchKey, Views
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import BranchName, WorkspaceId

CHANNELS = ("owners", "catalog")
log = logger(__name__)


class NotificationListener:
    """Keeps the owners and the views current."""

    def __init__(self, dsn: str, owners: Owners, views: Views) -> None:
        self._dsn = dsn
        self._owners = owners
        self._views = views
        self._owners_changed = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_owners())
            async for wakeup in listen(self._dsn, CHANNELS, name="fennel-query-wakeups"):
                match wakeup:
                    case ListenStarted():
                        self._owners_changed.set()
                        await self._try_views(None)
                    case Notification("owners", _):
                        self._owners_changed.set()
                    case Notification(_, payload):
                        await self._try_views(branch_key(payload))

    async def _follow_owners(self) -> None:
        while True:
            await self._owners_changed.wait()
            self._owners_changed.clear()
            try:
                await self._owners.refresh(self._owners.epoch)
            # Outermost handler: the listener must survive, and callers read again on demand.
            except Exception as failed:
                log.error("owners could not be reloaded", exc_info=failed)

    async def _try_views(self, key: BranchKey | None) -> None:
        try:
            await (self._views.refresh_all() if key is None else self._views.refresh(key))
        # Outermost handler: one unreadable branch must not make the others stale.
        except Exception as failed:
            log.error("view could not be reloaded", branch=key, exc_info=failed)


def branch_key(payload: str) -> BranchKey:
    """Return the branch that a notification names: `<workspace>/<branch>`.

    Branch names may contain slashes, workspace names cannot.
    """
    workspace, _, branch = payload.partition("/")
    return WorkspaceId(workspace), BranchName(branch)
