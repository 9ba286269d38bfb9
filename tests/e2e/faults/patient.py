"""Faults that Airflow takes half a minute to notice: `make faults` runs them, the default suite
does not.
"""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import psycopg
import pytest

from fennel_core.definition.commit_steps import reconcile_all
from fennel_core.settings.model import Settings
from tests.e2e.faults.moves import back, move
from tests.e2e.faults.strikes import BEFORE_CREATE, CREATED, SERVE, SWITCH, frozen, gate, kill_part
from tests.e2e.faults.world import World
from tests.support.airflow import Airflow
from tests.support.polling import eventually

pytestmark = [pytest.mark.platform, pytest.mark.timeout(900)]
TOO_LONG_FOR_KAFKA_S = 25
"""Longer than the admin client waits for a response."""


async def test_a_task_killed_with_its_worker_is_retried_and_the_commit_succeeds(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, CREATED) as stopped:
            commit = moving.commit()
            task = psutil.Process(stopped.client(await stopped.reached()))
            worker = task.parent()
            assert worker is not None
            assert "LocalExecutor" in " ".join(worker.cmdline())
            os.kill(worker.pid, signal.SIGKILL)
            os.kill(task.pid, signal.SIGKILL)
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()


@pytest.mark.parametrize("part", ["airflow-scheduler", "airflow-api"])
async def test_an_airflow_service_killed_during_a_task_only_delays_the_commit(
    world: World, settings: Settings, part: str
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, CREATED) as stopped:
            commit = moving.commit()
            await stopped.reached()
            kill_part(settings, part)
        status, text = await commit
        assert status == 200, text
        await back(f"{settings.airflow_url}/api/v2/monitor/health")
    await moving.is_committed()


async def test_a_queued_commit_survives_the_server_that_waited_for_it(
    world: World, settings: Settings, airflow: Airflow
) -> None:
    async with move(world) as moving:
        with frozen(settings, "airflow-scheduler"):
            commit = moving.commit()
            await asyncio.wait([commit], timeout=3)
            id_, state, _ = world.newest()
            assert state == "received"
            kill_part(settings, "definition")
            assert (await commit)[0] == 503
            await back(f"{settings.definition_url}/readyz")
            world.expire_leases()
            await asyncio.to_thread(reconcile_all)
            assert world.newest() == (id_, "received", None), "Airflow still has its run"
        assert (await asyncio.to_thread(airflow.end_of, f"commit-{id_}-1"))["state"] == "success"
    await moving.is_committed()


async def test_a_commit_waits_for_a_broker_killed_before_topic_creation(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, BEFORE_CREATE) as stopped:
            commit = moving.commit()
            await stopped.reached()
            kill_part(settings, "kafka")
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()


async def test_deletion_of_topics_is_retried_while_the_broker_is_frozen(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving, gate(settings, world.workspace, SERVE) as stopped:
        commit = moving.commit()
        await stopped.reached()
        with frozen(settings, "kafka"):
            stopped.open()
            assert (await commit)[0] == 200
            await asyncio.sleep(TOO_LONG_FOR_KAFKA_S)  # the fault lasts so long
            assert world.newest()[1] == "serving", (
                "the commit succeeded, its superseded assets wait"
            )
    await moving.is_committed()


async def test_a_commit_succeeds_although_postgres_is_killed_during_the_switch(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, SWITCH) as stopped:
            commit = moving.commit()
            await stopped.reached()
            backend = stopped.keeper.info.backend_pid
            kill_part(settings, "postgres")
            # It ends by itself, a moment after its parent.
            await eventually(lambda: not psutil.pid_exists(backend))
            with pytest.raises(psycopg.OperationalError):
                stopped.open()
            await stopped.keep_again()
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()
