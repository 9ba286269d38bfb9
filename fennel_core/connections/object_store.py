"""A bucket of immutable objects: the protocol, its in-memory implementation, and which objects are
garbage.

Theory. An object is written once under a key that no other writer uses and is never changed, so a
retry is safe and a reader never sees a partial object. What refers to the newest object is a row in
Postgres. An object without a reference is either garbage or about to be referenced; only its age
distinguishes the two, so `orphans` waits for a grace period.

`connections.s3.S3ObjectStore` is the real implementation; one contract suite tests both.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from fennel_core.connections.errors import ConnectionsError

PIECE_BYTES: Final = 1024 * 1024
"""What a stream of an object holds in memory."""


class ObjectConflict(ConnectionsError):
    """The key holds an object with other content, which was left as it is.

    Keys are unique per writer, so this is a defect or a foreign writer in the bucket. Do not retry
    with the same key.
    """

    code = "object-conflict"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in the bucket; `written_at` is in the store's own clock."""

    key: str
    written_at: datetime


class ObjectStore(Protocol):
    """Immutable objects by key.

    Every method raises SystemUnavailable if the bucket cannot be used.
    """

    async def put(self, key: str, body: bytes) -> None:
        """Write an object. Writing the same content again changes nothing.

        Raises ObjectConflict if `key` holds other content.
        """
        ...

    async def get(self, key: str) -> bytes | None:
        """Return the content of `key`, or None if there is no such object."""
        ...

    async def stream(self, key: str) -> AsyncIterator[bytes] | None:
        """Return the content of `key` in pieces, or None if there is no such object.

        The pieces raise SystemUnavailable when the content breaks off.
        """
        ...

    async def read_range(self, key: str, first: int, size: int) -> bytes | None:
        """Return `size` bytes of `key` from byte `first`, fewer at its end, or None if there is no
        such object.
        """
        ...

    async def upload(self, key: str, path: Path) -> None:
        """Write the content of the file `path`, without holding it in memory; see `put`."""
        ...

    async def download(self, key: str, path: Path) -> str | None:
        """Write the content of `key` to the file `path`.

        Returns the SHA-256 of the written bytes (hex), or None if there is no such object.
        """
        ...

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        """Return every object whose key starts with `prefix`, sorted by key."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; keys that do not exist are ignored."""
        ...


class MemoryObjectStore:
    """An `ObjectStore` in memory, with a clock that tests control."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.contents: dict[str, bytes] = {}
        self._written_at: dict[str, datetime] = {}

    async def put(self, key: str, body: bytes) -> None:
        if self.contents.get(key, body) != body:
            raise ObjectConflict(f"object `{key}` already exists with other content")
        if key not in self.contents:
            self.contents[key], self._written_at[key] = body, self._now()

    async def get(self, key: str) -> bytes | None:
        return self.contents.get(key)

    async def stream(self, key: str) -> AsyncIterator[bytes] | None:
        body = self.contents.get(key)
        return None if body is None else _pieces(body)

    async def read_range(self, key: str, first: int, size: int) -> bytes | None:
        body = self.contents.get(key)
        return None if body is None else body[first : first + size]

    async def upload(self, key: str, path: Path) -> None:
        await self.put(key, await asyncio.to_thread(path.read_bytes))

    async def download(self, key: str, path: Path) -> str | None:
        body = self.contents.get(key)
        if body is None:
            return None
        await asyncio.to_thread(path.write_bytes, body)
        return hashlib.sha256(body).hexdigest()

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        return [
            StoredObject(key, self._written_at[key])
            for key in sorted(self.contents)
            if key.startswith(prefix)
        ]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.contents.pop(key, None)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(body), PIECE_BYTES):
        yield body[first : first + PIECE_BYTES]


def orphans(
    objects: Iterable[StoredObject], referenced: Collection[str], grace: timedelta, now: datetime
) -> list[str]:
    """Return the keys of the objects that nothing references and that are older than `grace`.

    A younger object may belong to a writer that has not added its reference yet.
    """
    return [
        each.key for each in objects if each.key not in referenced and each.written_at < now - grace
    ]
