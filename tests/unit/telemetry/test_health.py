"""Healthy is that the loop turns; ready is that every check says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fennel_core.telemetry import health, logs
from fennel_core.telemetry.health import HealthEndpoint


async def _fine() -> str | None:
    return None


async def _missing() -> str | None:
    return "no catalog loaded yet"


async def _raises() -> str | None:
    raise ConnectionError("postgresql://u:pw123@h refused")


async def _hangs() -> str | None:
    await asyncio.sleep(60)
    return None


async def test_a_process_is_ready_when_every_check_says_so() -> None:
    answer = await HealthEndpoint("query", {"postgres": _fine}).answer("/readyz")
    assert (answer.status, json.loads(answer.body)["checks"]) == (200, {"postgres": "ok"})


async def test_every_failed_check_is_told_and_a_process_that_is_not_ready_is_still_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.05)
    one = HealthEndpoint("query", {"a": _fine, "b": _missing, "c": _raises, "d": _hangs})
    answer = await one.answer("/readyz")
    checks = json.loads(answer.body)["checks"]
    assert answer.status == 503
    assert (checks["a"], checks["b"]) == ("ok", "no catalog loaded yet")
    assert checks["c"] == f"ConnectionError: postgresql://u:{logs.STARS}@h refused"
    assert "did not answer" in checks["d"]
    assert (await one.answer("/healthz")).status == 200


async def _get(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


async def test_a_process_without_http_serves_the_three_paths() -> None:
    server = await HealthEndpoint("engine", {}).serve("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert (await _get(port, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
            b"HTTP/1.1 200 OK\r\n"
        )
        page = await _get(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"# TYPE fennel_request_counter counter" in page
        assert (await _get(port, b"GET /other HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await _get(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (
            await _get(port, b"GET /" + b"x" * (2 * health.REQUEST_BYTES) + b" HTTP/1.1\r\n\r\n")
            == b""
        )


def test_a_fastapi_application_gets_the_same_routes_outside_its_description() -> None:
    app = FastAPI()
    HealthEndpoint("definition", {"b": _missing}).mount(app)
    with TestClient(app) as client:
        assert client.get("/healthz").json() == {"status": "alive", "process": "definition"}
        assert client.get("/readyz").status_code == 503
        assert (
            client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        )
        assert client.get("/openapi.json").json()["paths"] == {}


async def test_raw_asgi_answers_too() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    one = HealthEndpoint("query", {})
    assert one.handles("/readyz")
    assert not one.handles("/api/v1/query")
    await one.asgi({"path": "/readyz"}, send)
    assert (sent[0]["status"], json.loads(sent[1]["body"])["status"]) == (200, "ready")
