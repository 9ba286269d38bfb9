"""Hostile code on the running platform: `make hostile-platform` runs it, `make test` does not.

The real client commits hostile extractors and hostile functions of pipelines. Each query of such an
extractor fails with an error for its author, each such job is parked or its row becomes a dead
letter, and the queries of a second workspace go on (`benchmarks/neighbours.py` measures them).
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import psycopg
import pytest

from fennel_core.settings.model import Settings
from tests.hostile.definitions import FINE, commit, extractor_of, query
from tests.hostile.programs import ANSWERS, PROGRAMS, READS
from tests.support.polling import eventually
from tests.support.workspaces import Api

pytestmark = [
    pytest.mark.platform,
    pytest.mark.usefixtures("platform"),
    pytest.mark.timeout(900),
]
EXTRACTORS: Final = [each for each in PROGRAMS if not each.module]
"""The client sends no code outside of functions but their imports."""
SHARING: Final = (*ANSWERS, *READS)
"""Code of one version shares a process: what one of these leaves there answers the next of them."""
JOB: Final = """

@meta(owner="tests@example.com")
@dataset
class {name}:
    uid: int
    out: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Rows)
    def attack(cls, rows: Dataset):
        return rows.assign("out", int, lambda df: {body})
"""
JOBS: Final = {
    "Ends": ("__import__('os')._exit(3)", "exited with status 3"),
    "Loops": ("[None for _ in iter(int, 1)]", "longer than its limit"),
    "Grows": ("bytearray(1 << 40)", "out of memory"),
}
DEAD: Final = "__import__('socket').create_connection(('127.0.0.1', 22))"


@pytest.fixture
async def apis(platform: None) -> AsyncIterator[tuple[Api, Api]]:
    """The hostile workspace and its neighbour."""
    settings = Settings()
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("hostile", "neighbour")]
    limits = aiohttp.ClientTimeout(120)
    async with aiohttp.ClientSession(timeout=limits) as one, aiohttp.ClientSession() as other:
        yield Api(one, settings, names[0]), Api(other, settings, names[1])
        admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
        for name in names:
            url = f"{settings.query_url}/api/v1/workspaces/{name}"
            async with one.delete(url, headers=admin) as gone:
                assert gone.status in {200, 404}, await gone.text()  # not every test uses both


async def test_hostile_code_is_refused_and_its_neighbour_is_served(
    apis: tuple[Api, Api], tmp_path: Path
) -> None:
    hostile, neighbour = apis
    settings = Settings()
    names = {program.name: f"P{number}" for number, program in enumerate(EXTRACTORS)}
    text = "".join(extractor_of(each, names[each.name], settings) for each in EXTRACTORS)
    await asyncio.to_thread(commit, settings, tmp_path / "hostile", text, hostile)
    await asyncio.to_thread(commit, settings, tmp_path / "neighbour", FINE, neighbour)
    wrong = []
    for program in EXTRACTORS:
        status, answer = await query(hostile, names[program.name])
        refused = status != 200 and re.search(program.text, answer)
        if "LEAK" in answer or not (refused or program in SHARING):
            wrong.append((program.name, status, answer[-300:]))
        status, answer = await query(neighbour, "Fine")
        assert (status, json.loads(answer)) == (200, {"Fine.out": [2]}), program.name
    assert wrong == []
    assert len(EXTRACTORS) - len(SHARING) >= 40
    assert settings.executors_socket.exists()


async def test_hostile_functions_of_pipelines_park_their_jobs_or_give_dead_letters(
    apis: tuple[Api, Api], tmp_path: Path
) -> None:
    hostile, _ = apis
    settings = Settings()
    text = "".join(JOB.format(name=name, body=body) for name, (body, _) in JOBS.items())
    text += JOB.format(name="Connects", body=DEAD)
    await asyncio.to_thread(commit, settings, tmp_path / "hostile", text, hostile, "log")

    def errors() -> dict[str, str]:
        """Return the error of each parked job by its dataset."""
        with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
            rows = connection.execute(
                "SELECT a.title, p.error FROM job_partition p JOIN asset a ON a.id = p.job_id"
                " WHERE a.workspace = %s AND p.status = 'parked'",
                (hostile.workspace,),
            ).fetchall()
        return {title.partition(".")[0].partition(":")[0]: error or "" for title, error in rows}

    async def all_parked() -> bool:
        return JOBS.keys() <= (await asyncio.to_thread(errors)).keys()

    await eventually(all_parked, within_s=180, what=lambda: f"jobs are parked: {errors()}")
    found = errors()
    for name, (_, expected) in JOBS.items():
        assert expected in found[name]
    assert "Connects" not in found

    async def reasons() -> str | None:
        admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
        async with (
            aiohttp.ClientSession(headers=admin) as session,
            session.get(f"{settings.query_url}/api/v1/operations/dead_letters") as answer,
        ):
            rows = (await answer.json())["dead_letters"]
        mine = [row for row in rows if row["workspace"] == hostile.workspace]
        return mine[0]["newest_reason"] if mine else None

    assert "Operation not permitted" in str(await eventually(reasons, within_s=120))
