"""Health is a running event loop; readiness is that every check passes."""

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
    await asyncio.sleep(60)  # longer than any limit
    return None


async def test_a_process_is_ready_when_every_check_passes() -> None:
    response = await HealthEndpoint("query", {"postgres": _fine}).respond("/readyz")
    assert (response.status, json.loads(response.body)["checks"]) == (200, {"postgres": "ok"})


async def test_every_failed_check_is_reported_and_the_process_stays_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.05)
    one = HealthEndpoint("query", {"a": _fine, "b": _missing, "c": _raises, "d": _hangs})
    response = await one.respond("/readyz")
    checks = json.loads(response.body)["checks"]
    assert response.status == 503
    assert (checks["a"], checks["b"]) == ("ok", "no catalog loaded yet")
    assert checks["c"] == f"ConnectionError: postgresql://u:{logs.STARS}@h refused"
    assert "did not respond" in checks["d"]
    assert (await one.respond("/healthz")).status == 200


async def _exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return response


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /readyz HTTP/1.1", "200 OK"),
        ("GET /healthz HTTP/1.0", "200 OK"),
        ("GET /metrics?x=1 HTTP/1.1", "200 OK"),
        ("GET /other HTTP/1.1", "404 Not Found"),
        ("POST /healthz HTTP/1.1", "405 Method Not Allowed"),
        ("nonsense", "400 Bad Request"),
        (f"GET /{'x' * 32_768} HTTP/1.1", "400 Bad Request"),
    ],
)
async def test_a_process_without_http_serves_the_three_paths(
    request_line: str, status: str
) -> None:
    server = await HealthEndpoint("engine", {}).serve("127.0.0.1", 0)
    try:
        request = f"{request_line}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        response = await _exchange(server.addresses[0][1], request.encode())
    finally:
        await server.cleanup()
    assert status in response.split(b"\r\n")[0].decode()


async def test_a_head_request_gets_headers_only() -> None:
    server = await HealthEndpoint("engine", {}).serve("127.0.0.1", 0)
    try:
        request = b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        head, body = (await _exchange(server.addresses[0][1], request)).split(b"\r\n\r\n")
    finally:
        await server.cleanup()
    assert b"text/plain; version=0.0.4" in head
    assert body == b""


def test_fastapi_gets_the_routes_outside_its_description() -> None:
    app = FastAPI()
    HealthEndpoint("definition", {"b": _missing}).mount(app)
    with TestClient(app) as client:
        assert client.get("/healthz").json() == {"status": "alive", "process": "definition"}
        assert client.get("/readyz").status_code == 503
        assert (
            client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        )
        assert client.get("/openapi.json").json()["paths"] == {}


async def test_a_report_has_a_path_of_its_own() -> None:
    one = HealthEndpoint("sources", {}, {"/sources": lambda: [{"source": "shop/orders"}]})
    response = await one.respond("/sources")
    assert (response.status, json.loads(response.body)) == (200, [{"source": "shop/orders"}])
    assert (await one.respond("/others")).status == 404


async def test_raw_asgi_gets_the_same_response() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    one = HealthEndpoint("query", {})
    assert one.handles("/readyz")
    assert not one.handles("/api/v1/query")
    await one.asgi({"path": "/readyz"}, send)
    assert (sent[0]["status"], json.loads(sent[1]["body"])["status"]) == (200, "ready")
