"""The definition server, run as `python -m fennel_core.apps.definition`."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial

import uvloop
from fastapi import FastAPI

from fennel_core.apps.http_protection import protection_of
from fennel_core.apps.serve import serve_http
from fennel_core.connections import erasures, postgres, secrets
from fennel_core.connections.erasures import Erased
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.external_kafka import stream_bounds
from fennel_core.connections.kafka import COMMIT_WITHIN_TRANSACTIONS
from fennel_core.connections.postgres import Pool
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.dataframes.read_service import DataframeReads, ReadStores
from fennel_core.dataframes.routes import router as dataframes_router
from fennel_core.dead_letters.kafka import KafkaDeadLetters
from fennel_core.dead_letters.postgres import PostgresDeadLetterCounts
from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.definition.audit_export import AuditExport
from fennel_core.definition.commit_changes import NotifiedChanges
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.commit_steps import build_commit_steps
from fennel_core.definition.connector_orders import ConnectorOrders
from fennel_core.definition.dead_letter_check import DeadLetterCheck
from fennel_core.definition.drill_check import FailedDrillCheck
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.integrity_check import IntegrityAlarm
from fennel_core.definition.kafka_retention import KafkaRetention, NeededRecordsCheck
from fennel_core.definition.orchestrator import InlineOrchestrator, run_check
from fennel_core.definition.query_log_topics import QueryLogTopics
from fennel_core.definition.reconcile_loop import ReconcileLoop
from fennel_core.definition.server import application
from fennel_core.definition.server_state import ServerState
from fennel_core.executors.client import Executors
from fennel_core.history.topic_slices import plan_slices
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.postgres import PostgresDirectory, PostgresIngestClock
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.offline.parts import ROUTERS, EndlessLoop, OfflineParts
from fennel_core.redrive.kafka import KafkaLetterLog
from fennel_core.redrive.routes import router as redrive_router
from fennel_core.redrive.service import Redrive
from fennel_core.settings.model import Orchestrator, Settings
from fennel_core.sinks.orders import SinkOrders
from fennel_core.sinks.postgres import PostgresSinkControls, PostgresSinkReplays
from fennel_core.sinks.rewinds import SinkRewinds, read_times
from fennel_core.sinks.routes import router as sinks_router
from fennel_core.sources.change_trial import newest_changes
from fennel_core.sources.file_trial import newest_file_rows
from fennel_core.sources.kafka import KafkaSourceLog, positions_of_feeds
from fennel_core.sources.kinesis_orders import newest_stream_rows, stream_state
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.rewind import SourceRewinds
from fennel_core.sources.routes import router as sources_router
from fennel_core.sources.service import SourceService
from fennel_core.sources.table_schedule import ScheduledTables
from fennel_core.sources.trial import SourceTrials
from fennel_core.telemetry import logs, traces
from fennel_core.telemetry.health import HealthEndpoint, ReadinessCheck
from fennel_core.vocab.ids import CommitId, WorkspaceId
from fennel_core.wire.connectors import SealedSecret

PROCESS = "definition"


def main() -> None:
    """Run the server with the settings of the environment."""
    settings = Settings()
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    traces.configure(PROCESS, settings.otlp_endpoint)
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Serve until the process receives a signal to stop."""
    dsn, limit_ms = settings.postgres_dsn.get_secret_value(), settings.executor_time_limit_ms
    async with (
        postgres.pool(dsn, name="fennel-definition") as pool,
        Executors(settings.executors_socket, time_limit_ms=limit_ms) as executors,
    ):
        steps = build_commit_steps(pool, settings)
        inline = InlineOrchestrator(steps.run)
        orchestrator = (
            inline
            if settings.orchestrator is Orchestrator.INLINE
            else AirflowOrchestrator(settings)
        )
        warming = InlineOrchestrator(steps.warm)
        changes = NotifiedChanges(dsn)
        commits = CommitService(
            steps,
            orchestrator,
            lambda: CommitId(uuid.uuid4().hex),
            time.monotonic,
            settings.commit_timeout_s,
            changes,
            None if orchestrator is inline else warming,
        )
        reconcile_loop = ReconcileLoop(
            steps.context, settings.reconcile_interval_s, run_check(orchestrator)
        )
        check_s = settings.retention_check_s
        needed_records = NeededRecordsCheck(KafkaRetention(settings, pool), check_s)
        dead_letters = DeadLetterCheck(PostgresDeadLetterCounts(pool), KafkaDeadLetters(settings))
        state = ServerState(
            settings,
            pool,
            commits,
            dataclasses.replace(commits, orchestrator=inline, warming=None),
            sealer_of(settings),
            reconcile_loop.wake,
            WorkspaceLimits(settings.workspace_requests_at_once, settings.workspace_requests_per_s),
            lambda: needed_records.alarms,
            reconcile_loop.failing,
        )
        offline = OfflineParts.of(settings, pool, orchestrator)
        tables = ScheduledTables.of(settings, pool, orchestrator)
        loops: tuple[EndlessLoop, ...] = (
            *(changes, reconcile_loop, needed_records, dead_letters),
            *(AuditExport(settings, pool), QueryLogTopics(pool, steps.context)),
            *(tables.loop, *offline.loops),
            *(FailedDrillCheck(pool, check_s), IntegrityAlarm(pool, check_s)),
        )
        tasks = [asyncio.create_task(loop.run()) for loop in loops]
        app = with_services(state, offline, executors)
        try:
            await serve_http(
                app,
                settings.host,
                settings.definition_port,
                protection=protection_of(settings, PROCESS),
                grace_s=settings.shutdown_grace_s,
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            async with AsyncExitStack() as closing:  # Closes all, whatever fails.
                for each in (warming, inline, orchestrator):
                    closing.push_async_callback(each.close)
                closing.push_async_callback(offline.close)
                closing.push_async_callback(tables.close)
                closing.callback(app.state.dataframe_reads.close)


def sealer_of(settings: Settings) -> secrets.Sealer | None:
    """Return the sealer of the key file; None without one."""
    key_file = settings.secrets_key_file
    return None if key_file is None else secrets.Sealer.from_file(key_file)


def with_services(state: ServerState, offline: OfflineParts, executors: Executors) -> FastAPI:
    """Return the application with the services of its routes."""
    settings, pool, sealer = state.settings, state.pool, state.sealer
    health = HealthEndpoint(PROCESS, checks(pool, settings))
    routers = (*ROUTERS, dataframes_router, sources_router, sinks_router, redrive_router)
    app = application(state, health, routers)
    app.state.offline_requests = offline.requests
    app.state.dataframe_reads = DataframeReads(pool, ReadStores.of(settings, pool))
    commit_within_s = COMMIT_WITHIN_TRANSACTIONS * settings.transaction_timeout_ms / 1000
    threads = ThreadPoolExecutor(8, thread_name_prefix="orders")
    directory, controls = PostgresDirectory(pool), PostgresSourceControls(pool)
    connectors = PostgresConnectorStore(pool)
    sources = SourceService(
        directory,
        controls,
        lambda feeds: positions_of_feeds(settings, feeds),
        connectors,
    )
    app.state.connector_orders = ConnectorOrders(
        connectors, state.ledger_context.ledger, sealer, settings
    )

    def open_secret(workspace: WorkspaceId, secret: SealedSecret) -> str:
        if sealer is None:
            raise SecretsNotConfigured
        return sealer.open(workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    async def erased(workspace: WorkspaceId) -> Erased:
        return (await erasures.read(pool, workspace)).get(workspace, {})

    app.state.redrive = Redrive(
        PostgresDeadLetterCounts(pool).topics,
        KafkaLetterLog(settings, threads),
        Catalogs(directory),
        PostgresIngestClock(pool),
        executors,
        SecretUses(pool, sealer).read,
        erased,
        PostgresSinkReplays(pool),
        commit_within_s,
    )
    app.state.source_service = sources
    sink_controls = PostgresSinkControls(pool)
    app.state.sink_orders = SinkOrders(
        sources.branches, controls, sink_controls, PostgresSinkReplays(pool), sources.stored
    )
    plan = partial(plan_slices, settings, pool)
    app.state.sink_rewinds = SinkRewinds(
        app.state.sink_orders, sink_controls, plan, read_times(settings)
    )
    app.state.source_trials = SourceTrials(
        sources,
        executors,
        SecretUses(pool, sealer).read,
        open_secret,
        partial(newest_file_rows, settings),
        partial(newest_stream_rows, settings),
        partial(newest_changes, settings),
    )
    app.state.source_rewinds = SourceRewinds(
        sources,
        controls,
        KafkaSourceLog(settings, threads),
        open_secret,
        stream_bounds,
        partial(stream_state, settings),
        commit_within_s,
    )
    return app


def checks(pool: Pool, settings: Settings) -> dict[str, ReadinessCheck]:
    """Return the readiness checks of the systems that this server requires."""
    topics = KafkaTopicAdmin(settings)

    async def database() -> str | None:
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
        return None

    async def kafka() -> str | None:
        try:
            await topics.names()
        except SystemUnavailable as error:
            return str(error)
        return None

    return {"database": database, "kafka": kafka}


if __name__ == "__main__":
    main()
