"""Run an ASGI application under uvicorn and return when a signal stops it.

uvicorn's own signal handling raises the signal again after the last response, so the process ends
inside `Server.serve()` and the caller's `finally` blocks never run: producers, pools and consumers
stay open. Here SIGTERM and SIGINT only ask the server to stop, `serve_http` returns, and the caller
closes what it opened:

    try:
        await serve_http(app, host, port, protection=protection, grace_s=settings.shutdown_grace_s)
    finally:
        await committer.close()
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from fennel_core.apps.http_protection import ProtectedApplication, Protection
from fennel_core.apps.http_protocol import bounded_protocol, close_late_connections
from fennel_core.apps.tls import reload_on_change, server_context

BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 5


class _Server(uvicorn.Server):
    """A server that stops on the event loop's signals and does not raise them again."""

    stopped_s: float | None = None
    """When the first signal arrived, by the monotonic clock."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Replace uvicorn's handlers; ours stay installed while the caller closes its resources."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True
        if self.stopped_s is None:
            self.stopped_s = time.monotonic()


async def serve_http(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    protection: Protection,
    grace_s: float,
    keep_alive_s: int = KEEP_ALIVE_S,
    listener: socket.socket | None = None,
) -> float:
    """Serve `app` until SIGTERM or SIGINT, then finish the requests under way.

    Return the seconds since the signal: they count until its sender kills the process.

    `protection`: what is refused before `app` sees it.
    Requests that take longer than `grace_s` are cancelled. Idle connections are closed after
    `keep_alive_s`. `listener`: a bound socket to use instead of `host` and `port`; it is closed
    at the end. Call it from the main thread.
    """
    context = None if protection.tls is None else server_context(protection.tls)
    config = uvicorn.Config(
        ProtectedApplication(app, protection),
        host=host,
        port=port,
        loop="none",
        http=bounded_protocol(protection.header_timeout_s, protection.body_timeout_s),
        ws="none",
        lifespan="off",
        interface="asgi3",
        backlog=BACKLOG,
        access_log=False,
        log_config=None,
        server_header=False,
        headers=protection.response_headers,
        limit_concurrency=protection.connections,
        ssl_context_factory=None if context is None else (lambda *_: context),
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=int(grace_s),
    )
    # Objects that are alive now live as long as the process: no collection needs to visit them.
    gc.collect()
    gc.freeze()
    server = _Server(config)
    beside = [asyncio.create_task(close_late_connections(server.server_state.connections))]
    if protection.tls is not None and context is not None:
        beside.append(asyncio.create_task(reload_on_change(context, protection.tls)))
    try:
        await server.serve(None if listener is None else [listener])
    finally:
        for task in beside:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return 0.0 if server.stopped_s is None else time.monotonic() - server.stopped_s
