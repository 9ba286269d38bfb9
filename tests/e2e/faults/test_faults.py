"""Every row of the ledgers' table (T1, create, T2, warm, destroy) fails on the running platform, in
the commit DAG itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from fennel_core.settings.model import Settings
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
from tests.e2e.faults.world import ANSWERS, INLINE, OTHER, ObservedResponses, World
from tests.support.airflow import Airflow

pytestmark = [pytest.mark.platform, pytest.mark.timeout(600)]
BACK_SECONDS = 120.0


@dataclass(frozen=True)
class Move:
    """A shop about to move from the version it stands at to the other, and what somebody sees who
    asks all the time.
    """

    world: World
    before: str
    after: str
    target: str
    responses: ObservedResponses

    def commit(self) -> asyncio.Task[tuple[int, str]]:
        """As a client does, through Airflow."""
        return asyncio.create_task(self.world.commit(self.after))

    async def undone(self) -> None:
        """The commit did not happen: the version before answers, as it did all the time, and
        nothing else is left.
        """
        await self.world.at_rest()
        assert self.world.newest()[1] in ("rejected", "rolled_back")
        assert self.world.target() == self.target
        assert await self.world.version() == self.before
        assert (self.responses.versions(), self.responses.refused) == ([ANSWERS[self.before]], [])

    async def is_committed(self) -> None:
        """The commit happened: reads have moved once, and nothing of the version before is left."""
        await self.world.at_rest()
        id_, state, _ = self.world.newest()
        assert (state, self.world.target()) == ("finished", id_)
        assert await self.world.version() == self.after
        assert self.responses.refused == []
        assert self.responses.versions() in (
            [ANSWERS[self.before]],
            [ANSWERS[self.before], ANSWERS[self.after]],
        )


@asynccontextmanager
async def move(world: World) -> AsyncIterator[Move]:
    before = await world.version()
    async with world.asked() as responses:
        yield Move(world, before, OTHER[before], world.target(), responses)


# --- a task is killed, its connection cut, its run cancelled --------------------------------------

EVERY_STEP = {
    "compile": COMPILE,
    "create_assets": CREATED,
    "switch": SWITCH,
    "serve": SERVE,
    "destroy_assets": DESTROYED,
}
"""The middle of each task; `serve`: where reads move, in destroy_assets."""


@pytest.mark.parametrize("where", EVERY_STEP.values(), ids=EVERY_STEP)
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


@pytest.mark.parametrize("where", [SWITCH, DESTROYED], ids=["T2", "destroy"])
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


@pytest.mark.parametrize("where", [COMPILE, CREATED], ids=["T1", "create"])
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


async def test_of_two_commits_from_one_base_the_slower_is_undone_and_says_why(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        async with gate(settings, world.workspace, BEFORE_CREATE) as stopped:
            slower = moving.commit()
            await stopped.reached()
            stopped.only_this()
            assert (await world.commit(moving.before, "?backfill=false", **INLINE))[0] == 200
        status, text = await slower
    assert (status, "another commit" in text) == (409, True), text
    await world.at_rest()
    assert world.target() == world.newest()[0], "the faster commit succeeded"
    assert await world.version() == moving.before
    assert (moving.responses.versions(), moving.responses.refused) == ([ANSWERS[moving.before]], [])


# --- unavailable services -------------------------------------------------------------------------


async def back(world: World, url: str) -> None:
    """Until the watch has started the part again and it answers."""
    deadline = time.monotonic() + BACK_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass  # it is not there yet
            await asyncio.sleep(0.2)
    raise AssertionError(f"{url} did not come back")


async def test_a_commit_is_refused_without_airflows_api_and_accepted_with_it(
    world: World, settings: Settings
) -> None:
    async with move(world) as moving:
        kill_part(settings, "airflow-api")
        status, text = await world.commit(moving.after)
        assert (status, "nothing changed" in text) == (503, True), text
    await moving.undone()
    await back(world, f"{settings.airflow_url}/api/v2/monitor/health")
    async with move(world) as moving:
        assert (await world.commit(moving.after))[0] == 200
    await moving.is_committed()


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
        await back(world, f"{settings.definition_url}/readyz")
        assert (await world.commit(moving.after))[0] == 200
        assert world.newest()[0] == id_, "it is the same commit"
    await moving.is_committed()
