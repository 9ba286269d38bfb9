"""The front door passes on what the query server does not answer itself.

Theory. Users know one address. A request goes on to the definition or the ingest server as it came:
path, query string, headers and a streamed body; the answer comes back the same way. `Expect:
100-continue` is answered by our own HTTP server the moment the body is asked for, after its
announced size has been checked, so a client that is told no never sends it. Only headers that
belong to one connection (RFC 9110, 7.6.1) are dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from starlette.types import Receive, Scope, Send
from yarl import URL

from fennel_core.connections.asgi import (
    BodyTooLarge,
    ClientDisconnected,
    announced_length,
    body_chunks,
    header,
)
from fennel_core.query.errors import ResponseTruncated, UpstreamUnavailable
from fennel_core.telemetry import traces

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"host",
    }
)
CONNECT_S = 5.0
IDLE_S = 2.0
"""Idle connections are dropped by us before the servers behind do it (uvicorn: 5 s): a request sent
into a closing one would fail.
"""
TOTAL_S = 600.0
"""The client gives up after as long; commits wait for Airflow and warming."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind the front door: its name for messages, and its base URL without a trailing
    slash.
    """

    name: str
    url: str


class Forwarder:
    """Passes requests on; make it inside the event loop, `close` it at the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S),
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        await self._session.close()

    async def forward(
        self,
        upstream: Upstream,
        scope: Scope,
        receive: Receive,
        send: Send,
        before_answer: Callable[[int], Awaitable[None]],
    ) -> int:
        """Pass the request on and its answer back; the status. `before_answer(status)` is awaited
        before anything is sent back.

        Raises `BodyTooLarge` before the body is read, `UpstreamUnavailable` when the server cannot
        be reached or does not answer.
        """
        length = announced_length(scope, self._limit_bytes)
        has_body = length != 0 and (
            length is not None or header(scope, b"transfer-encoding") is not None
        )
        failures: list[Exception] = []
        body = _body(receive, self._limit_bytes, failures) if has_body else None
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        target = f"{upstream.url}{path.decode('latin-1')}" + (
            f"?{query.decode('latin-1')}" if query else ""
        )
        headers = [
            (k.decode("latin-1"), v.decode("latin-1"))
            for k, v in scope["headers"]
            if k.lower() not in HOP_BY_HOP
        ]
        ours = traces.outgoing()
        headers = [*((k, v) for k, v in headers if k not in ours), *ours.items()]
        started = False
        try:
            async with self._session.request(
                scope["method"],
                URL(target, encoded=True),
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                await before_answer(answer.status)
                kept = [(k, v) for k, v in answer.raw_headers if k.lower() not in HOP_BY_HOP]
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": kept}
                )
                started = True
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return answer.status
        except (aiohttp.ClientError, TimeoutError) as lost:
            if failures:
                raise failures[0] from lost
            if started:
                raise ResponseTruncated(
                    f"the {upstream.name} server broke off its response"
                ) from lost
            raise UpstreamUnavailable(
                f"the {upstream.name} server cannot be reached now "
                f"({type(lost).__name__}): try again"
            ) from lost


async def _body(
    receive: Receive, limit_bytes: int, failures: list[Exception]
) -> AsyncIterator[bytes]:
    """Yield the request body; aiohttp hides what the generator raises, so keep it in `failures`."""
    try:
        async for chunk in body_chunks(receive, limit_bytes):
            yield chunk
    except (BodyTooLarge, ClientDisconnected) as failed:
        failures.append(failed)
        raise aiohttp.ClientPayloadError(str(failed)) from failed
