"""S3: one bucket of immutable, uniquely named objects.

Theory. S3-compatible stores differ in what a conditional write promises: the local store honours
`If-None-Match` under a race but not `If-Match`. So only `If-None-Match: *` is used: an object is
written once under a key that no other writer uses, and the reference to the newest object is a row
in Postgres. Stores that keep objects as files add two rules: a key is never a folder prefix of
another key (`c/a` and `c/a/b`), and a bucket name has at least three letters.

The functions are blocking and raise botocore's errors; `S3ObjectStore` runs them on threads and
raises the errors of `connections.errors`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeVar

import boto3
import structlog
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.response import StreamingBody
from pydantic import SecretStr

from fennel_core.connections.errors import ObjectStoreUnavailable, SystemUnavailable
from fennel_core.connections.object_store import PIECE_BYTES, ObjectConflict, StoredObject
from fennel_core.connections.ranged_file import RangedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import BucketLocationConstraintType

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 60
ATTEMPTS: Final = 4
CONFLICTS: Final = 4
"""How often a write is repeated that met another one of the same key."""
CONFLICT_S: Final = 0.5
DEFAULT_REGION: Final = "us-east-1"
"""The only region that must not be given as a location when a bucket is created."""
DOWNLOAD_ATTEMPTS: Final = 3
"""The client retries requests by itself, but not a response body that breaks off midway."""
T = TypeVar("T")
log = structlog.get_logger(__name__)


class S3Settings(Protocol):
    """The settings that an S3 client needs."""

    @property
    def s3_endpoint(self) -> str: ...
    @property
    def s3_region(self) -> str: ...
    @property
    def s3_access_key(self) -> str: ...
    @property
    def s3_secret_key(self) -> SecretStr: ...


def client(settings: S3Settings, *, connections: int = 10) -> S3Client:
    """Return a thread-safe client with path-style addresses and bounded retries.

    It blocks: call it from a worker thread. `connections`: the size of its connection pool.
    """
    return boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        config=Config(
            s3={"addressing_style": "path"},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=connections,
            # The newer default adds trailing checksums; compatible stores respond with 501.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def ensure_bucket(s3: S3Client, bucket: str) -> None:
    """Create `bucket` unless it exists.

    Raises ClientError if the store refuses: the name is taken, or permission is missing.
    """
    try:
        s3.head_bucket(Bucket=bucket)
        return
    except ClientError as missing:
        if _status(missing) != 404:
            raise
    region = s3.meta.region_name
    try:
        if region == DEFAULT_REGION:
            s3.create_bucket(Bucket=bucket)
        else:
            constraint: BucketLocationConstraintType = region  # type: ignore[assignment]  # checked by S3
            s3.create_bucket(
                Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": constraint}
            )
    except ClientError as refused:
        if refused.response.get("Error", {}).get("Code") != "BucketAlreadyOwnedByYou":
            raise


def put_new(s3: S3Client, bucket: str, key: str, body: bytes | BinaryIO) -> bool:
    """Write an object that does not exist yet; return False, and change nothing, if `key` exists.

    A retry after a lost response may find its own object. Keys are unique per writer, so compare
    the content to distinguish the two cases.
    """
    for last in (False,) * CONFLICTS + (True,):
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as refused:
            if _status(refused) == 412:
                return False
            if _status(refused) != 409 or last:
                raise
            # Another request for this key was under way, such as our own that seemed lost. Which
            # of them wrote the object is known with the next one.
            time.sleep(CONFLICT_S)
            if not isinstance(body, bytes):
                body.seek(0)
        else:
            return True
    raise AssertionError("the last attempt returns or raises")


def get(s3: S3Client, bucket: str, key: str) -> bytes | None:
    """Return the content of `key`, or None if there is no such object."""
    body = open_stream(s3, bucket, key)
    return None if body is None else body.read()


class RangedObject(RangedFile):
    """An object as a file. Raises botocore's errors, and FileNotFoundError without an object."""

    def __init__(self, s3: S3Client, bucket: str, key: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._s3, self._bucket, self._key = s3, bucket, key

    def fetch(self, first: int, size: int) -> bytes:
        asked = f"bytes={first}-{first + size - 1}"
        try:
            found = self._s3.get_object(Bucket=self._bucket, Key=self._key, Range=asked)
        except ClientError as missing:
            if _status(missing) == 404:
                raise FileNotFoundError(self._key) from missing
            raise
        return found["Body"].read()


def open_stream(s3: S3Client, bucket: str, key: str) -> StreamingBody | None:
    """Return the content of `key` as a stream, or None if there is no such object."""
    try:
        return s3.get_object(Bucket=bucket, Key=key)["Body"]
    except ClientError as missing:
        if _status(missing) == 404:
            return None
        raise


def get_range(s3: S3Client, bucket: str, key: str, first: int, size: int) -> bytes | None:
    """Return `size` bytes of `key` from byte `first`, fewer at its end; None without the object."""
    try:
        found = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={first}-{first + size - 1}")
    except ClientError as refused:
        if _status(refused) == 404:
            return None
        if _status(refused) == 416:  # the object ends before
            return b""
        raise
    return found["Body"].read()


def list_objects(s3: S3Client, bucket: str, prefix: str) -> list[StoredObject]:
    """Return every object whose key starts with `prefix`, sorted by key."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = [
        StoredObject(each["Key"], each["LastModified"])
        for page in pages
        for each in page.get("Contents", [])
    ]
    return sorted(found, key=lambda each: each.key)


def delete(s3: S3Client, bucket: str, key: str) -> None:
    """Delete `key`; a key that does not exist is ignored."""
    s3.delete_object(Bucket=bucket, Key=key)


class S3ObjectStore:
    """An `ObjectStore` in an S3 bucket; boto3 blocks, so each call runs on a thread."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    async def put(self, key: str, body: bytes) -> None:
        created = await _on_thread(lambda: put_new(self._client, self._bucket, key, body))
        if not created and await self.get(key) != body:
            raise ObjectConflict(f"object `{key}` already exists with other content")

    async def get(self, key: str) -> bytes | None:
        return await _on_thread(lambda: get(self._client, self._bucket, key))

    async def stream(self, key: str) -> AsyncIterator[bytes] | None:
        body = await _on_thread(lambda: open_stream(self._client, self._bucket, key))
        return None if body is None else _pieces(body)

    async def read_range(self, key: str, first: int, size: int) -> bytes | None:
        return await _on_thread(lambda: get_range(self._client, self._bucket, key, first, size))

    async def upload(self, key: str, path: Path) -> None:
        def send() -> bool:
            with path.open("rb") as body:
                return put_new(self._client, self._bucket, key, body)

        if await _on_thread(send):
            return
        # The first attempt of this very upload may have succeeded with its response lost, so the
        # content decides.
        if await self.get(key) != await asyncio.to_thread(path.read_bytes):
            raise ObjectConflict(f"object `{key}` already exists with other content")

    async def download(self, key: str, path: Path) -> str | None:
        def fetch() -> str | None:
            body = open_stream(self._client, self._bucket, key)
            if body is None:
                return None
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for chunk in body.iter_chunks(PIECE_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            return digest.hexdigest()

        for _ in range(DOWNLOAD_ATTEMPTS - 1):
            try:
                return await _on_thread(fetch)
            except SystemUnavailable as broken:
                log.warning("download failed; retrying", key=key, error=str(broken))
        return await _on_thread(fetch)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        return await _on_thread(lambda: list_objects(self._client, self._bucket, prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        def delete_all() -> None:
            for key in keys:
                delete(self._client, self._bucket, key)

        await _on_thread(delete_all)


async def _pieces(body: StreamingBody) -> AsyncIterator[bytes]:
    try:
        while piece := await _on_thread(lambda: body.read(PIECE_BYTES)):
            yield piece
    finally:
        body.close()


async def _on_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except (ClientError, BotoCoreError) as failed:
        raise ObjectStoreUnavailable(f"S3: {failed}") from failed


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
