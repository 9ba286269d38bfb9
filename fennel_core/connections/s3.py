"""S3: one bucket of immutable, uniquely named objects.

Theory. S3-compatible stores differ in what a conditional write promises: the local one keeps
`If-None-Match` under a race and breaks `If-Match`. So only `If-None-Match: *` is relied on: an
object is written once under a name nobody else uses and never changed, and what points at the
newest object is a row in Postgres. Two more rules come from stores that keep objects as files: a
key is never a prefix folder of another (`c/a` and `c/a/b`), and bucket names have three letters or
more.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.response import StreamingBody
from pydantic import SecretStr

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import BucketLocationConstraintType

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 60
ATTEMPTS: Final = 4
DEFAULT_REGION: Final = "us-east-1"
"""The one region that must not be named when a bucket is made."""


class S3Settings(Protocol):
    """What of the settings decides here."""

    @property
    def s3_endpoint(self) -> str: ...
    @property
    def s3_region(self) -> str: ...
    @property
    def s3_access_key(self) -> str: ...
    @property
    def s3_secret_key(self) -> SecretStr: ...


def client(settings: S3Settings, *, connections: int = 10) -> S3Client:
    """A thread-safe client (blocking: call it from a worker thread), with path-style addresses and
    bounded retries.
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
            # The newer default adds trailing checksums, which compatible stores answer with 501.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def ensure_bucket(s3: S3Client, bucket: str) -> None:
    """Make `bucket` if it is not there; ClientError when the store refuses (the name is taken, or
    no permission).
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
            constraint: BucketLocationConstraintType = region  # type: ignore[assignment]  # a setting; the store checks it
            s3.create_bucket(
                Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": constraint}
            )
    except ClientError as refused:
        if refused.response.get("Error", {}).get("Code") != "BucketAlreadyOwnedByYou":
            raise


def put_new(s3: S3Client, bucket: str, key: str, body: bytes | BinaryIO) -> bool:
    """Write an object that must not exist yet; False when `key` is taken (then nothing was
    changed).

    A retry after a lost answer may find its own object: names are unique per writer, so compare the
    content if False surprises you.
    """
    try:
        s3.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as refused:
        if _status(refused) in {409, 412}:
            return False
        raise
    return True


def get(s3: S3Client, bucket: str, key: str) -> bytes | None:
    """The content of `key`, or None when there is no such object."""
    body = opened(s3, bucket, key)
    return None if body is None else body.read()


def opened(s3: S3Client, bucket: str, key: str) -> StreamingBody | None:
    """The content of `key` to be read piece by piece, or None when there is no such object."""
    try:
        return s3.get_object(Bucket=bucket, Key=key)["Body"]
    except ClientError as missing:
        if _status(missing) == 404:
            return None
        raise


def keys(s3: S3Client, bucket: str, prefix: str) -> list[str]:
    """Every key that begins with `prefix`, sorted."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return sorted(found["Key"] for page in pages for found in page.get("Contents", []))


def written(s3: S3Client, bucket: str, prefix: str) -> dict[str, datetime]:
    """Every key that begins with `prefix`, and when it was written by the store's own clock."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {
        found["Key"]: found["LastModified"] for page in pages for found in page.get("Contents", [])
    }


def delete(s3: S3Client, bucket: str, key: str) -> None:
    """Remove `key`; one that is not there is no error."""
    s3.delete_object(Bucket=bucket, Key=key)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
