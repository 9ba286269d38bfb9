"""Notifications from Postgres: what in memory has to be read anew.

Theory. A notification is a hint, never the only way to learn something: the caches are re-read when
the listener (re)connects, because what was said before was not heard, and callers re-read them
whenever they are refused. Notifications about owners come in bursts (one statement per slot and
beat), so a reading that is under way when one arrives is followed by exactly one more.
"""

from __future__ import annotations

import asyncio

from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.query.owners import Owners
from fennel_core.query.view import BranchKey, Views
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import BranchName, WorkspaceId

CHANNELS = ("registry", "catalog")
log = logger(__name__)


class NotificationListener:
    def __init__(self, dsn: str, owners: Owners, views: Views) -> None:
        self._dsn = dsn
        self._owners = owners
        self._views = views
        self._owners_moved = asyncio.Event()

    async def run(self) -> None:
        """Listen for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_owners())
            async for wakeup in listen(self._dsn, CHANNELS, name="fennel-query-wakeups"):
                match wakeup:
                    case ListenStarted():
                        self._owners_moved.set()
                        await self._try_views(None)
                    case Notification("registry", _):
                        self._owners_moved.set()
                    case Notification(_, payload):
                        await self._try_views(branch_key(payload))

    async def _follow_owners(self) -> None:
        while True:
            await self._owners_moved.wait()
            self._owners_moved.clear()
            try:
                await self._owners.refresh(self._owners.epoch)
            # the last line: callers read again when they need to, the listener must live
            except Exception as failed:
                log.error("owners could not be read", exc_info=failed)

    async def _try_views(self, key: BranchKey | None) -> None:
        try:
            await (self._views.refresh_all() if key is None else self._views.refresh(key))
        # the last line: one branch that cannot be read must not make the others old
        except Exception as failed:
            log.error("a branch could not be read", branch=key, exc_info=failed)


def branch_key(payload: str) -> BranchKey:
    """The branch a notification names: `<workspace>/<branch>`; branch names may hold slashes,
    workspace names cannot.
    """
    workspace, _, branch = payload.partition("/")
    return WorkspaceId(workspace), BranchName(branch)
