"""The objects of snapshots in an S3 bucket.

Theory. boto3 blocks, so each call runs on a thread. A put that is answered with "taken" may have met its own first attempt whose answer
was lost, so the content decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from fennel_core.connections import s3
from fennel_core.snapshots.store import Stored, StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")


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

    async def stored(self, prefix: str) -> list[Stored]:
        def listed() -> list[Stored]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [Stored(found["Key"], found["LastModified"]) for page in pages for found in page.get("Contents", [])]

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
