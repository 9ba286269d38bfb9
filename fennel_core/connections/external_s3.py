"""A bucket of the user's own: its keys, its listing, and one file of it.

The connector of a definition names keys, which are opened here and nowhere else. A connector
without keys uses those of the platform, for buckets that the operator has named only. The address
of S3 is that of the installation, never a user's: a definition cannot make the platform connect
to a host of its choice.

A file is what one upload wrote: `etag` and `size_bytes` are part of its identity. Every range that
is read of it is compared with them, so a file that is overwritten in between is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.ranged_file import RangedFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros
from fennel_core.wire.connectors import S3, PlainSecret, SealedSecret

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OpenSecret = Callable[[SealedSecret], str]
"""Returns the text of a sealed secret; raises `secrets.SecretUnreadable`."""
LISTED: Final = 1000
"""Objects per request of a listing; S3's own limit."""
NOT_FOUND: Final = (404, 416)
TOO_MANY: Final = 429
OF_THE_CLIENT: Final = range(400, 500)
"""Statuses of requests that S3 does not serve, whatever its load."""


class ExternalBucketUnusable(ConnectionsError):
    """A bucket of the user's own does not exist, or refuses the keys, or S3 is away.

    The text names the connector and what to change. A retry helps if S3 was down.
    """

    code: ClassVar[str] = "source-unreachable"


class FileChanged(ConnectionsError):
    """A file was overwritten or deleted while it was read; what was read of it stays."""

    code: ClassVar[str] = "source-file-changed"


class FileRefused(ConnectionsError):
    """S3 does not give out one object: it is archived, or encrypted with a key of its own."""

    code: ClassVar[str] = "source-file-refused"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One object, as a listing names it."""

    key: str
    etag: str
    size_bytes: int
    modified_us: Micros


@dataclass(frozen=True, slots=True)
class ExternalBucket:
    """A bucket with opened keys. Fits `s3.S3Settings`; pickled to tasks."""

    connector: str
    bucket: str
    s3_endpoint: str
    s3_region: str
    s3_access_key: str
    s3_secret_key: SecretStr = field(repr=False)

    def client(self) -> S3Client:
        """Return a client, which blocks."""
        return s3.client(self)

    def files(self, client: S3Client, prefix: str) -> Iterator[list[ListedFile]]:
        """Yield the objects whose key starts with `prefix`, in pages. Raises
        `ExternalBucketUnusable`.
        """
        with self.checked("listing it"):
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": LISTED}
            )
            for page in pages:
                yield [
                    ListedFile(
                        each["Key"],
                        each["ETag"].strip('"'),
                        each["Size"],
                        Micros(int(each["LastModified"].timestamp() * 1_000_000)),
                    )
                    for each in page.get("Contents", [])
                ]

    def check(self) -> None:
        """List the bucket. Raises `ExternalBucketUnusable`; blocks."""
        with self.checked("listing it"):
            self.client().list_objects_v2(Bucket=self.bucket, MaxKeys=1)

    @contextmanager
    def checked(self, what: str) -> Iterator[None]:
        """Raise `ExternalBucketUnusable` where S3 fails or refuses `what`."""
        try:
            yield
        except ClientError as failed:
            status = int(failed.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            reason = failed.response.get("Error", {}).get("Code", str(status))
            raise ExternalBucketUnusable(
                f"connector `{self.connector}`: bucket `{self.bucket}` does not exist; create it, "
                "or correct its name"
                if status == 404
                else f"connector `{self.connector}`: bucket `{self.bucket}` does not allow {what}: "
                f"{reason}; check its keys, and what they may do"
            ) from failed
        except BotoCoreError as failed:
            raise ExternalBucketUnusable(
                f"connector `{self.connector}`: S3 at `{self.s3_endpoint}` cannot be used: {failed}"
            ) from failed


def bucket_refused(connector: S3, bucket: str, settings: Settings) -> str | None:
    """Return why a connector may not read a bucket, as the end of a sentence about its files."""
    if bucket == settings.s3_bucket:
        return "are in the bucket of the platform itself; read a bucket of your own"
    login = connector.login
    has_keys = login.user is not None or login.password is not None
    if not has_keys and bucket not in settings.source_shared_buckets:
        return (
            "need keys: give `aws_access_key_id` and `aws_secret_access_key`, or ask your "
            f"operator to name bucket `{bucket}` in FENNEL_SOURCE_SHARED_BUCKETS"
        )
    return None


def opened(
    connector: S3, bucket: str, settings: s3.S3Settings, open_secret: OpenSecret
) -> ExternalBucket:
    """Return a bucket of a connector; without keys of its own with the platform's.

    Raises `SecretUnreadable`. Which buckets may be used (`bucket_refused`) the caller checks.
    """
    login = connector.login
    if login.user is None and login.password is None:
        keys = settings.s3_access_key, settings.s3_secret_key
    else:
        keys = _text(login.user, open_secret), SecretStr(_text(login.password, open_secret))
    return ExternalBucket(
        connector.name, bucket, settings.s3_endpoint, settings.s3_region, keys[0], keys[1]
    )


def _text(credential: object, open_secret: OpenSecret) -> str:
    match credential:
        case PlainSecret(value):
            return value
        case SealedSecret():
            return open_secret(credential)
        case _:
            raise AssertionError("validation refuses half a pair, and references to other stores")


class FileBody(RangedFile):
    """The content of a file. Raises `FileChanged`, `FileRefused` and `ExternalBucketUnusable`."""

    def __init__(self, bucket: ExternalBucket, client: S3Client, file: ListedFile) -> None:
        super().__init__(file.size_bytes)
        self._bucket, self._client, self._file = bucket, client, file

    def fetch(self, first: int, size: int) -> bytes:
        file, bucket = self._file, self._bucket
        with bucket.checked("reading its files"):
            try:
                found = self._client.get_object(
                    Bucket=bucket.bucket, Key=file.key, Range=f"bytes={first}-{first + size - 1}"
                )
            except ClientError as failed:
                status = failed.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                if status in NOT_FOUND:
                    raise FileChanged("the file was deleted while it was read") from failed
                if status in OF_THE_CLIENT and status != TOO_MANY:
                    reason = failed.response.get("Error", {}).get("Code", str(status))
                    raise FileRefused(
                        f"connector `{bucket.connector}`: bucket `{bucket.bucket}` does not allow "
                        f"reading `{file.key}`: {reason}; check what the keys may do, and whether "
                        "the object is archived or encrypted with a key of its own"
                    ) from failed
                raise
            body = found["Body"].read()
        if found["ETag"].strip('"') != file.etag or len(body) != size:
            raise FileChanged("the file was overwritten while it was read")
        return body
