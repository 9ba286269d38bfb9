"""Where an export is written: a folder, or a prefix of a bucket with the user's own AWS keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from fennel_core.connections import s3
from fennel_core.dataframes.export import ExportPlace
from fennel_core.history.errors import ExportFailed

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PIECE_BYTES: Final = 8 << 20
"""What a copy of a file holds in memory."""


def place_at(target: str) -> ExportPlace:
    """Return the place that a user names: a folder, or `s3://bucket/prefix`. ExportFailed."""
    if "://" not in target:
        return FolderPlace(Path(target))
    found = urlsplit(target)
    if found.scheme != "s3" or not found.netloc or not found.path.strip("/"):
        raise ExportFailed(
            f"`{target}` is neither a folder nor an address like s3://bucket/prefix; name one"
        )
    return BucketPlace(_client(), found.netloc, found.path.strip("/"))


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder, which is created."""

    folder: Path

    def require_empty(self) -> None:
        """See `ExportPlace.require_empty`."""
        with _named(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise ExportFailed(f"{self.folder} is not empty; name a new folder")

    def write(self, name: str, content: Path | bytes) -> None:
        """See `ExportPlace.write`; a file is whole, or has another name until it is removed."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        with _named(str(path)):
            path.parent.mkdir(exist_ok=True)
            try:
                _write_synced(part, content)
                part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                if path.parent != self.folder and not any(path.parent.iterdir()):
                    path.parent.rmdir()
                raise

    def remove(self, name: str) -> None:
        """See `ExportPlace.remove`."""
        with _named(str(self.folder / name)):
            (self.folder / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A prefix of a bucket."""

    client: S3Client
    bucket: str
    prefix: str

    def require_empty(self) -> None:
        """See `ExportPlace.require_empty`."""
        with _named(self._address("")):
            found = self.client.list_objects_v2(
                Bucket=self.bucket, Prefix=f"{self.prefix}/", MaxKeys=1
            )
        if found.get("KeyCount"):
            raise ExportFailed(f"{self._address('')} is not empty; name a new prefix")

    def write(self, name: str, content: Path | bytes) -> None:
        """See `ExportPlace.write`."""
        with _named(self._address(name)):
            if isinstance(content, Path):
                with content.open("rb") as body:
                    self.client.upload_fileobj(body, self.bucket, self._key(name))
            elif not s3.put_new(self.client, self.bucket, self._key(name), content):
                raise ExportFailed(f"{self._address(name)} was written by another; name a new one")

    def remove(self, name: str) -> None:
        """See `ExportPlace.remove`."""
        with _named(self._address(name)):
            self.client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def _address(self, name: str) -> str:
        return f"s3://{self.bucket}/{self._key(name)}"


def _write_synced(path: Path, content: Path | bytes) -> None:
    with path.open("wb") as file:
        for piece in _pieces(content):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _pieces(content: Path | bytes) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Raise ExportFailed with the place for errors of files and of S3."""
    try:
        yield
    except OSError as failed:
        raise ExportFailed(
            f"{place} cannot be written: {failed.strerror}; free some space, or name another place"
        ) from failed
    except (ClientError, BotoCoreError) as failed:
        raise ExportFailed(
            f"{place} cannot be written: {failed}; check bucket and keys "
            "(AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL)"
        ) from failed


def _client() -> S3Client:
    """Return a client with the keys and the endpoint of the environment, as AWS' tools use them."""
    return boto3.client(
        "s3",
        config=Config(
            s3={"addressing_style": "path"} if os.environ.get("AWS_ENDPOINT_URL") else {},
            # As `connections.s3`: compatible stores know no trailing checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
