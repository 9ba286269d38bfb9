"""A slot: one process with one event loop and one supervisor, run by a long-lived Spark task.

Theory. A slot is built from its settings alone, so the same function runs under Spark and alone in
a test. It ends when the registry asks it to stop (the host requests that), when its host process
has died, or when it is cancelled. It then releases its leases, so that other slots take over at
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

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.bank.registry import Slot
from fennel_core.connections import erasures, frames, postgres, secrets
from fennel_core.connections.erasures import Erased
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.garbage import DeletionLimit
from fennel_core.connections.installation import (
    installation_objects,
    installation_of,
    own_state_folder,
)
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.engine.backfill.client import QueuedBackfillClient
from fennel_core.engine.backfill.queue import BackfillQueue
from fennel_core.engine.drill.subprocess_drill import DrillRunner
from fennel_core.engine.environment import environment_hash
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.local_state import LocalStateGarbage
from fennel_core.engine.runner import RunnerLimits
from fennel_core.engine.runner_factory import (
    CallbacksFor,
    RocksStores,
    SingleThreadPool,
    SlotRunnerFactory,
)
from fennel_core.engine.service import SlotService
from fennel_core.engine.slot_lock import SlotLock
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.state_folders import StateFolders
from fennel_core.engine.supervisor import Supervisor
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.settings.model import Settings
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.telemetry import logs
from fennel_core.vocab.ids import EngineId, Millis, SlotId, SlotName, WorkspaceId

PARENT_CHECK_S: Final = 0.5
SWITCH_S: Final = 0.0005
"""Longest time that the worker thread keeps the interpreter from the event loop, which serves
lookups. Python's default is ten times as long.
"""
log = structlog.get_logger(__name__)


class SystemClock:
    """The clock of production."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def run_slot(settings: Settings, engine: EngineId, number: int) -> None:
    """Run slot `number` of `engine` until it is asked to stop."""
    logs.configure(f"slot-{number}", settings.log_level, hidden=logs.secrets_of(settings))
    sys.setswitchinterval(SWITCH_S)
    address = settings.sockets_dir / f"{engine}-{number}.sock"
    address.parent.mkdir(parents=True, exist_ok=True)
    address.unlink(missing_ok=True)
    with SlotLock(address.with_suffix(".lock"), f"{engine}-{number}") as slot_lock:
        # No earlier process of this slot had this id: the leases of a dead process are released or
        # lapse, but are never mistaken for ours.
        life = SlotId(f"{slot_lock.id_prefix}{os.getpid()}-{time.time_ns() // 1_000_000:x}")
        slot = Slot(life, SlotName(f"{engine}-{number}"), engine, str(address.resolve()))
        await _run(settings, slot, number, slot_lock)


async def _run(settings: Settings, slot: Slot, number: int, slot_lock: SlotLock) -> None:
    dsn = settings.postgres_dsn.get_secret_value()
    async with (
        postgres.pool(dsn, name=f"slot-{number}", size=4) as pool,
        Executors(
            settings.executors_socket, time_limit_ms=settings.executor_time_limit_ms
        ) as executors,
    ):
        registry = PostgresRegistry(pool)
        if slot_lock.predecessor_is_dead:
            # Register first: releasing the leases wakes the other slots, and while this slot is
            # unknown they would claim its partitions and begin restores in vain.
            await registry.heartbeat(slot, Millis(settings.lease_ms))
            await registry.expire_predecessors(slot_lock.id_prefix, slot.id)
        broker, workers, clock = KafkaBroker(settings), SingleThreadPool(), SystemClock()
        installation = await installation_of(pool)
        objects = installation_objects(settings, pool)
        state_dir = own_state_folder(settings.state_dir, installation)
        context = SnapshotContext(objects, PostgresPointers(pool))
        folders = StateFolders(state_dir)
        snapshots = Snapshots(context, folders, workers, lambda: uuid.uuid4().hex)
        runner_factory = SlotRunnerFactory(
            registry,
            broker,
            RocksStores(settings.state_cache_bytes),
            folders,
            snapshots,
            executors,
            _callbacks(settings, pool),
            partial(_erased, pool),
            RunnerLimits(settings.iteration_bytes, environment_hash(), settings.iteration_rows),
            workers,
            QueuedBackfillClient(
                PostgresHistoryFiles(pool),
                BackfillQueue(pool),
                objects,
                settings.backfill_from_rows,
                clock.sleep,
            ),
        )
        supervisor = Supervisor(
            slot,
            registry,
            runner_factory,
            clock,
            Millis(settings.lease_ms),
            settings.supervisor_poll_ms,
            LocalStateGarbage(
                Millis(settings.state_grace_ms),
                DeletionLimit(settings.garbage_items, settings.garbage_percent),
            ),
        )
        drills = DrillRunner(settings, state_dir, context, workers)
        server = await frames.serve(slot.address, SlotService(supervisor, snapshots, drills))
        bound = await asyncio.to_thread(_inode, Path(slot.address))
        helpers = [
            asyncio.create_task(_wake_on_notify(dsn, supervisor)),
            asyncio.create_task(_stop_with_host(supervisor)),
        ]
        log.info("slot is up", slot=slot.id, address=slot.address)
        try:
            await supervisor.run()
        finally:
            for helper in helpers:
                helper.cancel()
            server.close()
            await asyncio.to_thread(_unlink_own, Path(slot.address), bound)
            await broker.close()
            log.info("slot is down", slot=slot.id)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _unlink_own(path: Path, bound: int | None) -> None:
    """Remove our socket's path, unless a later process of this slot has bound it since.

    A slot that hangs at its end (in a commit, for seconds) is outlived by its own successor.
    """
    if bound is not None and _inode(path) == bound:
        path.unlink(missing_ok=True)


def _callbacks(settings: Settings, pool: postgres.Pool) -> CallbacksFor:
    """Return the calls that user code of a workspace may make: reading its secrets."""
    key_file = settings.secrets_key_file
    uses = SecretUses(pool, secrets.Sealer.from_file(key_file) if key_file else None)

    def callbacks(workspace: WorkspaceId, version: str) -> Callbacks:
        return Callbacks(
            secret=partial(uses.read, workspace, version), workspace=workspace, version=version
        )

    return callbacks


async def _erased(pool: postgres.Pool, workspace: WorkspaceId) -> Erased:
    """Return the erased keys of a workspace; raises SystemUnavailable."""
    try:
        return (await erasures.read(pool, workspace)).get(workspace, {})
    except (psycopg.Error, PoolTimeout) as failed:
        raise SystemUnavailable(f"Postgres: {failed}") from failed


async def _wake_on_notify(dsn: str, supervisor: Supervisor) -> None:
    async for _ in postgres.listen(dsn, ["registry"], name="slot-wake"):
        supervisor.wake.set()


async def _stop_with_host(supervisor: Supervisor) -> None:
    """Stop when Spark's worker daemon, our parent, has died: the engine has ended with it."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110  # the death of a parent can only be polled
        await asyncio.sleep(PARENT_CHECK_S)
    supervisor.stop.set()
