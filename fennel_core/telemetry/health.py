"""`/healthz`, `/readyz` and `/metrics` of a process.

*Healthy* means that the event loop of the process runs, and the response itself is the proof, so
`/healthz` checks nothing. (A check that fails while Postgres is down would restart every process,
which helps in no way.) *Ready* means that the process can do its work: all checks run concurrently,
each with a time-out, and every failure is reported.

The same object responds over raw ASGI (`handles`, then `asgi`), adds its routes to a FastAPI
application (`mount`), or serves them alone in a process without other HTTP (`serve`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web
from fastapi import FastAPI, Response
from starlette.types import Scope, Send

from fennel_core.settings.hosts import HostRules
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import redact_text

CHECK_SECONDS: Final = 2.0
PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
PUBLIC_PATHS: Final = PATHS - {"/metrics"}
"""Metrics name the entities of every workspace, so users do not reach them."""

ReadinessCheck = Callable[[], Awaitable[str | None]]
"""Returns None when the process is ready, else a sentence that names what is missing."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """Status, content type and body of one response."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HealthEndpoint:
    """The health of process `process`, which is ready when every check passes.

    `reports`: further paths and what they return, as JSON, for `fennel-core status`.
    """

    process: str
    checks: Mapping[str, ReadinessCheck]
    reports: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    def handles(self, path: str) -> bool:
        """Return whether `path` is one of the three."""
        return path in PATHS

    async def respond(self, path: str) -> HealthResponse:
        """Return the response to GET `path`; 404 for other paths."""
        match path:
            case "/healthz":
                return _json(200, {"status": "alive", "process": self.process})
            case "/readyz":
                return await self._ready()
            case "/metrics":
                return HealthResponse(200, metrics.CONTENT_TYPE, metrics.render())
            case _ if path in self.reports:
                return _json(200, self.reports[path]())
            case _:
                paths = sorted({*PATHS, *self.reports})
                return _json(404, {"status": "unknown path", "paths": paths})

    async def asgi(self, scope: Scope, send: Send) -> None:
        """Respond to one HTTP request of a raw ASGI application."""
        response = await self.respond(scope["path"])
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    def mount(self, app: FastAPI) -> None:
        """Add the three routes to `app`, outside its API description."""

        def route(path: str) -> Callable[[], Awaitable[Response]]:
            async def respond() -> Response:
                response = await self.respond(path)
                return Response(
                    response.body,
                    status_code=response.status,
                    headers={"content-type": response.content_type},
                )

            return respond

        for path in sorted(PATHS):
            app.add_api_route(path, route(path), methods=["GET"], include_in_schema=False)

    async def serve(
        self, host: str, port: int, hosts: HostRules | None = None, *, reuse_port: bool = False
    ) -> web.AppRunner:
        """Serve the three paths alone, on the running event loop; `cleanup()` the result to stop.

        `hosts`: which `Host` headers are accepted. `reuse_port`: several processes listen on it.

        aiohttp rather than uvicorn: it leaves the signal handlers of the process alone, and an idle
        server has no timer.
        """

        rules = HostRules() if hosts is None else hosts

        async def respond(request: web.Request) -> web.Response:
            if "Host" in request.headers and not rules.allows(request.headers["Host"]):
                return web.Response(status=403, text="this is not a name of the server")
            response = await self.respond(request.path)
            return web.Response(
                body=response.body,
                status=response.status,
                headers={"content-type": response.content_type},
            )

        app = web.Application()
        app.router.add_get("/{path:.*}", respond)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port, reuse_port=reuse_port or None).start()
        return runner

    async def _ready(self) -> HealthResponse:
        names = list(self.checks)
        results = dict(
            zip(
                names,
                await asyncio.gather(*(_run(self.checks[name]) for name in names)),
                strict=True,
            )
        )
        ready = all(result is None for result in results.values())
        reported = {name: result or "ok" for name, result in results.items()}
        return _json(
            200 if ready else 503,
            {
                "status": "ready" if ready else "not ready",
                "process": self.process,
                "checks": reported,
            },
        )


async def _run(check: ReadinessCheck) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"did not respond within {CHECK_SECONDS:g} s"
    except Exception as failure:  # noqa: BLE001  # checks fail in their libraries' own ways
        return redact_text(f"{type(failure).__name__}: {failure}")


def _json(status: int, content: object) -> HealthResponse:
    return HealthResponse(status, "application/json", msgspec.json.encode(content))
