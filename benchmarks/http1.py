"""A minimal keep-alive HTTP/1.1 connection: measures the server, not a client library."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

OK = 200
IDLE_S = 3.0
"""A connection that was idle for longer is not used again: the server may be closing it (uvicorn
does after 5 s).
"""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        assert parts.scheme == "http", f"plain http only, not {url}"
        assert parts.hostname is not None, f"no host in {url}"
        return cls(parts.hostname, parts.port or 80)


class Connection:
    """One request at a time. `token` is sent as a bearer token with every request."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: Address,
        token: str,
    ) -> None:
        self._reader, self._writer = reader, writer
        host = f"{address.host}:{address.port}"
        self._head = (
            f" HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: "
            "application/json\r\nContent-Length: "
        )

    @classmethod
    async def open(cls, address: Address, token: str) -> Connection:
        return cls(*await asyncio.open_connection(address.host, address.port), address, token)

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer, which must announce its length."""
        self._writer.write(f"{method} {path}{self._head}{len(body)}\r\n\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        at = head.find(b"content-length:")
        assert at >= 0, "an answer without its length"
        length = int(head[at + 15 : head.index(b"\r\n", at)])
        return int(head[9:12]), await self._reader.readexactly(length)

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a good answer. Raises RuntimeError with the server's words otherwise."""
        status, answer = await self.request(method, path, body)
        if status != OK:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode(errors='replace')[:500]}")
        return answer

    def close(self) -> None:
        self._writer.close()


class Connections:
    """Idle connections are used again, so that a request never pays for opening one twice."""

    def __init__(self, address: Address, token: str) -> None:
        self._address, self._token = address, token
        self._idle: list[tuple[float, Connection]] = []

    async def take(self) -> Connection:
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_S:
                return connection
            connection.close()
        return await Connection.open(self._address, self._token)

    def give_back(self, connection: Connection) -> None:
        self._idle.append((time.monotonic(), connection))

    def close(self) -> None:
        for _, connection in self._idle:
            connection.close()
