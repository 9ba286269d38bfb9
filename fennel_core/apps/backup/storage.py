"""Where a backup is: a folder, or a prefix in a bucket of the installation's S3.

A file is written once. Names contain `/`, and no name is the folder of another one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from fennel_core.apps.errors import BackupUnusable
from fennel_core.connections import s3
from fennel_core.connections.installation import BucketSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CHUNK_BYTES: Final = 1024 * 1024
CONNECTIONS: Final = 16


class BackupStorage(Protocol):
    """The files of one backup. Methods raise OSError, or botocore's errors."""

    def is_empty(self) -> bool:
        """Return whether there is no file at all."""
        ...

    def add(self, name: str, path: Path) -> None:
        """Store the content of `path` as `name`."""
        ...

    def chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of `name` in chunks; None if there is no such file."""
        ...


@dataclass(frozen=True, slots=True)
class FolderStorage:
    """A backup in a folder, private to its owner."""

    folder: Path

    def is_empty(self) -> bool:
        return not self.folder.exists() or not any(self.folder.iterdir())

    def add(self, name: str, path: Path) -> None:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with path.open("rb") as content, os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            file.flush()
            os.fsync(file.fileno())

    def chunks(self, name: str) -> Iterator[bytes] | None:
        path = self.folder / name
        return _chunks_of(path) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class BucketStorage:
    """A backup below a prefix of a bucket."""

    client: S3Client
    bucket: str
    prefix: str

    def is_empty(self) -> bool:
        return not s3.list_objects(self.client, self.bucket, self.prefix)

    def add(self, name: str, path: Path) -> None:
        with path.open("rb") as content:
            if not s3.put_new(self.client, self.bucket, self.prefix + name, content):
                raise FileExistsError(f"object `{self.prefix + name}` exists already")

    def chunks(self, name: str) -> Iterator[bytes] | None:
        body = s3.open_stream(self.client, self.bucket, self.prefix + name)
        return None if body is None else body.iter_chunks(CHUNK_BYTES)


def storage_at(where: str, settings: BucketSettings) -> BackupStorage:
    """Return the storage at a path or an URL `s3://bucket/prefix`; raises BackupUnusable.

    The bucket is reached with the installation's endpoint and key.
    """
    if "://" not in where:
        return FolderStorage(Path(where))
    parts = urlsplit(where)
    prefix = parts.path.strip("/") + "/"
    if parts.scheme != "s3" or not parts.netloc or prefix == "/" or parts.query or parts.fragment:
        raise BackupUnusable(
            f"`{where}` is not a place for a backup: name a folder, or s3://BUCKET/PREFIX"
        )
    if parts.netloc == settings.s3_bucket and prefix.startswith(settings.s3_prefix or "\0"):
        raise BackupUnusable(
            f"`{where}` is inside the part of the bucket that the installation uses "
            "(FENNEL_S3_PREFIX): choose another bucket or prefix"
        )
    return BucketStorage(s3.client(settings, connections=CONNECTIONS), parts.netloc, prefix)


def read_file(storage: BackupStorage, name: str) -> bytes | None:
    """Return the content of a small file; None if there is none."""
    found = storage.chunks(name)
    return None if found is None else b"".join(found)


def digest_of(storage: BackupStorage, name: str) -> tuple[int, str] | None:
    """Return size and SHA-256 (hex) of a file; None if there is none."""
    found = storage.chunks(name)
    if found is None:
        return None
    digest, size = hashlib.sha256(), 0
    for chunk in found:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
