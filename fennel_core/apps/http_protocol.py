"""uvicorn's HTTP protocol with limits on how slowly and how much a client may send.

uvicorn has a time-out for idle connections, and none for a connection that never finishes its
header or its body: a client that sends a byte a minute keeps it, and its memory, for ever. Here
each connection notes when it began to wait for the client, and one task per server closes those
that are late (`close_late_connections`), so a request costs no timer. The size of a header is
bounded, too, which the parser does not do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES: Final = 64 * 1024
"""Longest header of a request, about: tokens and names are far shorter."""
LOOK_EVERY_S: Final = 0.5
LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-fennel-error-code: request-timeout\r\nconnection: close\r\ncontent-length: 53\r\n\r\n"
    b"the request did not arrive in time; send it once more"
)
TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-fennel-error-code: header-too-large\r\nconnection: close\r\ncontent-length: 40\r\n\r\n"
    b"the header of the request exceeds 64 KiB"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. The limits are set for the class that `bounded_protocol` makes."""

    header_timeout_s: ClassVar[float] = 10.0
    body_timeout_s: ClassVar[float] = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waits_since: float | None = None
        """When the connection began to wait for bytes of a request; None: it does not."""
        self._in_header = True
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Wait for the first request."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse a header that is too long."""
        if self._in_header:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_header and self._header_bytes > HEADER_BYTES:
            self._end_with(TOO_LONG)

    def on_message_begin(self) -> None:
        """Wait for the rest of the header; also called for the next request of a connection."""
        super().on_message_begin()
        self._in_header, self._waits_since = True, self.loop.time()

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        super().on_headers_complete()
        self._in_header, self._header_bytes = False, 0
        self._waits_since = self.loop.time()

    def on_message_complete(self) -> None:
        """Wait for nothing; uvicorn's own timer closes a connection that stays idle."""
        super().on_message_complete()
        self._waits_since = None

    def close_if_late(self, now: float) -> None:
        """Close the connection if the client has not sent its header or body in time."""
        if self._waits_since is None or self.transport.is_closing():
            return
        if self.flow.read_paused:
            # The application is behind, not the client.
            self._waits_since = now
        elif now - self._waits_since > (
            self.header_timeout_s if self._in_header else self.body_timeout_s
        ):
            self._end_with(LATE)

    def _end_with(self, response: bytes) -> None:
        """Close, with a response unless one has begun or no request has."""
        began = self.cycle is not None and not self.cycle.response_complete
        if self._in_header:
            if self._header_bytes and not began:
                self.transport.write(response)
        elif not self.cycle.response_started:
            self.transport.write(response)
        self._waits_since = None
        self.transport.close()


def bounded_protocol(header_timeout_s: float, body_timeout_s: float) -> type[BoundedHttpProtocol]:
    """Return the protocol class of a server with these limits."""
    limits = {"header_timeout_s": header_timeout_s, "body_timeout_s": body_timeout_s}
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), limits)


async def close_late_connections(connections: Iterable[Any]) -> None:
    """Close late connections of the set, which changes, until this is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = loop.time()
        for connection in list(connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.close_if_late(now)
