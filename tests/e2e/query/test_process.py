"""The query server as a process over real Postgres and Kafka, a commit of the real client, and
slots without an engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
import pytest_asyncio

from tests.support.fake_slots import FakeSlot
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.served_profiles import PARTITIONS, W, fill

pytestmark = pytest.mark.platform
STARTS_WITHIN_S = 60
HEADERS = {"Authorization": "Bearer dev-process"}


@dataclass
class Running:
    url: str
    process: asyncio.subprocess.Process
    client: aiohttp.ClientSession
    rows: psycopg.Connection[Any]
    slot: FakeSlot

    async def query(self, outputs: list[str], data: dict[str, list[Any]]) -> tuple[int, Any]:
        body = {"inputs": list(data), "outputs": outputs, "data": data}
        async with self.client.post(
            f"{self.url}/api/v1/query", json=body, headers=HEADERS
        ) as answer:
            return answer.status, await (answer.json() if answer.status == 200 else answer.text())


@pytest_asyncio.fixture
async def running(infra: None, database: str, tmp_path: Path) -> AsyncIterator[Running]:
    port = free_port()
    ours = {
        "FENNEL_POSTGRES_DSN": database,
        "FENNEL_QUERY_PORT": str(port),
        "FENNEL_DEFINITION_PORT": str(free_port()),
        "FENNEL_DEV_TOKENS": "true",
        "FENNEL_DATA_DIR": str(tmp_path),
    }
    async with FakeSlot(tmp_path / "slot.sock") as slot, aiohttp.ClientSession() as client:
        with psycopg.connect(database, autocommit=True) as rows:
            fill(rows, slot)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fennel_core.apps.query", env={**os.environ, **ours}
            )
            made = Running(f"http://127.0.0.1:{port}", process, client, rows, slot)
            try:
                await _ready(made)
                yield made
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def _ready(running: Running) -> None:
    async def ready() -> bool:
        assert running.process.returncode is None, "the query server ended before it was ready"
        try:
            async with running.client.get(f"{running.url}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False  # it does not listen yet

    await eventually(ready, within_s=STARTS_WITHIN_S, interval_s=0.1)


async def test_the_server_follows_a_branch_to_its_commit_and_stops_on_a_signal(
    running: Running,
) -> None:
    wanted, data = (
        ["UserFeatures.name", "UserFeatures.double_age", "UserFeatures.address"],
        {"UserFeatures.user": ["ada", "bob"]},
    )
    status, text = await running.query(wanted, data)
    assert (status, text) == (400, "No extractor found for feature `UserFeatures.name`."), (
        "nothing is committed yet"
    )

    running.rows.execute("UPDATE branch SET serving = 'c1' WHERE workspace = %s", (W,))
    status, answer = await running.query(wanted, data)
    assert (status, answer) == (
        200,
        {
            "UserFeatures.name": ["Ada", None],
            "UserFeatures.double_age": [108, -3],
            "UserFeatures.address": [
                {"city": "London", "zip_code": None},
                {"city": "nowhere", "zip_code": None},
            ],
        },
    )

    async with running.client.post(f"{running.url}/api/v1/barrier", headers=HEADERS) as barrier:
        assert (barrier.status, await barrier.json()) == (200, {})
    async with running.client.get(f"{running.url}/status", headers=HEADERS) as report:
        shown = await report.json()
        assert {(p["part"], p["slot"], p["status"]) for p in shown["job_partitions"]} == {
            (p, "s", "running") for p in range(PARTITIONS)
        }
        assert shown["views"] == [{"workspace": W, "branch": "main", "commit": "c1"}]
    async with running.client.post(
        f"{running.url}/api/v1/commit", data=b"x", headers=HEADERS
    ) as refused:
        assert refused.status == 503
        assert "definition server" in await refused.text()

    running.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(running.process.wait(), 20) == 0
