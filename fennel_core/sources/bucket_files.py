"""Open the bucket of a source of files, and its files, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fennel_core.blueprints.streams import stream_of
from fennel_core.connections.external_s3 import (
    ExternalBucket,
    ExternalBucketUnusable,
    FileBody,
    ListedFile,
    OpenSecret,
    bucket_refused,
    opened,
)
from fennel_core.connections.stored_connectors import required
from fennel_core.settings.model import Settings
from fennel_core.sources.file_rows import FileFormat, FilePiece, file_pieces
from fennel_core.wire.connectors import S3, S3Table

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def opened_bucket(table: S3Table, settings: Settings, open_secret: OpenSecret) -> ExternalBucket:
    """Return the bucket of files.

    Raises `ExternalBucketUnusable`, `SecretUnreadable` and `ConnectorNotStored`.
    """
    db = required(S3, table.db)
    # Settings and definitions may have changed since the commit that added the source.
    refused = bucket_refused(db, table.bucket, settings)
    if refused is not None:
        raise ExternalBucketUnusable(f"{stream_of(table).title} {refused}")
    return opened(db, table.bucket, settings, open_secret)


def pieces_of(
    bucket: ExternalBucket, client: S3Client, table: S3Table, file: ListedFile, first: int = 0
) -> Iterator[FilePiece]:
    """Yield the rows of a file; as `file_rows.file_pieces`."""
    form = FileFormat(table.format, table.delimiter or ",", table.headers)
    title = f"S3 file `{bucket.bucket}/{file.key}`"
    return file_pieces(form, title, file.key, FileBody(bucket, client, file), first)
