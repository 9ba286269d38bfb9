"""A shop on the running platform, at rest in one of its two versions before each test, and deleted
at the end.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from fennel_core.settings.model import Settings
from tests.e2e.faults.world import World
from tests.support.airflow import Airflow, call, log_in
from tests.support.executors import commit_of
from tests.support.workspaces import make

__all__ = ["airflow", "bodies", "make", "settings", "workspaces", "world"]
VERSIONS = ("one", "two")


@pytest.fixture
def settings(platform: None) -> Settings:
    return Settings()


@pytest.fixture
def airflow(settings: Settings) -> Airflow:
    return log_in(settings)


@pytest.fixture(scope="module")
def bodies(platform: None) -> dict[str, bytes]:
    async def read(version: str) -> bytes:
        return await commit_of(f"tests.e2e.faults.shop_{version}", message=version)

    return {version: asyncio.run(read(version)) for version in VERSIONS}


@pytest.fixture(scope="module")
def workspaces(platform: None) -> Iterator[list[str]]:
    """Names of workspaces, the last one in use. A test that leaves its shop broken makes the next
    test start a new shop.
    """
    names: list[str] = []
    yield names
    settings = Settings()
    for name in names:
        url = f"{settings.query_url}/api/v1/workspaces/{name}"
        assert call("DELETE", url, None, settings.admin_token.get_secret_value())[0] in (200, 404)


@pytest.fixture
async def world(
    settings: Settings, bodies: dict[str, bytes], workspaces: list[str]
) -> AsyncIterator[World]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=150)) as session:
        fresh = not workspaces or bool(World(settings, session, workspaces[-1], bodies).defects())
        if fresh:
            workspaces.append(f"faults-{uuid.uuid4().hex[:8]}")
        world = World(settings, session, workspaces[-1], bodies)
        if fresh:
            await world.begin()
        await world.at_rest()
        yield world
