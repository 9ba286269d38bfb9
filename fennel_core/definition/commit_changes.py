"""Wait until the row of a commit changes.

A trigger notifies the channel `commit` when a commit changes its state, when it is finished, and
when the parked jobs that its reads wait for change. A notification is a hint and may be lost, so a
wait also ends after a limit, and the caller reads the row after each wait. A listener that
(re)connects has missed notifications and ends every wait.

Begin to watch before you read the row: a change between the two then ends the first wait at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol

from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.vocab.ids import CommitId

CHANNEL: Final = "commit"
"""NOTIFY channel; the payload is the id of the commit."""


class CommitWatch(Protocol):
    """Waits for changes of one commit."""

    async def wait(self, seconds: float) -> None:
        """Return after a change since the last wait, or after `seconds`."""
        ...


class CommitChanges(Protocol):
    """Makes watches."""

    def watch(self, commit: CommitId) -> AbstractContextManager[CommitWatch]:
        """Watch a commit inside a `with` block."""
        ...


class _NotifiedWatch:
    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()


class NotifiedChanges:
    """Changes that Postgres reports, over one connection for all commits of this server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._watches: defaultdict[CommitId, set[_NotifiedWatch]] = defaultdict(set)

    @contextmanager
    def watch(self, commit: CommitId) -> Iterator[CommitWatch]:
        """Watch a commit inside a `with` block."""
        watch = _NotifiedWatch()
        self._watches[commit].add(watch)
        try:
            yield watch
        finally:
            self._watches[commit].discard(watch)
            if not self._watches[commit]:
                del self._watches[commit]

    async def run(self) -> None:
        """Listen until cancelled."""
        async for event in listen(self._dsn, (CHANNEL,), name="fennel-definition-commits"):
            match event:
                case ListenStarted():
                    changed = [each for watches in self._watches.values() for each in watches]
                case Notification(_, payload):
                    changed = list(self._watches.get(CommitId(payload), ()))
            for watch in changed:
                watch.notify()
