"""Sockets that are used up to a deadline: what one request may take, whatever the other side does.

Theory. A time-out of a socket begins again with each byte that arrives, so a server that sends a
byte now and then holds a request for ever. Here each use of a socket gets what is left of the time
that its thread has for its request, and at most what the library asks for. A large text is written
in pieces, because the library's own loop would give each of them the whole time.

    sockets = TimedSockets()
    with sockets.within(30.0):
        ...  # requests of this thread
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore
import httpx

PIECE_BYTES: Final = 16 * 1024
"""What is written at once: less than the smallest free space that a system reports."""


class TimedTransport(httpx.HTTPTransport):
    """A transport without proxies whose connections are those of `sockets`."""

    def __init__(
        self, context: ssl.SSLContext, sockets: httpcore.NetworkBackend, connections: int
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        # The transport has no parameter for it.
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=5.0,
            network_backend=sockets,
        )


class TimedSockets(httpcore.NetworkBackend):
    """Opens connections; use from any thread. A thread without a deadline waits as is asked."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()
        self._own = threading.local()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let what this thread does with sockets end in so many seconds."""
        self._own.end_s = time.monotonic() + seconds
        try:
            yield
        finally:
            del self._own.end_s

    def left_s(self, asked_s: float | None, late: type[Exception]) -> float | None:
        """Return how long a call may wait, at most `asked_s`. Raises `late`."""
        end_s: float | None = getattr(self._own, "end_s", None)
        if end_s is None:
            return asked_s
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise late("the request took too long")
        return left_s if asked_s is None else min(left_s, asked_s)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self.left_s(timeout, httpcore.ConnectTimeout)
        found = self._inner.connect_tcp(host, port, left_s, local_address, socket_options)
        return _TimedStream(self, found)


class _TimedStream(httpcore.NetworkStream):
    """See `TimedSockets`."""

    def __init__(self, sockets: TimedSockets, inner: httpcore.NetworkStream) -> None:
        self._sockets, self._inner = sockets, inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._sockets.left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), PIECE_BYTES):
            left_s = self._sockets.left_s(timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[at : at + PIECE_BYTES], left_s)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._sockets.left_s(timeout, httpcore.ConnectTimeout)
        found = self._inner.start_tls(ssl_context, server_hostname, left_s)
        return _TimedStream(self._sockets, found)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
