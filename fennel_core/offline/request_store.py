"""Where requests for training data are stored: the Protocol, and the implementation in memory.

`request_postgres` has the other one. Changes are pure functions (`request_row`), applied to the
current row under its lock with the store's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from fennel_core.offline.request_row import (
    NewRequest,
    OfflineRequest,
    admitted,
    is_forgettable,
    is_removable,
)
from fennel_core.vocab.ids import WorkspaceId

RequestChange = Callable[[OfflineRequest, datetime], OfflineRequest]


class RequestStore(Protocol):
    """Requests by id. Every method raises SystemUnavailable."""

    async def add(self, new: NewRequest, limit: int) -> OfflineRequest:
        """Store a new request, or return the one with this id, which another attempt has stored.

        Raises `OfflineQueueFull` if its workspace has `limit` requests that have not ended; calls
        of one workspace take turns.
        """
        ...

    async def read(self, id_: str) -> OfflineRequest | None:
        """Return a request, None if there is none."""
        ...

    async def change(self, id_: str, change: RequestChange) -> OfflineRequest | None:
        """Apply a change and return the new row, None if there is none; raises what it raises."""
        ...

    async def newest(self, workspace: WorkspaceId | None, rows: int) -> tuple[OfflineRequest, ...]:
        """Return the newest requests of a workspace, newest first; None: of all."""
        ...

    async def count_open(self, workspace: WorkspaceId) -> int:
        """Return how many requests of a workspace have not ended."""
        ...

    async def open_requests(self) -> tuple[OfflineRequest, ...]:
        """Return the requests that have not ended, oldest first."""
        ...

    async def removable(self, kept: timedelta) -> tuple[OfflineRequest, ...]:
        """Return requests whose objects may be deleted (`is_removable`), oldest end first."""
        ...

    async def removals(self, ids: Collection[str]) -> Mapping[str, bool]:
        """Return of each of `ids` that exists whether its objects were deleted."""
        ...

    async def forget(self, kept: timedelta) -> int:
        """Delete the rows of requests that ended longer ago than `kept`, and whose objects were
        deleted (`is_forgettable`); return how many. A call deletes a bounded number.
        """
        ...

    async def now(self) -> datetime:
        """Return the store's time."""
        ...


class MemoryRequests:
    """Implement `RequestStore` in memory, with a clock that the caller controls."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._rows: dict[str, OfflineRequest] = {}

    async def add(self, new: NewRequest, limit: int) -> OfflineRequest:
        if new.id not in self._rows:
            waiting = await self.count_open(new.workspace)
            self._rows[new.id] = admitted(new, waiting, limit, self._clock())
        return self._rows[new.id]

    async def read(self, id_: str) -> OfflineRequest | None:
        return self._rows.get(id_)

    async def change(self, id_: str, change: RequestChange) -> OfflineRequest | None:
        row = self._rows.get(id_)
        if row is None:
            return None
        changed = self._rows[id_] = change(row, self._clock())
        return changed

    async def newest(self, workspace: WorkspaceId | None, rows: int) -> tuple[OfflineRequest, ...]:
        found = [row for row in self._rows.values() if workspace in (None, row.workspace)]
        return tuple(sorted(found, key=_by_creation, reverse=True)[:rows])

    async def count_open(self, workspace: WorkspaceId) -> int:
        return sum(row.is_open and row.workspace == workspace for row in self._rows.values())

    async def open_requests(self) -> tuple[OfflineRequest, ...]:
        return tuple(sorted((r for r in self._rows.values() if r.is_open), key=_by_creation))

    async def removable(self, kept: timedelta) -> tuple[OfflineRequest, ...]:
        now = self._clock()
        found = [row for row in self._rows.values() if is_removable(row, now, kept)]
        return tuple(sorted(found, key=lambda row: (row.ended_at, row.id)))

    async def removals(self, ids: Collection[str]) -> Mapping[str, bool]:
        found = (self._rows[id_] for id_ in ids if id_ in self._rows)
        return {row.id: row.removed_at is not None for row in found}

    async def forget(self, kept: timedelta) -> int:
        now = self._clock()
        old = [row.id for row in self._rows.values() if is_forgettable(row, now, kept)]
        for id_ in old:
            del self._rows[id_]
        return len(old)

    async def now(self) -> datetime:
        return self._clock()


def _by_creation(row: OfflineRequest) -> tuple[datetime, str]:
    return (row.created_at, row.id)
