"""A process of the query server, which its parent starts (`apps.query`).

A worker serves the API on the parent's port; a helper serves the large requests of workers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvloop
from aiohttp import web

from fennel_core.apps.http_protection import protection_of
from fennel_core.apps.query import PROCESS
from fennel_core.apps.serve import serve_http
from fennel_core.apps.workers import (
    HelperResources,
    InheritedResources,
    inherited_resources,
    stop_with_parent,
)
from fennel_core.connections import postgres, secrets, tokens
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.frames import serve as serve_frames
from fennel_core.connections.postgres import Pool
from fennel_core.connections.roles import Access
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.executors.client import Executors
from fennel_core.executors.monitor import publish_reports
from fennel_core.query.barrier import Barrier
from fennel_core.query.batch_thread import SWITCH_INTERVAL_S
from fennel_core.query.erasure_counters import ErasureCounters
from fennel_core.query.erasures import Erasures
from fennel_core.query.forward import Forwarder, Upstream
from fennel_core.query.inspect import Inspector
from fennel_core.query.kafka import KafkaEnds, KafkaTails
from fennel_core.query.large_reads import (
    HELPER_NICENESS,
    DividedReads,
    LargeReadServer,
    Reads,
)
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
    match inherited_resources(sys.argv[1:]):
        case HelperResources() as given:
            uvloop.run(help_with_large_reads(settings, given))
        case given:
            uvloop.run(serve(settings, given))


@dataclass(frozen=True, slots=True)
class ReadPath:
    """What serves reads in one process."""

    service: QueryService
    views: Views
    refresher: ViewRefresher
    erased: Erasures
    query_log: QueryLog
    reads: PostgresReader
    executors: Executors
    pool: Pool
    endless: set[asyncio.Task[None]]
    """Tasks that run as long as the process."""


@asynccontextmanager
async def read_path(settings: Settings, memory: int) -> AsyncIterator[ReadPath]:
    """Make the read path, and close what it opened.

    The query log stays open until the caller closes it. `memory`: of the erasure counters.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    slots, tails = SlotConnections(), KafkaTails(settings)
    async with (
        postgres.pool(dsn, name="fennel-query") as pool,
        Executors(
            settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
        ) as executors,
    ):
        reads = PostgresReader(pool)
        owners, views = Owners(reads), Views(reads)
        refresher, erased = ViewRefresher(views), Erasures(dsn, ErasureCounters(memory))
        query_log = QueryLog(KafkaLogProducer(settings), reads, settings.query_log_bytes)
        made = query_service(
            settings, pool, reads, owners, views, slots, tails, executors, erased, query_log
        )
        tune_interpreter()
        tasks = {
            asyncio.create_task(NotificationListener(dsn, owners, refresher).run()),
            asyncio.create_task(erased.run()),
            asyncio.create_task(publish_reports(executors)),
            asyncio.create_task(query_log.run()),
        }
        async with AsyncExitStack() as closing:  # Closes all, whatever fails.
            closing.push_async_callback(asyncio.to_thread, tails.close)
            closing.push_async_callback(slots.close)
            closing.push_async_callback(_cancelled, tasks)
            yield ReadPath(
                *(made, views, refresher, erased, query_log, reads, executors, pool, tasks)
            )


async def serve(settings: Settings, inherited: InheritedResources) -> None:
    """Serve until a signal arrives, then finish the requests under way."""
    stop_with_parent()
    async with read_path(settings, inherited.memory) as path, AsyncExitStack() as closing:
        divided = DividedReads(
            path.service,
            path.views,
            inherited.helpers,
            settings.query_rows,
            settings.query_timeout_ms / 1000,
        )
        closing.push_async_callback(divided.close)
        forwarder = Forwarder(settings.body_limit_bytes)
        closing.push_async_callback(forwarder.close)
        app = application(settings, path, divided, forwarder)
        metrics_server = await serve_metrics(app.health, settings)
        closing.push_async_callback(metrics_server.cleanup)
        server = asyncio.create_task(
            serve_http(
                app,
                settings.host,
                settings.query_port,
                protection=protection_of(settings, PROCESS, public=True),
                grace_s=rest_of_grace_s(settings.shutdown_grace_s, 0.0),
                keep_alive_s=KEEP_ALIVE_S,
                listener=inherited.listener,
            )
        )
        await _until_stopped(server, path, settings)


async def help_with_large_reads(settings: Settings, given: HelperResources) -> None:
    """Serve the large requests of the workers until a signal arrives, then finish them."""
    stop_with_parent()
    os.nice(HELPER_NICENESS)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with read_path(settings, given.memory) as path:
        large = LargeReadServer(path.service, path.views, path.erased)
        gc.collect()
        gc.freeze()
        server = asyncio.create_task(
            serve_large_reads(
                given.address, large, stopping, rest_of_grace_s(settings.shutdown_grace_s, 0.0)
            )
        )
        await _until_stopped(server, path, settings)


async def serve_large_reads(
    address: str, large: LargeReadServer, stopping: asyncio.Event, grace_s: float
) -> float:
    """Serve until `stopping` is set, then until the workers have disconnected, or for `grace_s`.

    Workers stop at the same time, and wait for their requests. Return the seconds since then.
    """
    connections: set[asyncio.Task[None]] = set()
    server = await serve_frames(address, large.handle, connections)
    await stopping.wait()
    began = time.monotonic()
    server.close()
    if connections:
        await asyncio.wait(connections, timeout=grace_s)
    return time.monotonic() - began


async def _until_stopped(server: asyncio.Task[float], path: ReadPath, settings: Settings) -> None:
    """Wait for the end of the server, and write what the query log still has."""
    stopping_s = 0.0
    try:
        stopping_s = await served_or_failed(server, path.endless)
    finally:
        # While topics are still looked for, and after the last request.
        await path.query_log.close(rest_of_grace_s(settings.shutdown_grace_s, stopping_s))


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


def query_service(
    settings: Settings,
    pool: Pool,
    reads: PostgresReader,
    owners: Owners,
    views: Views,
    slots: SlotConnections,
    tails: KafkaTails,
    executors: Executors,
    erased: Erasures,
    query_log: QueryLog,
) -> QueryService:
    """Build the service; must be called inside the event loop."""
    timeout_s = settings.lookup_timeout_ms / 1000
    key_file = settings.secrets_key_file
    sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
    uses = SecretUses(pool, sealer)

    async def secret(workspace: WorkspaceId, version: str, name: str) -> str | None:
        try:
            return await uses.read(workspace, version, name)
        except SystemUnavailable as lost:
            raise DatabaseUnavailable(f"secret `{name}` could not be read: {lost}") from lost

    return QueryService(
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


def application(
    settings: Settings, path: ReadPath, service: Reads, forwarder: Forwarder
) -> QueryApplication:
    """Build the application; must be called inside the event loop."""

    async def access_of(authorization: str | None) -> Access:
        return await tokens.access_of(path.pool, settings, authorization)

    async def reads_served() -> str | None:
        # Not the database: reads are served from memory while it is out of reach.
        return path.erased.problem()

    ingest = Upstream("ingest", settings.ingest_url)
    return QueryApplication(
        service=service,
        views=path.views,
        status=StatusReport(path.reads, path.views, path.executors, access_of),
        health=HealthEndpoint(PROCESS, {"reads": reads_served}),
        forwarder=forwarder,
        upstreams={
            "log": ingest,
            "erase": ingest,
            "": Upstream("definition", settings.definition_url),
        },
        access_of=access_of,
        body_limit_bytes=settings.body_limit_bytes,
        refresher=path.refresher,
        erasures=path.erased,
        limits=WorkspaceLimits(
            settings.workspace_requests_at_once, settings.workspace_requests_per_s
        ),
    )


if __name__ == "__main__":
    main()
