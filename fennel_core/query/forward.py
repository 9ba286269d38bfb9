"""Forward the requests that the query server does not serve itself.

Users know one address. A request goes on to the definition or the ingest server as it arrived:
path, query string, headers and a streamed body; the response comes back the same way. `Expect:
100-continue` is acknowledged by our own HTTP server the moment the body is read, after its
announced size has been checked, so a client that is refused never sends the body. Only headers that
belong to one connection (RFC 9110, 7.6.1) are dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from starlette.types import Receive, Scope, Send
from yarl import URL

from fennel_core.connections.api_errors import BodyTooLarge
from fennel_core.connections.asgi import (
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
OWN_HEADERS = frozenset(
    {
        b"date",
        b"x-content-type-options",
        b"cross-origin-resource-policy",
        b"cache-control",
        b"content-security-policy",
        b"strict-transport-security",
    }
)
"""Response headers that this server's HTTP layer writes itself."""
CONNECT_S = 5.0
IDLE_S = 2.0
"""Idle connections are closed before the servers behind close them (uvicorn: 5 s): a request sent
into a closing connection would fail.
"""
TOTAL_S = 600.0
"""The client's own time-out; commits wait for Airflow and warming."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind the API gateway: its name for messages, and its base URL."""

    name: str
    url: str


class Forwarder:
    """Forwards requests. Create it inside the event loop, and `close` it."""

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
        before_response: Callable[[int], Awaitable[None]],
    ) -> int:
        """Forward the request, send its response, and return the status.

        `before_response(status)` is awaited before anything is sent back. Raises `BodyTooLarge`,
        `ContentLengthMalformed`, `ClientDisconnected`, `UpstreamUnavailable`, and
        `ResponseTruncated` when the upstream breaks off after its response has started.
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
            ) as response:
                await before_response(response.status)
                kept = [
                    (k, v)
                    for k, v in response.raw_headers
                    if k.lower() not in HOP_BY_HOP | OWN_HEADERS
                ]
                await send(
                    {"type": "http.response.start", "status": response.status, "headers": kept}
                )
                started = True
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return response.status
        except (aiohttp.ClientError, TimeoutError) as lost:
            if failures:
                raise failures[0] from lost
            if started:
                raise ResponseTruncated(
                    f"the {upstream.name} server broke off its response"
                ) from lost
            raise UpstreamUnavailable(
                f"the {upstream.name} server cannot be reached ({type(lost).__name__}); try again"
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
