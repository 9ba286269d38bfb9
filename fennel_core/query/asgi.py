"""What the hot routes need of HTTP, and no more: a request is a scope and a receive, an answer two
messages.

Theory. A web framework costs as much per request as a lookup does. Everything here works on the raw
ASGI values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fennel_core.query.errors import BodyTooLarge, RequestMalformed

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = (b"content-type", b"application/json")


class Disconnected(Exception):
    """The client went away before its request was complete, or the server behind us before its
    answer was.
    """


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def body_limit(scope: Scope, limit_bytes: int) -> int | None:
    """The announced length of the body, None when it is not announced; BodyTooLarge when it is over
    the limit.
    """
    announced = header(scope, b"content-length")
    if announced is None:
        return None
    if not announced.isdecimal():
        raise RequestMalformed(f"`Content-Length: {announced}` is not a number of bytes")
    if int(announced) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return int(announced)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body; BodyTooLarge before more than `limit_bytes` are held."""
    body_limit(scope, limit_bytes)
    chunks: list[bytes] = []
    seen, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        seen += len(chunks[-1])
        if seen > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def send_json(send: Send, body: bytes, status: int = 200) -> None:
    """Answer `body`, which is JSON."""
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
