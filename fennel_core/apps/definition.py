"""The definition server, run as `python -m fennel_core.apps.definition`."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid

import uvicorn
import uvloop

from fennel_core.connections import postgres, secrets
from fennel_core.connections.postgres import Pool
from fennel_core.definition.airflow import Airflow
from fennel_core.definition.drills import DrillWatch
from fennel_core.definition.flow import CommitFlow
from fennel_core.definition.orchestrate import Inline
from fennel_core.definition.recovery import Recovery
from fennel_core.definition.retention import Retention, Watch
from fennel_core.definition.server import Office, application
from fennel_core.definition.steps import steps_over
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import Unreachable
from fennel_core.settings.model import Orchestrator, Settings
from fennel_core.telemetry import logs, traces
from fennel_core.telemetry.health import Check, Health
from fennel_core.vocab.ids import CommitId

PROCESS = "definition"


def main() -> None:
    settings = Settings()
    logs.configure(PROCESS, settings.log_level)
    traces.configure(PROCESS, settings.otlp_endpoint)
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Serve until a signal says stop."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-definition"
    ) as pool:
        steps = steps_over(pool, settings)
        inline = Inline(steps.run)
        orchestrator = inline if settings.orchestrator is Orchestrator.INLINE else Airflow(settings)
        commits = CommitFlow(
            steps,
            orchestrator,
            lambda: CommitId(uuid.uuid4().hex),
            time.monotonic,
            settings.commit_timeout_s,
        )
        key_file = settings.secrets_key_file
        sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
        recovery = Recovery(steps.tools, settings.reconcile_interval_s)
        watch = Watch(Retention(settings, pool), settings.retention_check_s)
        inlined = dataclasses.replace(commits, orchestrator=inline)
        office = Office(
            settings, pool, commits, inlined, sealer, recovery.wake, lambda: watch.alarms
        )
        drills = DrillWatch(pool, settings.retention_check_s)
        tasks = [asyncio.create_task(each.run()) for each in (recovery, watch, drills)]
        config = uvicorn.Config(
            application(office, Health(PROCESS, checks(pool, settings))),
            host=settings.host,
            port=settings.definition_port,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=int(settings.shutdown_grace_s),
        )
        try:
            await uvicorn.Server(config).serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await orchestrator.close()
            await inline.close()


def checks(pool: Pool, settings: Settings) -> dict[str, Check]:
    """What this server cannot work without."""
    topics = KafkaTopicAdmin(settings)

    async def database() -> str | None:
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
        return None

    async def kafka() -> str | None:
        try:
            await topics.names()
        except Unreachable as error:
            return str(error)
        return None

    return {"database": database, "kafka": kafka}


if __name__ == "__main__":
    main()
