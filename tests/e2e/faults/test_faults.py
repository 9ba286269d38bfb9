"""Every step of the ledgers (T1, create, T2, warm, destroy) fails on the running platform, in the
commit DAG itself.
"""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.settings.model import Settings
from tests.e2e.faults.moves import back, move
from tests.e2e.faults.strikes import (
    BEFORE_CREATE,
    COMPILE,
    CREATED,
    DESTROYED,
    SERVE,
    SWITCH,
    frozen,
    gate,
    kill_part,
)
from tests.e2e.faults.world import INLINE, World
from tests.support.airflow import Airflow

pytestmark = [pytest.mark.platform, pytest.mark.timeout(600)]


# --- a task is killed, its connection cut, its run cancelled --------------------------------------

EVERY_STEP = {
    "compile": COMPILE,
    "create_assets": CREATED,
    "switch": SWITCH,
    "warm": SERVE,
    "destroy_assets": DESTROYED,
}
"""The middle of each task."""


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, id=step, marks=[] if where == SWITCH else pytest.mark.long)
        for step, where in EVERY_STEP.items()
    ],
)
async def test_a_task_killed_midway_is_retried_and_the_commit_succeeds(
    world: World, settings: Settings, where: tuple[str, str]
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, where) as stopped:
            commit = moving.commit()
            await stopped.strike()
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()


@pytest.mark.parametrize(
    "where", [SWITCH, pytest.param(DESTROYED, marks=pytest.mark.long)], ids=["T2", "destroy"]
)
async def test_a_commit_succeeds_although_its_postgres_connection_is_cut(
    world: World, settings: Settings, where: tuple[str, str]
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, where) as stopped:
            commit = moving.commit()
            await stopped.cut()
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()


@pytest.mark.parametrize(
    "where", [pytest.param(COMPILE, marks=pytest.mark.long), CREATED], ids=["T1", "create"]
)
async def test_the_server_undoes_a_run_that_is_cancelled_before_the_switch(
    world: World, settings: Settings, airflow: Airflow, where: tuple[str, str]
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, where) as stopped:
            commit = moving.commit()
            await stopped.reached()
            await asyncio.to_thread(airflow.cancel, f"commit-{world.newest()[0]}-1")
            await stopped.kill_task()
        status, text = await commit
        assert (await asyncio.to_thread(airflow.run, "reconcile"))["state"] == "success"
    assert (status, "nothing changed" in text) == (500, True), text
    await moving.undone()


# --- Kafka fails a step, and the branch moves -----------------------------------------------------


async def test_a_topic_that_kafka_refuses_undoes_the_commit_with_its_reason(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, BEFORE_CREATE) as stopped:
            commit = moving.commit()
            await stopped.reached()
            taken = [
                world.pending()[0].replace(".", "_")
            ]  # Kafka refuses names that differ only in dots and underscores
            world.make_topics(taken)
        status, text = await commit
    world.remove_topics(taken)
    assert (status, "could not be created" in text, "collides" in text) == (500, True, True), text
    await moving.undone()


async def test_of_two_commits_of_a_branch_the_second_waits_and_its_conflict_is_named(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, BEFORE_CREATE) as stopped:
            first = moving.commit()
            await stopped.reached()
            stopped.only_this()
            second = asyncio.create_task(world.commit(moving.before, "?backfill=false", **INLINE))
            await asyncio.wait([second], timeout=3)  # as long as the first one is held
            assert not second.done()
        status, text = await first
        assert status == 200, text
        status, text = await second
        assert status == 409, text
    await world.at_rest()
    assert await world.version() == moving.after
    assert moving.responses.refused == []


# --- unavailable services -------------------------------------------------------------------------


@pytest.mark.long
async def test_a_commit_is_refused_without_airflows_api_and_accepted_with_it(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        kill_part(settings, "airflow-api")
        status, text = await world.commit(moving.after)
        assert (status, "nothing changed" in text) == (503, True), text
    await moving.undone()
    await back(f"{settings.airflow_url}/api/v2/monitor/health")
    async with move(world) as moving:
        assert (await world.commit(moving.after))[0] == 200
    await moving.is_committed()


@pytest.mark.long
async def test_a_commit_sent_while_the_scheduler_is_frozen_runs_when_it_resumes(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        with frozen(settings, "airflow-scheduler"):
            commit = moving.commit()
            await asyncio.wait([commit], timeout=3)
            assert world.newest()[1] == "received"
        status, text = await commit
        assert status == 200, text
    await moving.is_committed()


async def test_a_commit_continues_without_the_definition_server(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, CREATED) as stopped:
            commit = moving.commit()
            await stopped.reached()
            id_ = world.newest()[0]
            kill_part(settings, "definition")
            status, text = await commit
            assert status >= 500, text
        await back(f"{settings.definition_url}/readyz")
        assert (await world.commit(moving.after))[0] == 200
        assert world.newest()[0] == id_, "it is the same commit"
    await moving.is_committed()
