"""The query server: the API gateway, run as `python -m fennel_core.apps.query`.

With `FENNEL_QUERY_WORKERS` above 1 this process is the parent of so many query servers on one port.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from contextlib import AsyncExitStack

import uvloop
from aiohttp import web

from fennel_core.apps.http_protection import protection_of
from fennel_core.apps.serve import serve_http
from fennel_core.apps.workers import (
    InheritedResources,
    bound_socket,
    inherited_resources,
    run_workers,
    stop_with_parent,
)
from fennel_core.connections import postgres, secrets, tokens
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.connections.roles import Access
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.executors.client import Executors
from fennel_core.executors.monitor import publish_reports
from fennel_core.query.barrier import Barrier
from fennel_core.query.batch_thread import SWITCH_INTERVAL_S
from fennel_core.query.erasure_counters import ErasureCounters, new_memory
from fennel_core.query.erasures import Erasures
from fennel_core.query.forward import Forwarder, Upstream
from fennel_core.query.inspect import Inspector
from fennel_core.query.kafka import KafkaEnds, KafkaTails
from fennel_core.query.log_kafka import KafkaLogProducer
from fennel_core.query.lookups import Lookups
from fennel_core.query.notifications import NotificationListener
from fennel_core.query.owners import Owners
from fennel_core.query.postgres import PostgresReader
from fennel_core.query.query_log import QueryLog
from fennel_core.query.server import QueryApplication
from fennel_core.query.service import QueryLimits, QueryService
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.query.status import StatusReport
from fennel_core.query.view import Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.settings.hosts import host_rules
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs, traces
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import WorkspaceId

PROCESS = "query"
KEEP_ALIVE_S = 75
"""Longer than the idle time-out of common clients: no connection is closed under a request."""
END_S = 3.0
"""Of the time to stop: for what happens after the query log was written, such as the report of its
losses. At most a quarter of that time.
"""
MICROS = 1000
GC_THRESHOLDS = (20_000, 20, 50)
"""Requests leave no reference cycles, so the default (a collection every 700 objects) finds nothing
and shows in the 99th percentile.
"""


def main() -> None:
    settings = Settings()
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    traces.configure(PROCESS, settings.otlp_endpoint)
    inherited = inherited_resources(sys.argv[1:])
    if inherited is not None or settings.query_workers == 1:
        uvloop.run(serve(settings, inherited))
        return
    bound = bound_socket(settings.host, settings.query_port)
    count, grace_s = settings.query_workers, settings.shutdown_grace_s
    run = run_workers("fennel_core.apps.query", count, bound, grace_s=grace_s, memory=new_memory())
    sys.exit(asyncio.run(run))


async def serve(settings: Settings, inherited: InheritedResources | None = None) -> None:
    """Serve until a signal arrives, then finish the requests under way.

    `inherited`: what a worker shares with its parent.
    """
    if inherited is not None:
        stop_with_parent()
    dsn = settings.postgres_dsn.get_secret_value()
    slots, tails, forwarder = (
        SlotConnections(),
        KafkaTails(settings),
        Forwarder(settings.body_limit_bytes),
    )
    async with (
        postgres.pool(dsn, name="fennel-query") as pool,
        Executors(
            settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
        ) as executors,
    ):
        reads = PostgresReader(pool)
        owners, views = Owners(reads), Views(reads)
        counters = None if inherited is None else ErasureCounters(inherited.memory)
        refresher, erased = ViewRefresher(views), Erasures(dsn, counters)
        query_log = QueryLog(KafkaLogProducer(settings), reads, settings.query_log_bytes)
        app = application(
            settings,
            pool,
            reads,
            owners,
            views,
            slots,
            tails,
            forwarder,
            executors,
            erased,
            refresher,
            query_log,
        )
        tune_interpreter()
        metrics_server = await serve_metrics(app.health, settings)
        server = asyncio.create_task(
            serve_http(
                app,
                settings.host,
                settings.query_port,
                protection=protection_of(settings, PROCESS, public=True),
                grace_s=rest_of_grace_s(settings.shutdown_grace_s, 0.0),
                keep_alive_s=KEEP_ALIVE_S,
                listener=None if inherited is None else inherited.listener,
            )
        )
        listeners = {
            asyncio.create_task(NotificationListener(dsn, owners, refresher).run()),
            asyncio.create_task(erased.run()),
            asyncio.create_task(publish_reports(executors)),
            asyncio.create_task(query_log.run()),
        }
        stopping_s = 0.0
        try:
            stopping_s = await served_or_failed(server, listeners)
        finally:
            async with AsyncExitStack() as closing:  # Closes all, whatever fails.
                closing.push_async_callback(asyncio.to_thread, tails.close)
                closing.push_async_callback(slots.close)
                closing.push_async_callback(forwarder.close)
                closing.push_async_callback(metrics_server.cleanup)
                closing.push_async_callback(_cancelled, listeners)
                # While topics are still looked for, and after the last request.
                await query_log.close(rest_of_grace_s(settings.shutdown_grace_s, stopping_s))


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def rest_of_grace_s(grace_s: float, stopping_s: float) -> float:
    """Return how long requests and the query log may still take `stopping_s` after the signal.

    The process is killed `grace_s` after it; both share one deadline, so that losses are reported.
    """
    return max(0.0, grace_s - min(END_S, grace_s / 4) - stopping_s)


async def served_or_failed(
    server: asyncio.Task[float], listeners: set[asyncio.Task[None]]
) -> float:
    """Wait for the end of the server and return its result (`serve_http`).

    Raises RuntimeError if one of its endless helpers ends before.
    """
    ended, _ = await asyncio.wait({server, *listeners}, return_when=asyncio.FIRST_COMPLETED)
    if not server.done():
        raise RuntimeError(
            "a listener for notifications ended; without it caches go stale"
        ) from ended.pop().exception()
    return await server


async def serve_metrics(health: HealthEndpoint, settings: Settings) -> web.AppRunner:
    """Serve metrics on their own port.

    Workers share it, too: each of them renders the metrics of all.
    """
    rules = host_rules(settings, PROCESS, public=False)
    port = settings.query_metrics_port
    return await health.serve(settings.host, port, rules, reuse_port=True)


def tune_interpreter() -> None:
    """Set what the latency of requests depends on; for processes that only serve queries."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def application(
    settings: Settings,
    pool: Pool,
    reads: PostgresReader,
    owners: Owners,
    views: Views,
    slots: SlotConnections,
    tails: KafkaTails,
    forwarder: Forwarder,
    executors: Executors,
    erased: Erasures,
    refresher: ViewRefresher,
    query_log: QueryLog,
) -> QueryApplication:
    """Build the application; must be called inside the event loop."""
    timeout_s = settings.lookup_timeout_ms / 1000
    key_file = settings.secrets_key_file
    sealer = None if key_file is None else secrets.Sealer.from_file(key_file)

    uses = SecretUses(pool, sealer)

    async def secret(workspace: WorkspaceId, version: str, name: str) -> str | None:
        try:
            return await uses.read(workspace, version, name)
        except SystemUnavailable as lost:
            raise DatabaseUnavailable(f"secret `{name}` could not be read: {lost}") from lost

    async def access_of(authorization: str | None) -> Access:
        return await tokens.access_of(pool, settings, authorization)

    async def reads_served() -> str | None:
        # Not the database: reads are served from memory while it is out of reach.
        return erased.problem()

    service = QueryService(
        views=views,
        lookups=Lookups(slots, owners, timeout_s, erased.hidden),
        executors=executors,
        inspector=Inspector(tails, slots, owners, timeout_s, erased.hidden),
        barrier=Barrier(reads, KafkaEnds(settings), owners, slots),
        secret=secret,
        now_us=lambda: time.time_ns() // MICROS,
        bounds=QueryLimits(
            settings.query_rows, settings.query_timeout_ms / 1000, settings.barrier_timeout_s
        ),
        query_log=query_log,
    )
    ingest = Upstream("ingest", settings.ingest_url)
    return QueryApplication(
        service=service,
        views=views,
        status=StatusReport(reads, views, executors, access_of),
        health=HealthEndpoint(PROCESS, {"reads": reads_served}),
        forwarder=forwarder,
        upstreams={
            "log": ingest,
            "erase": ingest,
            "": Upstream("definition", settings.definition_url),
        },
        access_of=access_of,
        body_limit_bytes=settings.body_limit_bytes,
        refresher=refresher,
        erasures=erased,
        limits=WorkspaceLimits(
            settings.workspace_requests_at_once, settings.workspace_requests_per_s
        ),
    )


if __name__ == "__main__":
    main()
