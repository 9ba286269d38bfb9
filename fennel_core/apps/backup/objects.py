"""The objects of an installation on S3 in a backup: everything below its own prefix.

Objects are immutable and named uniquely, so each is copied once, in any order, several at a time.
Keys in rows and manifests are relative to the prefix, so a restore may use another bucket.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from fennel_core.apps.backup.manifest import BackupFile
from fennel_core.apps.backup.storage import CHUNK_BYTES, CONNECTIONS, BackupStorage
from fennel_core.apps.errors import BackupFailed, RestoreFailed
from fennel_core.connections import s3

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART: Final = "objects"
AT_ONCE: Final = CONNECTIONS // 2


def save_objects(
    client: S3Client, bucket: str, root: str, storage: BackupStorage, scratch: Path
) -> list[BackupFile]:
    """Copy every object below `root` into the backup; return the files by name."""
    keys = [each.key.removeprefix(root) for each in s3.list_objects(client, bucket, root)]

    def save(key: str) -> BackupFile:
        body = s3.open_stream(client, bucket, root + key)
        if body is None:
            raise BackupFailed(
                f"object `{root}{key}` was deleted during the backup: a server still runs; stop "
                "all servers and take the backup again"
            )
        digest, size, name = hashlib.sha256(), 0, f"{PART}/{key}"
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            for chunk in body.iter_chunks(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            file.flush()
            storage.add(name, Path(file.name))
        return BackupFile(name, size, digest.hexdigest())

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(save, keys))


def restore_objects(
    client: S3Client,
    bucket: str,
    root: str,
    storage: BackupStorage,
    keys: Sequence[str],
    scratch: Path,
) -> None:
    """Write every object of the backup below `root`, which is empty."""

    def restore(key: str) -> None:
        chunks = storage.chunks(f"{PART}/{key}")
        if chunks is None:
            raise RestoreFailed(f"{PART}/{key} has disappeared from the backup: start again")
        with tempfile.TemporaryFile(dir=scratch) as file:
            for chunk in chunks:
                file.write(chunk)
            file.seek(0)
            # False if the response to a first attempt was lost: nothing else writes below `root`.
            s3.put_new(client, bucket, root + key, cast(BinaryIO, file))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(restore, keys))


def delete_objects(client: S3Client, bucket: str, root: str) -> None:
    """Delete every object below `root`."""
    for each in s3.list_objects(client, bucket, root):
        s3.delete(client, bucket, each.key)
