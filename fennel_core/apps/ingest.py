"""The ingest server, run as `python -m fennel_core.apps.ingest`."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager

import uvloop

from fennel_core.apps.http_protection import protection_of
from fennel_core.apps.serve import serve_http
from fennel_core.connections import erasures, postgres, secrets, tokens
from fennel_core.connections.audit_events import Action, audited
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import COMMIT_WITHIN_TRANSACTIONS
from fennel_core.connections.postgres import ListenStarted, Notification, Pool
from fennel_core.connections.roles import Access
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.executors.client import Executors
from fennel_core.ingest import source_metrics
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.committer import Committer
from fennel_core.ingest.erase import EraseService
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.log_service import LogService, ReadSecret
from fennel_core.ingest.postgres import PostgresDirectory, PostgresIngestClock
from fennel_core.ingest.server import IngestApplication
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs, traces
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import DatasetName, WorkspaceId

PROCESS = "ingest"
REOPEN_S = 1.0
PRODUCERS = 4
"""Concurrent transactions: enough to hide the broker's latency, few enough for group commit."""

log = logs.logger(__name__)


def main() -> None:
    settings = Settings()
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    traces.configure(PROCESS, settings.otlp_endpoint)
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Serve until a signal arrives, then finish the requests under way."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with (
        postgres.pool(dsn, name="fennel-ingest") as pool,
        Executors(
            settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
        ) as executors,
    ):
        clock, directory = PostgresIngestClock(pool), PostgresDirectory(pool)
        catalogs = Catalogs(directory)
        with ThreadPoolExecutor(PRODUCERS, thread_name_prefix="producer") as threads:
            server = await clock.server_number()
            # Installations may share a Kafka cluster, and server numbers are unique in one only.
            process = uuid.uuid4().hex
            producers = [
                KafkaTransactionalProducer(settings, f"ingest.{process}.{number}", threads)
                for number in range(PRODUCERS)
            ]
            committer = Committer(
                clock,
                producers,
                server,
                source_metrics.count_transaction,
                commit_within_s=COMMIT_WITHIN_TRANSACTIONS * settings.transaction_timeout_ms / 1000,
            )
            log_service = LogService(
                catalogs, committer, executors, _secrets(settings, pool), settings.log_rows
            )
            background = [
                asyncio.create_task(_follow(dsn, catalogs)),
                *(asyncio.create_task(_ensure_open(producer)) for producer in producers),
            ]
            try:
                await serve_http(
                    _application(
                        settings, pool, producers, log_service, EraseService(catalogs, directory)
                    ),
                    settings.host,
                    settings.ingest_port,
                    protection=protection_of(settings, PROCESS),
                    grace_s=settings.shutdown_grace_s,
                )
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await committer.close()


def _application(
    settings: Settings,
    pool: Pool,
    producers: list[KafkaTransactionalProducer],
    log_service: LogService,
    erase_service: EraseService,
) -> IngestApplication:
    async def access_of(authorization: str | None) -> Access:
        return await tokens.access_of(pool, settings, authorization)

    async def database() -> str | None:
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
        return None

    async def producers_open() -> str | None:
        return (
            None
            if any(producer.problem is None for producer in producers)
            else producers[0].problem
        )

    health = HealthEndpoint(PROCESS, {"database": database, "log": producers_open})

    def audited_erasure(access: Access, dataset: DatasetName) -> AbstractAsyncContextManager[None]:
        subject = f"dataset {dataset}"
        return audited(pool, access.actor, Action.ERASE, subject, access.workspace)

    return IngestApplication(
        log_service,
        erase_service,
        health,
        access_of,
        settings.body_limit_bytes,
        audited_erasure,
        WorkspaceLimits(settings.workspace_requests_at_once, settings.workspace_requests_per_s),
    )


def _secrets(settings: Settings, pool: Pool) -> ReadSecret:
    key_file = settings.secrets_key_file
    sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
    return SecretUses(pool, sealer).read


async def _ensure_open(producer: KafkaTransactionalProducer) -> None:
    """Open a producer as soon as Kafka can be reached."""
    while True:
        try:
            return await producer.open()
        except SystemUnavailable as lost:
            log.warning("producer could not be opened", reason=str(lost))
        await asyncio.sleep(REOPEN_S)


async def _follow(dsn: str, catalogs: Catalogs) -> None:
    """Invalidate the routing tables that notifications name."""
    async for wakeup in postgres.listen(
        dsn, ("catalog", erasures.CHANNEL), name="fennel-ingest-wakeups"
    ):
        match wakeup:
            case ListenStarted():
                catalogs.invalidate(None)
            case Notification(_, payload):
                catalogs.invalidate(WorkspaceId(payload.partition("/")[0]))


if __name__ == "__main__":
    main()
