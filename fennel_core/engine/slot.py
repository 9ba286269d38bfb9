"""A slot: one process, one event loop, one supervisor; what a long-lived Spark task runs.

Theory. Everything a slot needs is in the settings it is handed, so the same function runs under
Spark, or alone in a test. The slot ends when the registry says so (the host asked), when its host
process is gone, or when it is cancelled; it then hands its leases back, so that others go on at
once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.bank.registry import Slot
from fennel_core.connections import frames, postgres, s3, secrets
from fennel_core.engine.backfill.client import QueuedBackfillClient
from fennel_core.engine.backfill.queue import BackfillQueue
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.environment import environment_hash
from fennel_core.engine.kafka import KafkaBroker
from fennel_core.engine.runner import RunnerLimits
from fennel_core.engine.runner_factory import RocksStores, SingleThreadPool, SlotRunnerFactory
from fennel_core.engine.service import SlotService
from fennel_core.engine.slot_lock import SlotLock
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.settings.model import Settings
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.s3 import S3Objects
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.telemetry import logs
from fennel_core.vocab.ids import EngineId, Millis, SlotId, WorkspaceId

PARENT_CHECK_S: Final = 0.5
SWITCH_S: Final = 0.0005
"""How long the worker thread may keep the interpreter from the event loop, which serves lookups;
Python's default is ten times that.
"""
log = structlog.get_logger(__name__)


class SystemClock:
    """The clock of production."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def run_slot(settings: Settings, engine: EngineId, number: int) -> None:
    """Run slot `number` of `engine` until it is told to stop."""
    logs.configure(f"slot-{number}", settings.log_level, hidden=logs.secrets_of(settings))
    sys.setswitchinterval(SWITCH_S)
    address = settings.sockets_dir / f"{engine}-{number}.sock"
    address.parent.mkdir(parents=True, exist_ok=True)
    address.unlink(missing_ok=True)
    with SlotLock(address.with_suffix(".lock"), f"{engine}-{number}") as slot_lock:
        # A name that no earlier life of this slot had: leases of a dead process are given back or
        # lapse, they are never taken for ours.
        name = SlotId(f"{slot_lock.id_prefix}{os.getpid()}-{time.time_ns() // 1_000_000:x}")
        await _run(settings, Slot(name, engine, str(address.resolve())), number, slot_lock)


async def _run(settings: Settings, slot: Slot, number: int, slot_lock: SlotLock) -> None:
    dsn = settings.postgres_dsn.get_secret_value()
    async with (
        postgres.pool(dsn, name=f"slot-{number}", size=4) as pool,
        Executors(settings.executors_socket) as executors,
    ):
        registry = PostgresRegistry(pool)
        if slot_lock.predecessor_is_dead:
            # Registered first: else a neighbour, woken by the burial, claims what is ours, and a
            # restore that it begins is thrown away.
            await registry.heartbeat(slot, Millis(settings.lease_ms))
            await registry.expire_predecessors(slot_lock.id_prefix, slot.id)
        broker = KafkaBroker(settings)
        sealer = (
            secrets.Sealer.from_file(settings.secrets_key_file)
            if settings.secrets_key_file
            else None
        )

        def callbacks(workspace: WorkspaceId) -> Callbacks:
            return Callbacks(
                secret=partial(secrets.get, pool, sealer, workspace) if sealer else None
            )

        stores = RocksStores(settings.state_dir, settings.state_cache_bytes)
        limits = RunnerLimits(settings.iteration_bytes, environment_hash())
        threads = SingleThreadPool()
        objects, clock = S3Objects(s3.client(settings), settings.s3_bucket), SystemClock()
        kept = SnapshotContext(objects, PostgresPointers(pool))
        snapshots = Snapshots(kept, settings.state_dir, threads, lambda: uuid.uuid4().hex)
        backfill_client = QueuedBackfillClient(
            PostgresHistoryFiles(pool),
            BackfillQueue(pool),
            objects,
            settings.backfill_from_rows,
            clock.sleep,
        )
        runner_factory = SlotRunnerFactory(
            registry,
            broker,
            stores,
            snapshots,
            executors,
            callbacks,
            limits,
            threads,
            backfill_client,
        )
        supervisor = Supervisor(
            slot,
            registry,
            runner_factory,
            clock,
            Millis(settings.lease_ms),
            settings.supervisor_poll_ms,
        )
        server = await frames.serve(
            slot.address, SlotService(supervisor, snapshots, DrillRunner(settings, kept, threads))
        )
        helpers = [
            asyncio.create_task(_wake(dsn, supervisor)),
            asyncio.create_task(_stop_with_host(supervisor)),
        ]
        log.info("slot is up", slot=slot.id, address=slot.address)
        try:
            await supervisor.run()
        finally:
            for helper in helpers:
                helper.cancel()
            server.close()
            await broker.close()
            await asyncio.to_thread(Path(slot.address).unlink, missing_ok=True)
            log.info("slot is down", slot=slot.id)


async def _wake(dsn: str, supervisor: Supervisor) -> None:
    async for _ in postgres.listen(dsn, ["registry"], name="slot-wake"):
        supervisor.wake.set()


async def _stop_with_host(supervisor: Supervisor) -> None:
    """Spark's worker daemon is our parent: when it is gone, so is the engine, and an orphan must
    not go on.
    """
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110  # the death of a parent can only be polled
        await asyncio.sleep(PARENT_CHECK_S)
    supervisor.stop.set()
