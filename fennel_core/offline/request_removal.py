"""Delete the objects of requests: expired results, leftovers of failed runs, and orphans; and the
rows of requests that ended long ago.

A request's own row says when its objects may go (`request_row.is_removable`), and that they are
gone: what a run that was thought dead has written after that is deleted by the next search for
orphans. Objects whose request has no row belong to a deleted workspace, or to a request that was
never stored: they are deleted when they have been unknown for a grace period, the latter within the
limit of `connections.garbage`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.garbage import DeletionLimit, GarbageMarks, due_for_deletion
from fennel_core.connections.secrets import SecretUnreadable
from fennel_core.definition.periodic import run_periodically
from fennel_core.offline import request_row
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.place_checks import NONE_ALLOWED, RequestPlaces
from fennel_core.offline.request_files import FOLDER, request_folder, request_of
from fennel_core.offline.request_row import OfflineRequest
from fennel_core.offline.request_service import RequestObjects
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import RequestStore
from fennel_core.telemetry.logs import logger

KIND: Final = "offline-query"
EXPIRY_S: Final = 10.0
ORPHANS_S: Final = 600.0
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class RemovalRules:
    """How long results are kept and requests are listed, and what may be deleted of objects without
    a request.
    """

    kept: timedelta
    listed: timedelta
    grace: timedelta
    limit: DeletionLimit


@dataclass(frozen=True, slots=True)
class RequestRemoval:
    """Deletes objects; several servers may do so."""

    store: RequestStore
    objects: RequestObjects
    marks: GarbageMarks
    rules: RemovalRules
    places: RequestPlaces = NONE_ALLOWED

    async def run(self) -> None:
        """Remove what is due, without end."""
        await run_periodically(self.remove_due, "offline results", EXPIRY_S)

    async def run_orphans(self) -> None:
        """Remove orphans and old requests, without end."""
        await run_periodically(self.remove_old, "orphaned offline results", ORPHANS_S)

    async def remove_old(self) -> None:
        """Forget requests that ended long ago, then delete orphans."""
        # First: a refusal to delete orphans must not keep rows for ever.
        while forgotten := await self.store.forget(self.rules.listed):
            log.info("old offline queries forgotten", requests=forgotten)
        await self.remove_orphans()

    async def remove_due(self) -> None:
        """Delete the objects of requests that need none any more."""
        for row in await self.store.removable(self.rules.kept):
            try:
                await self._remove(row)
            except SystemUnavailable as failed:
                log.warning("objects not deleted; retrying", request=row.id, reason=str(failed))

    async def remove_orphans(self) -> None:
        """Delete objects whose request the database has not known for the grace period, and those
        that were written after the objects of their request had been deleted.
        """
        keys: dict[str, list[str]] = {}
        for each in await self.objects.list_objects(FOLDER):
            id_ = request_of(each.key)
            if id_ is not None:
                keys.setdefault(id_, []).append(each.key)
        removals = await self.store.removals(keys)
        for id_ in [id_ for id_, removed in removals.items() if removed]:
            await self.objects.delete(keys[id_])
            log.info("late objects of an offline query deleted", request=id_)
        marked = await self.marks.mark(KIND, keys.keys() - removals.keys())
        rules, deleted = self.rules, await self.marks.deleted(KIND)
        for id_ in due_for_deletion(KIND, marked, len(keys), rules.grace, rules.limit, deleted):
            await self.objects.delete(keys[id_])
            log.info("objects of an unknown offline query deleted", request=id_)

    async def _remove(self, row: OfflineRequest) -> None:
        if row.state is not RequestState.DONE and row.definition.target is not None:
            await self._withdraw(row)
        folder = request_folder(row.workspace, row.id)
        keys = [each.key for each in await self.objects.list_objects(folder)]
        await self.objects.delete(keys)
        await self.store.change(row.id, request_row.removed)
        log.info("objects of an offline query deleted", request=row.id, objects=len(keys))

    async def _withdraw(self, row: OfflineRequest) -> None:
        """Delete what a request without a result has left in the bucket of its user."""
        keys_key = row.definition.keys_key
        sealed = await self.objects.get(keys_key) if keys_key else None
        try:
            await asyncio.to_thread(self.places.withdraw, row, sealed)
        except (OfflineError, SecretUnreadable) as refused:
            log.warning("files in a user's bucket stay", request=row.id, reason=str(refused))
