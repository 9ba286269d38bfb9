"""The `commit` DAG over Airflow's REST API, against a fake of Airflow 3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from fennel_core.definition.airflow import CONCURRENT_REQUESTS, AirflowOrchestrator
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

ID = CommitId("abc")


@dataclass
class FakeAirflow:
    """Issues tokens, refuses old ones, records runs; `failures`: statuses to return first."""

    tokens: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    full: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(1))
    """A request for a run ends when as many requests as the barrier needs have arrived."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/auth/token", self.token)
        app.router.add_post("/api/v2/dags/commit/dagRuns", self.trigger)
        app.router.add_get("/api/v2/dags/commit/dagRuns/{run}", self.run)
        return app

    async def token(self, request: web.Request) -> web.Response:
        assert await request.json() == {"username": "admin", "password": "hush"}
        self.tokens += 1
        return web.json_response({"access_token": f"t{self.tokens}"}, status=201)

    def known(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer t{self.tokens}"

    async def trigger(self, request: web.Request) -> web.Response:
        if not self.known(request):
            return web.json_response({"detail": "Invalid token"}, status=401)
        if self.failures:
            return web.json_response({"detail": "not now"}, status=self.failures.pop(0))
        body = await request.json()
        self.bodies.append(body)
        if body["dag_run_id"] in self.runs:
            return web.json_response({"detail": "exists"}, status=409)
        self.runs[body["dag_run_id"]] = "queued"
        return web.json_response(body)

    async def run(self, request: web.Request) -> web.Response:
        if not self.known(request):
            return web.json_response({}, status=401)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self.full.wait()
        self.in_flight -= 1
        run = request.match_info["run"]
        return (
            web.json_response({"state": self.runs[run]})
            if run in self.runs
            else web.json_response({}, status=404)
        )


@pytest.fixture
async def server() -> AsyncIterator[tuple[FakeAirflow, AirflowOrchestrator]]:
    fake = FakeAirflow()
    async with TestServer(fake.application()) as running:
        airflow = AirflowOrchestrator(
            Settings(
                airflow_url=str(running.make_url("/")),
                airflow_user="admin",
                airflow_password=SecretStr("hush"),
            )
        )
        yield fake, airflow
        await airflow.close()


Both = tuple[FakeAirflow, AirflowOrchestrator]


async def test_a_run_is_named_after_commit_and_attempt_and_carries_the_commits_id(
    server: Both,
) -> None:
    fake, airflow = server
    await airflow.start(ID, 2)
    assert fake.bodies == [
        {"dag_run_id": "commit-abc-2", "logical_date": None, "conf": {"commit_id": "abc"}}
    ]


async def test_triggering_a_run_that_exists_is_a_success(server: Both) -> None:
    fake, airflow = server
    await airflow.start(ID, 1)
    await airflow.start(ID, 1)
    assert list(fake.runs) == ["commit-abc-1"]


async def test_an_expired_token_is_renewed(server: Both) -> None:
    fake, airflow = server
    await airflow.start(ID, 1)
    fake.tokens += 1  # every token issued before is invalid now
    await airflow.start(ID, 2)
    assert len(fake.runs) == 2


async def test_a_server_error_is_retried(server: Both) -> None:
    fake, airflow = server
    fake.failures = [500, 503]
    await airflow.start(ID, 1)
    assert fake.runs == {"commit-abc-1": "queued"}


async def test_a_refusal_contains_airflows_own_reason(server: Both) -> None:
    fake, airflow = server
    fake.failures = [404]
    with pytest.raises(ApiError, match="404: not now") as refused:
        await airflow.start(ID, 1)
    assert (refused.value.status, refused.value.code) == (503, "orchestrator-unavailable")


async def test_a_run_is_alive_until_it_ended_or_airflow_does_not_know_it(server: Both) -> None:
    fake, airflow = server
    assert not await airflow.alive(ID, 1)
    await airflow.start(ID, 1)
    for state, alive in (
        ("queued", True),
        ("running", True),
        ("success", False),
        ("failed", False),
    ):
        fake.runs["commit-abc-1"] = state
        assert await airflow.alive(ID, 1) is alive


async def test_an_unreachable_airflow_is_unavailable_and_its_runs_count_as_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(_: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", at_once)
    airflow = AirflowOrchestrator(
        Settings(airflow_url="http://127.0.0.1:1", airflow_password=SecretStr("hush"))
    )
    with pytest.raises(ApiError, match="is unreachable"):
        await airflow.start(ID, 1)
    assert await airflow.alive(ID, 1)
    await airflow.close()


async def test_many_waiting_clients_do_not_send_more_requests_than_airflow_can_serve(
    server: tuple[FakeAirflow, AirflowOrchestrator],
) -> None:
    fake, airflow = server
    await airflow.start(ID, 1)
    fake.full = asyncio.Barrier(CONCURRENT_REQUESTS)
    answers = await asyncio.gather(*(airflow.alive(ID, 1) for _ in range(5 * CONCURRENT_REQUESTS)))
    assert all(answers)
    assert fake.most_in_flight == CONCURRENT_REQUESTS
