"""The bodies of the tasks of the DAG `scheduled_sources`; see `task_bodies`."""

from __future__ import annotations

import asyncio
import logging

from fennel_core.connections import postgres
from fennel_core.connections.spark import mysql_jars
from fennel_core.settings.model import Settings
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.table_run_postgres import PostgresTableRuns
from fennel_core.sources.table_schedule import claim, ended_sources, scheduled_feeds
from fennel_core.sources.target_catalogs import TargetCatalogs

log = logging.getLogger("fennel.airflow")


def claim_due(run: str) -> list[list[str]]:
    """Claim the sources that are due now for the run of this name; return them with it."""
    return asyncio.run(_claimed(run))


async def _claimed(run: str) -> list[list[str]]:
    settings = Settings()
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="fennel-airflow", size=2) as pool:
        feeds = scheduled_feeds(await TargetCatalogs(pool).read())
        runs, controls = PostgresTableRuns(pool), PostgresSourceControls(pool)
        idle = await ended_sources(runs, feeds, controls) | set(await controls.pauses())
        topics = await claim(runs, feeds, idle, run, settings.source_runs_at_once)
    for topic in topics:
        log.info("source %s is due", feeds[topic].feed.title)
    return [[topic, run] for topic in topics]


def driver_jars() -> str:
    """Return the jars that a read of a table needs, as `spark-submit` takes them."""
    return ",".join(mysql_jars(Settings()))
