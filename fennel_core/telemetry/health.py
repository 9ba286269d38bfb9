"""`/healthz`, `/readyz` and `/metrics` of a process, whatever it serves with.

Theory. *Healthy* means the process's event loop turns: the answer itself is the proof, so
`/healthz` checks nothing (a check that fails because Postgres is away would make every process be
restarted, which helps nobody). *Ready* means it can do its work now: each named check runs with a
time-out, all at once, and every failure is told. The same object answers raw ASGI (`handles`, then
`asgi`), is added to a FastAPI application (`mount`), or is served alone by a process that speaks no
HTTP otherwise (`serve`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import FastAPI, Response

from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import redact_text

CHECK_SECONDS: Final = 2.0
REQUEST_BYTES: Final = 16 * 1024
REQUEST_SECONDS: Final = 5.0
PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})

ReadinessCheck = Callable[[], Awaitable[str | None]]
"""None when all is well, else a sentence saying what is missing."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HealthEndpoint:
    """The health of process `process`; it is ready when every check says so."""

    process: str
    checks: Mapping[str, ReadinessCheck]

    def handles(self, path: str) -> bool:
        return path in PATHS

    async def answer(self, path: str) -> HealthResponse:
        """The answer to GET `path`, 404 for a path that is not ours."""
        match path:
            case "/healthz":
                return _json(200, {"status": "alive", "process": self.process})
            case "/readyz":
                return await self._ready()
            case "/metrics":
                return HealthResponse(200, metrics.CONTENT_TYPE, metrics.render())
            case _:
                return _json(404, {"status": "unknown path", "paths": sorted(PATHS)})

    async def asgi(
        self, scope: Mapping[str, Any], send: Callable[[MutableMapping[str, Any]], Awaitable[None]]
    ) -> None:
        """Answer one HTTP request of a raw ASGI application."""
        answer = await self.answer(scope["path"])
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def mount(self, app: FastAPI) -> None:
        """Add the three routes to `app`, outside its API description."""

        def route(path: str) -> Callable[[], Awaitable[Response]]:
            async def respond() -> Response:
                answer = await self.answer(path)
                return Response(
                    answer.body,
                    status_code=answer.status,
                    headers={"content-type": answer.content_type},
                )

            return respond

        for path in sorted(PATHS):
            app.add_api_route(path, route(path), methods=["GET"], include_in_schema=False)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Serve the three paths alone, one request per connection. Keep the returned server
        referenced; close it to stop.
        """
        return await asyncio.start_server(self._connection, host, port, limit=REQUEST_BYTES)

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
        told = {name: result or "ok" for name, result in results.items()}
        return _json(
            200 if ready else 503,
            {"status": "ready" if ready else "not ready", "process": self.process, "checks": told},
        )

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].split(b" ")
                path = (
                    words[1].split(b"?", 1)[0].decode("latin-1")
                    if len(words) == 3 and words[0] in {b"GET", b"HEAD"}
                    else ""
                )
                answer = await self.answer(path)
                writer.write(
                    f"HTTP/1.1 {answer.status} "
                    f"{HTTPStatus(answer.status).phrase}\r\ncontent-type: "
                    f"{answer.content_type}\r\n"
                    f"content-length: {len(answer.body)}\r\nconnection: close\r\n\r\n".encode()
                )
                if words[0] != b"HEAD":
                    writer.write(answer.body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # the caller went away, was too slow or sent no request: nobody is there to be answered
            pass
        finally:
            writer.close()


async def _run(check: ReadinessCheck) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"did not answer within {CHECK_SECONDS:g} s"
    except Exception as failure:  # noqa: BLE001  # the last line of a supervisor: a check may fail in its library's own ways
        return redact_text(f"{type(failure).__name__}: {failure}")


def _json(status: int, content: object) -> HealthResponse:
    return HealthResponse(status, "application/json", orjson.dumps(content))
