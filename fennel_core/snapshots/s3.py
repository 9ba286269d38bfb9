"""The objects of snapshots in an S3 bucket.

Theory. boto3 blocks, so each call runs on a thread. A put that is answered with "taken" may have
met its own first attempt whose answer was lost, so the content decides.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from botocore.exceptions import BotoCoreError, ClientError

from fennel_core.connections import s3
from fennel_core.snapshots.store import Stored, StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")
log = structlog.get_logger(__name__)
CHUNK_BYTES: Final = 1024 * 1024
DOWNLOAD_ATTEMPTS: Final = 3
"""The client tries a request again by itself, but not one that breaks off while its content is
read.
"""


class S3Objects:
    """See `snapshots.store.Objects`."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    async def put(self, key: str, body: bytes) -> None:
        written = await _on_thread(lambda: s3.put_new(self._client, self._bucket, key, body))
        if not written and await self.get(key) != body:
            raise StoreError(f"{key} is taken by another content")

    async def get(self, key: str) -> bytes | None:
        return await _on_thread(lambda: s3.get(self._client, self._bucket, key))

    async def upload(self, key: str, path: Path) -> None:
        def sent() -> bool:
            with path.open("rb") as body:
                return s3.put_new(self._client, self._bucket, key, body)

        if not await _on_thread(sent) and await self.get(key) != await asyncio.to_thread(
            path.read_bytes
        ):
            raise StoreError(f"{key} is taken by another content")

    async def download(self, key: str, path: Path) -> str | None:
        def fetched() -> str | None:
            body = s3.opened(self._client, self._bucket, key)
            if body is None:
                return None
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            return digest.hexdigest()

        for _ in range(DOWNLOAD_ATTEMPTS - 1):
            try:
                return await _on_thread(fetched)
            except StoreError as broken:
                log.warning("download is tried again", key=key, error=str(broken))
        return await _on_thread(fetched)

    async def stored(self, prefix: str) -> list[Stored]:
        def listed() -> list[Stored]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            return [
                Stored(found["Key"], found["LastModified"])
                for page in pages
                for found in page.get("Contents", [])
            ]

        return sorted(await _on_thread(listed), key=lambda stored: stored.key)

    async def remove(self, keys: Sequence[str]) -> None:
        def gone() -> None:
            for key in keys:
                s3.delete(self._client, self._bucket, key)

        await _on_thread(gone)


async def _on_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except (ClientError, BotoCoreError) as failed:
        raise StoreError(f"S3: {failed}") from failed
