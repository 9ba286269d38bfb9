"""Slot processes of the running engine are killed with -9 or frozen.

All job partitions run again in other processes: on the remaining local state after a kill, beside
it while a frozen process holds it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import psutil
import psycopg
import pytest

from fennel_core.apps.local import processes
from fennel_core.settings.model import Settings
from tests.e2e.faults.strikes import leader
from tests.e2e.platform.shop import KEPT, NAMES
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(300)]
BACK_SECONDS = 120.0
PARTS = (
    "SELECT p.status, p.slot_id, p.error FROM job_partition p JOIN job j ON j.id = "
    "p.job_id WHERE j.workspace = %s"
)
BATCH = 100


def slot_processes(settings: Settings) -> list[int]:
    """Return the processes that Spark's worker daemon has forked."""
    pids = processes.session_members(leader(settings, "engine"))
    commands = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in pids}
    return [
        pid
        for pid in pids
        if "pyspark.daemon" in commands[pid]
        and "pyspark.daemon" in commands.get(psutil.Process(pid).ppid(), "")
    ]


def rows(settings: Settings, query: str, *values: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(settings.postgres_dsn.get_secret_value(), autocommit=True) as connection:
        return connection.execute(query.encode(), values).fetchall()


async def buy(api: Api, rounds: int) -> int:
    """Log purchases; return how many rows were accepted."""
    for _ in range(rounds):
        data = {"name": NAMES[:BATCH], "amount": [1] * BATCH, "at": ["2026-01-01T00:00:00"] * BATCH}
        status, response = await api.call(
            "POST", "/log", {"webhook": "kept", "endpoint": "purchases", "data": data}
        )
        assert status == 200, response
    return rounds * BATCH


async def counted(api: Api) -> int:
    await api.settled(within_s=BACK_SECONDS)
    found = 0
    for start in range(0, BATCH, 50):
        body = {
            "keys": [{"name": name} for name in NAMES[start : start + 50]],
            "fields": ["purchases"],
        }
        status, text = await api.call("POST", "/dataset/Spending/lookup", body)
        assert status == 200, text
        found += sum(json.loads(text)["data"]["purchases"])
    return found


async def test_all_slots_killed_at_once_are_back_with_every_job_partition_and_every_row(
    make: Any, settings: Settings
) -> None:
    api = await make()
    await api.commit(KEPT, **INLINE)
    logged = await buy(api, 10)
    assert await counted(api) == logged
    before = {slot for (slot,) in rows(settings, "SELECT id FROM slot")}
    killed = slot_processes(settings)
    assert len(killed) >= settings.engine_slots
    logged += await buy(api, 10)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    logged += await buy(api, 10)

    def partitions_run_in_new_slots() -> bool:
        partitions = rows(settings, PARTS, api.workspace)
        assert not [error for status, _, error in partitions if status == "parked"], partitions
        return all(status == "running" and slot not in before for status, slot, _ in partitions)

    await eventually(partitions_run_in_new_slots, within_s=BACK_SECONDS)
    assert await counted(api) == logged


async def test_partitions_of_a_frozen_slot_run_in_another_slot_of_the_machine_without_waiting(
    make: Any, settings: Settings
) -> None:
    api = await make()
    await api.commit(KEPT, **INLINE)
    logged = await buy(api, 10)
    assert await counted(api) == logged
    frozen = slot_processes(settings)[0]
    owners = {slot for _, slot, _ in rows(settings, PARTS, api.workspace)}
    (lost,) = [slot for slot in owners if f"-{frozen}-" in slot]
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    try:

        def partitions_run_elsewhere() -> bool:
            partitions = rows(settings, PARTS, api.workspace)
            assert not [error for status, _, error in partitions if status == "parked"], partitions
            return all(status == "running" and slot != lost for status, slot, _ in partitions)

        await eventually(partitions_run_elsewhere, within_s=BACK_SECONDS)
        print(f"job partitions were away for {time.monotonic() - began:.1f} s")
        logged += await buy(api, 10)
        assert await counted(api) == logged
    finally:
        os.kill(frozen, signal.SIGCONT)
    logged += await buy(api, 10)
    assert await counted(api) == logged
