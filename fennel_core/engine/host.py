"""The Spark host: an engine is one PySpark application whose long-lived tasks are the slots.

Theory. Spark places slots over a cluster, restarts a lost one and ships the code; the jobs
themselves come and go through the registry, never by relaunching (closures are frozen at launch).
Why not micro-batches: 40 to 130 times the latency, measured in `benchmarks/`. A killed slot is
retried by Spark in a quarter of a second and the other slots do not notice: task failures are
unlimited, there is no barrier stage, no speculation and no dynamic allocation. To stop, the host
asks through the registry and only then cancels the Spark job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from fennel_core.connections import postgres
from fennel_core.engine.backfill.driver import run_driver
from fennel_core.engine.environment import ENVIRONMENT_HASH, environment_hash
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import EngineId

JVM_GONE: Final = (Py4JError, ConnectionError, EOFError)
"""How py4j says that the JVM has gone; on shutdown it may go before us."""
log = structlog.get_logger(__name__)

TASK_FAILURES: Final = 1_000_000
DRIVER_MEMORY: Final = "512m"
RETRY_PAUSE_S: Final = 1.0
SLOTS_GROUP: Final = "slots"


def session(settings: Settings, engine: EngineId) -> SparkSession:
    """The engine's Spark application: local by default, any master through `spark-submit` or
    SPARK_MASTER.
    """
    cores = settings.engine_slots + settings.engine_spare_slots
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault(
        "SPARK_LOCAL_IP", settings.host
    )  # else Spark looks the machine's own name up and binds to what it finds
    return (
        SparkSession.builder.appName(f"fennel-{engine}")
        .master(os.environ.get("SPARK_MASTER", f"local[{cores},{TASK_FAILURES}]"))
        .config("spark.task.maxFailures", TASK_FAILURES)
        .config("spark.speculation", False)
        .config("spark.dynamicAllocation.enabled", False)
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.driver.bindAddress", settings.host)
        .config("spark.driver.host", settings.host)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.python.worker.reuse", False)
        .config("spark.sql.warehouse.dir", str((settings.data_dir / "spark-warehouse").resolve()))
        .getOrCreate()
    )


def task_environment() -> dict[str, str]:
    """What our Spark tasks must find in their environment before they import anything of ours."""
    # The hash is worked out once: walking the installed packages takes a second that every slot
    # would pay. One thread for Polars: a slot has one core, and results must not depend on how work
    # was divided.
    return {ENVIRONMENT_HASH: environment_hash(), "POLARS_MAX_THREADS": "1"} | {
        name: value for name, value in os.environ.items() if name.startswith("FENNEL_")
    }


def run_slots(
    spark: SparkSession, settings: Settings, engine: EngineId, environment: Mapping[str, str]
) -> None:
    """Block until every slot has ended."""

    def slot(number: int, _: Iterator[Any]) -> Iterator[int]:
        # Runs in Spark's Python worker: nothing of the driver's process is here but what this
        # closure carries.
        os.environ.update(environment)  # before anything is imported that reads it
        from fennel_core.engine.slot import run_slot

        try:
            asyncio.run(run_slot(Settings(), engine, number))
        except BaseException:
            time.sleep(
                RETRY_PAUSE_S
            )  # Spark retries a failed task at once: a slot that cannot start must not spin
            raise
        yield number

    context = spark.sparkContext
    context.setJobGroup(SLOTS_GROUP, f"slots of {engine}", interruptOnCancel=False)
    context.parallelize(range(settings.engine_slots), settings.engine_slots).mapPartitionsWithIndex(
        slot
    ).count()


async def run_engine(settings: Settings, engine: EngineId) -> None:
    """The driver: start Spark, run the slots, answer health, and stop everything in order on
    SIGTERM.
    """
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
        before = [
            str(row[0]) for row in rows
        ]  # of a driver that was killed: their leases outlive them, and are not ours

        async def slots_live() -> str | None:
            async with pool.connection() as connection:
                question = (
                    "SELECT count(*) FROM slot WHERE engine = %s AND lease_until > now() "
                    "AND id <> ALL(%s)"
                )
                row = await (await connection.execute(question, (engine, before))).fetchone()
            live = int(str(row[0])) if row else 0
            return (
                None
                if live >= settings.engine_slots
                else f"{live} of {settings.engine_slots} slots are up"
            )

        server = await HealthEndpoint("engine", {"slots": slots_live}).serve(
            settings.host, settings.engine_port
        )
        spark = await asyncio.to_thread(session, settings, engine)
        environment = await asyncio.to_thread(task_environment)
        slots = threading.Thread(
            target=_run_and_set,
            args=(spark, settings, engine, environment, loop, stop),
            name="slots",
            daemon=True,
        )
        slots.start()
        backfill = asyncio.create_task(run_driver(spark.sparkContext, settings, environment, pool))
        await stop.wait()
        backfill.cancel()
        log.info("engine is stopping", engine=engine)
        async with pool.connection() as connection:
            await connection.execute("UPDATE slot SET stopping = true WHERE engine = %s", (engine,))
            await connection.execute("SELECT pg_notify('registry', '')")
        await asyncio.to_thread(slots.join, settings.shutdown_grace_s / 2)
        try:
            spark.sparkContext.cancelJobGroup(SLOTS_GROUP)
            await asyncio.to_thread(spark.stop)
        except JVM_GONE:
            log.info("Spark's JVM ended before us", engine=engine)
        await server.cleanup()


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
    except JVM_GONE as ended:
        log.error(
            "the Spark job that holds the slots ended",
            engine=engine,
            reason=str(ended).splitlines()[0],
        )
    finally:
        loop.call_soon_threadsafe(stop.set)
