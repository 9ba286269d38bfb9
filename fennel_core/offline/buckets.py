"""Access to buckets of users, at the S3 of the platform's settings.

A failure is one of two kinds: the store refuses (`BucketRefused`, which names the bucket and the
fix, and fails the request), or it is away, which botocore's errors say and a later run may repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError
from pydantic import SecretStr

from fennel_core.connections import s3
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.s3_places import BucketKeys
from fennel_core.settings.model import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REFUSED: Final = frozenset({400, 401, 403})


class BucketRefused(OfflineError):
    """A bucket of the user cannot be used with the keys of the request. Sending it again with
    other keys or another bucket may help.
    """

    code = "offline-bucket-refused"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and the keys for it; None: those of the platform. Pickled to tasks."""

    settings: Settings
    name: str
    keys: BucketKeys | None

    def client(self) -> S3Client:
        """Return a client, which blocks."""
        return s3.client(_Access.of(self.settings, self.keys))

    @contextmanager
    def checked(self, what: str) -> Iterator[None]:
        """Raise `BucketRefused` where the store refuses `what`."""
        try:
            yield
        except FileNotFoundError as gone:
            text = f"object `{gone}` of bucket `{self.name}` was deleted while it was read"
            raise BucketRefused(f"{text}; send the request again") from gone
        except ClientError as failed:
            status = int(failed.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if status == 404:
                raise BucketRefused(
                    f"bucket `{self.name}` does not exist; create it, or correct its name"
                ) from failed
            if status in REFUSED:
                raise BucketRefused(
                    f"bucket `{self.name}` does not allow {what} with {self._keys_text()}: "
                    f"{failed.response.get('Error', {}).get('Code', status)}. "
                    "Grant it, or send the request with other keys"
                ) from failed
            raise

    def _keys_text(self) -> str:
        if self.keys is None:
            return "the platform's keys"
        return f"access key `{self.keys.access_key[:4]}…`"


@dataclass(frozen=True, slots=True)
class _Access:
    """The settings of a client with other keys."""

    s3_endpoint: str
    s3_region: str
    s3_access_key: str
    s3_secret_key: SecretStr

    @classmethod
    def of(cls, settings: Settings, keys: BucketKeys | None) -> _Access:
        own = BucketKeys(settings.s3_access_key, settings.s3_secret_key) if keys is None else keys
        return cls(settings.s3_endpoint, settings.s3_region, own.access_key, own.secret_key)
