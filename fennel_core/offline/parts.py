"""What a definition server needs to serve requests for training data, made from its settings."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from fennel_core.connections.garbage import DeletionLimit, PostgresGarbageMarks
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.definition.orchestrator import CommitOrchestrator
from fennel_core.offline.place_checks import S3Places
from fennel_core.offline.planning import estimate_read
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_removal import RemovalRules, RequestRemoval
from fennel_core.offline.request_row import RunLimits
from fennel_core.offline.request_runs import AirflowRuns, InlineRuns, OfflineRunLoop, RunStarter
from fennel_core.offline.request_service import OfflineRequests, RequestLimits
from fennel_core.offline.request_status import ResultPlaces
from fennel_core.offline.routes import router
from fennel_core.query.postgres import PostgresReader
from fennel_core.settings.model import Settings

ROUTERS: Final = (router,)


def offline_requests(settings: Settings, pool: Pool, wake: Callable[[], None]) -> OfflineRequests:
    """Return the service. `wake`: look for requests to start now."""
    kept = timedelta(days=settings.offline_result_days)
    return OfflineRequests(
        PostgresRequests(pool),
        PostgresReader(pool),
        installation_objects(settings, pool),
        RequestLimits(
            settings.offline_queries_queued,
            lambda root: ResultPlaces(settings.s3_bucket, root, kept),
        ),
        lambda: uuid.uuid4().hex,
        wake,
        partial(estimate_read, settings, pool),
        S3Places.of(settings),
    )


class EndlessLoop(Protocol):
    async def run(self) -> None:
        """Run without end."""
        ...


@dataclass(frozen=True, slots=True)
class OrphanLoop:
    """The second loop of the removal."""

    removal: RequestRemoval

    async def run(self) -> None:
        """Run without end."""
        await self.removal.run_orphans()


@dataclass(frozen=True, slots=True)
class OfflineParts:
    """The service of the routes, the loops beside it, and what ends inline runs."""

    requests: OfflineRequests
    loops: tuple[EndlessLoop, ...]
    close: Callable[[], Coroutine[Any, Any, None]]

    @classmethod
    def of(cls, settings: Settings, pool: Pool, orchestrator: CommitOrchestrator) -> OfflineParts:
        """Return the parts; runs are started by Airflow if commits are."""
        store, objects = PostgresRequests(pool), installation_objects(settings, pool)
        inline = InlineRuns(settings, store)
        starter: RunStarter = inline
        in_total: int | None = settings.offline_inline_at_once
        if isinstance(orchestrator, AirflowOrchestrator):
            starter, in_total = AirflowRuns(orchestrator), None  # its pool bounds them
        limits = RunLimits(settings.offline_queries_at_once, in_total)
        runs = OfflineRunLoop(store, starter, limits)
        requests = offline_requests(settings, pool, runs.wake)
        rules = RemovalRules(
            timedelta(days=settings.offline_result_days),
            timedelta(days=settings.offline_request_days),
            timedelta(milliseconds=settings.history_grace_ms),
            DeletionLimit(settings.garbage_items, settings.garbage_percent),
        )
        removal = RequestRemoval(store, objects, PostgresGarbageMarks(pool), rules, requests.places)
        return cls(requests, (runs, removal, OrphanLoop(removal)), inline.close)
