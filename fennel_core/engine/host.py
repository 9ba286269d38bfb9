"""The Spark host: an engine is one PySpark application whose long-lived tasks are the slots.

Theory. Spark places slots over a cluster, restarts a lost one and ships the code. Jobs come and go
through the registry, never by a relaunch, because a closure cannot change after its launch.
Micro-batches have 40 to 130 times the latency, measured in `benchmarks/`. Spark restarts a killed
slot within a quarter of a second, and the other slots are not affected: task failures are
unlimited, and there is no barrier stage, speculation or dynamic allocation. To stop, the host asks
the slots through the registry first and cancels the Spark job only after that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final

import structlog
from pyspark.sql import SparkSession

from fennel_core.connections import postgres
from fennel_core.connections.installation import require_ownership
from fennel_core.connections.spark import JVM_EXIT_ERRORS, session_builder
from fennel_core.engine.backfill.driver import backfill_lane
from fennel_core.engine.backfill.lane import BackfillLane
from fennel_core.engine.environment import ENVIRONMENT_HASH, environment_hash
from fennel_core.settings.hosts import host_rules
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import EngineId

log = structlog.get_logger(__name__)

TASK_FAILURES: Final = 1_000_000
RETRY_PAUSE_S: Final = 1.0
SLOTS_GROUP: Final = "slots"
JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM only starts and watches Python processes. With the optimising compiler, its start takes
twice the CPU, and that is what a recovery waits for on a busy machine.
"""


def engine_session(settings: Settings, engine: EngineId) -> SparkSession:
    """Start the engine's Spark application: local by default; see `session_builder`."""
    cores = settings.engine_slots + settings.engine_spare_slots
    return (
        session_builder(
            settings,
            app_name=f"fennel-{engine}",
            local_master=f"local[{cores},{TASK_FAILURES}]",
        )
        .config("spark.task.maxFailures", TASK_FAILURES)
        .config("spark.speculation", False)
        .config("spark.dynamicAllocation.enabled", False)
        .config("spark.python.worker.reuse", False)
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .getOrCreate()
    )


def task_environment() -> dict[str, str]:
    """Return the environment that Spark tasks need before they import the platform's code."""
    # The hash is computed once: listing the installed packages takes a second per process. Polars
    # gets one thread: a slot has one core, and results must not depend on how work is divided.
    return {ENVIRONMENT_HASH: environment_hash(), "POLARS_MAX_THREADS": "1"} | {
        name: value for name, value in os.environ.items() if name.startswith("FENNEL_")
    }


def run_slots(
    spark: SparkSession, settings: Settings, engine: EngineId, environment: Mapping[str, str]
) -> None:
    """Block until every slot has ended."""

    def slot(number: int, _: Iterator[Any]) -> Iterator[int]:
        # Runs in Spark's Python worker, which has nothing of the driver's process except this
        # closure. Set the environment before any module that reads it is imported.
        os.environ.update(environment)
        from fennel_core.engine.slot import run_slot

        try:
            asyncio.run(run_slot(Settings(), engine, number))
        except BaseException:
            # Spark retries a failed task at once: a slot that cannot start must not spin.
            time.sleep(RETRY_PAUSE_S)
            raise
        yield number

    context = spark.sparkContext
    context.setJobGroup(SLOTS_GROUP, f"slots of {engine}", interruptOnCancel=False)
    context.parallelize(range(settings.engine_slots), settings.engine_slots).mapPartitionsWithIndex(
        slot
    ).count()


async def run_engine(settings: Settings, engine: EngineId) -> None:
    """Run the driver: start Spark and the slots, serve health, stop in order on SIGTERM."""
    logs.configure("engine", settings.log_level, hidden=logs.secrets_of(settings))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="engine", size=2
    ) as pool:
        async with pool.connection() as connection:
            rows = await (
                await connection.execute("SELECT id FROM slot WHERE engine = %s", (engine,))
            ).fetchall()
        # Slots of a driver that was killed: their leases outlive them and must not count.
        earlier = [str(row[0]) for row in rows]

        async def slots_live() -> str | None:
            async with pool.connection() as connection:
                query = (
                    "SELECT count(*) FROM slot WHERE engine = %s AND lease_until > now() "
                    "AND id <> ALL(%s)"
                )
                row = await (await connection.execute(query, (engine, earlier))).fetchone()
            live = int(str(row[0])) if row else 0
            return (
                None
                if live >= settings.engine_slots
                else f"{live} of {settings.engine_slots} slots are up"
            )

        lane: BackfillLane | None = None

        async def backfills_served() -> str | None:
            return "Spark is starting" if lane is None else lane.problem()

        await require_ownership(settings, pool, settings.state_dir)
        checks = {"slots": slots_live, "backfills": backfills_served}
        server = await HealthEndpoint("engine", checks).serve(
            settings.host,
            settings.engine_port,
            host_rules(settings, engine, public=False),
        )
        spark = await asyncio.to_thread(engine_session, settings, engine)
        environment = await asyncio.to_thread(task_environment)
        slots = threading.Thread(
            target=_run_and_set,
            args=(spark, settings, engine, environment, loop, stop),
            name="slots",
            daemon=True,
        )
        slots.start()
        lane = backfill_lane(spark.sparkContext, settings, environment, pool)
        backfills = asyncio.create_task(lane.run())
        # The lane ends by a defect only; then the process must end, too, and be started again.
        await _first_of(stop.wait(), backfills)
        if backfills.done():
            log.error("the backfill lane ended", error=repr(backfills.exception()))
        backfills.cancel()
        log.info("engine is stopping", engine=engine)
        async with pool.connection() as connection:
            await connection.execute("UPDATE slot SET stopping = true WHERE engine = %s", (engine,))
            await connection.execute("SELECT pg_notify('registry', '')")
        await asyncio.to_thread(slots.join, settings.shutdown_grace_s / 2)
        try:
            spark.sparkContext.cancelJobGroup(SLOTS_GROUP)
            await asyncio.to_thread(spark.stop)
        except JVM_EXIT_ERRORS:
            log.info("Spark's JVM exited before the driver", engine=engine)
        await server.cleanup()


async def _first_of(event: Coroutine[Any, Any, object], task: asyncio.Task[None]) -> None:
    waiting = asyncio.ensure_future(event)
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _run_and_set(
    spark: SparkSession,
    settings: Settings,
    engine: EngineId,
    environment: Mapping[str, str],
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
) -> None:
    try:
        run_slots(spark, settings, engine, environment)
    except JVM_EXIT_ERRORS as ended:
        log.error(
            "the Spark job that holds the slots ended",
            engine=engine,
            reason=str(ended).splitlines()[0],
        )
    finally:
        loop.call_soon_threadsafe(stop.set)
