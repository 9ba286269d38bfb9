"""The bounded body reader: lengths that are announced, wrong, absent or exceeded."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope

from fennel_core.connections.api_errors import BodyTooLarge, ContentLengthMalformed
from fennel_core.connections.asgi import (
    ClientDisconnected,
    read_body,
)

LIMIT_BYTES = 10


class Client:
    """Sends `messages` in order and counts how many the server has received."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        self.received = 0

    async def __call__(self) -> Message:
        self.received += 1
        return self.messages[self.received - 1]


def chunk(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def scope(length: str | None) -> Scope:
    headers = [] if length is None else [(b"content-length", length.encode("latin-1"))]
    return {"headers": [(b"host", b"x"), *headers]}


async def read(receive: Receive, length: str | None = None) -> bytes:
    return await read_body(scope(length), receive, LIMIT_BYTES)


async def test_a_body_within_the_limit_is_returned_whole() -> None:
    assert await read(Client(chunk(b"0123456789")), "10") == b"0123456789"


async def test_a_body_without_a_length_is_joined_from_its_chunks() -> None:
    chunks = Client(chunk(b"01", more=True), chunk(b"", more=True), chunk(b"23"))
    assert await read(chunks) == b"0123"


async def test_a_request_without_a_body_is_empty() -> None:
    assert await read(Client({"type": "http.request"})) == b""


async def test_an_announced_length_over_the_limit_is_refused_unread() -> None:
    client = Client(chunk(b"x" * 11))
    with pytest.raises(BodyTooLarge, match="limit of 10 bytes") as refused:
        await read(client, "11")
    assert (refused.value.status, refused.value.code) == (413, "body-too-large")
    assert client.received == 0


async def test_a_chunked_body_is_refused_at_the_chunk_over_the_limit() -> None:
    client = Client(*(chunk(b"1234", more=True) for _ in range(9)))
    with pytest.raises(BodyTooLarge):
        await read(client)
    assert client.received == 3


async def test_a_body_longer_than_its_announced_length_is_still_bounded() -> None:
    with pytest.raises(BodyTooLarge):
        await read(Client(chunk(b"x" * 11)), "5")


@pytest.mark.parametrize("length", ["", "-1", "ten", "1.5", "0x10", "+5", " 5", "\xb2"])
async def test_a_length_that_is_not_a_decimal_number_is_a_400(length: str) -> None:
    with pytest.raises(ContentLengthMalformed) as refused:
        await read(Client(chunk(b"x")), length)
    assert (refused.value.status, refused.value.code) == (400, "content-length")


async def test_a_client_that_disconnects_in_its_body_is_reported() -> None:
    with pytest.raises(ClientDisconnected):
        await read(Client(chunk(b"01", more=True), {"type": "http.disconnect"}))
