"""Raw ASGI for servers whose requests are too short for a web framework.

A framework costs as much per request as a lookup. The hot routes therefore work on ASGI values
(`starlette.types` names them) and share the few functions of this module. The limit on a request
body is enforced twice: an announced `Content-Length` is checked before the first byte is received,
so a client that sent `Expect: 100-continue` never sends the body, and received bytes are counted,
so a chunked body is refused at the byte that exceeds the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Final

from starlette.types import Receive, Scope, Send

from fennel_core.connections.api_errors import BodyTooLarge, ContentLengthMalformed
from fennel_core.connections.errors import ConnectionsError

_WATCH_AFTER_S: Final = 0.02
"""Only requests that take longer are worth a task that watches for a disconnect."""
_JSON: Final = (b"content-type", b"application/json")


class ClientDisconnected(ConnectionsError):
    """The client closed the connection before its request was complete; do not respond."""

    code: ClassVar[str] = "client-disconnected"


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of the first header with the lower-case `name`."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def announced_length(scope: Scope, limit_bytes: int) -> int | None:
    """Return the `Content-Length` of a request, None without one.

    Raises `ContentLengthMalformed`, and `BodyTooLarge` for a length over the limit.
    """
    value = header(scope, b"content-length")
    if value is None:
        return None
    # isdecimal() alone accepts digits of every script.
    if not (value.isascii() and value.isdecimal()):
        raise ContentLengthMalformed(value)
    if int(value) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return int(value)


async def body_chunks(receive: Receive, limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield the non-empty chunks of a request body as they arrive.

    Raises `BodyTooLarge` instead of yielding a chunk that exceeds the limit, and
    `ClientDisconnected`.
    """
    received_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("the client closed the connection before the end of its body")
        chunk: bytes = message.get("body", b"")
        received_bytes += len(chunk)
        if received_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if chunk:
            yield chunk
        more = message.get("more_body", False)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Return the whole request body, holding at most `limit_bytes` of it in memory.

    Raises `ContentLengthMalformed`, `BodyTooLarge` and `ClientDisconnected`.
    """
    announced_length(scope, limit_bytes)
    chunks = [chunk async for chunk in body_chunks(receive, limit_bytes)]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects, and raise `ClientDisconnected`.

    The request body must have been read. Short blocks do not pay for the watching task.
    """
    task = asyncio.current_task()
    assert task is not None, "requests run in tasks"
    watcher: asyncio.Task[None] | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, begin)
    try:
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientDisconnected(
                "the client closed the connection before its response"
            ) from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def send_json(
    send: Send,
    body: bytes,
    status: int = 200,
    headers: Iterable[tuple[bytes, bytes]] = (),
    rest: Sequence[bytes] = (),
) -> None:
    """Send a response whose body is encoded JSON; `rest` are further pieces of it."""
    length = len(body) + sum(map(len, rest))
    headers = [_JSON, (b"content-length", str(length).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in (body, *rest[:-1]) if rest else ():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        # Other requests come between the pieces.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": rest[-1] if rest else body})
