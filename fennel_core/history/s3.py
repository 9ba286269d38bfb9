"""History's objects in an S3 bucket (boto3 blocks, so each call runs on a thread)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from fennel_core.connections import s3
from fennel_core.history.store import StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")


class S3Objects:
    """See `history.flow.Objects`."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    async def written(self, prefix: str) -> Mapping[str, datetime]:
        return await _on_thread(lambda: s3.written(self._client, self._bucket, prefix))

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
