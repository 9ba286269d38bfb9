"""Copy a result to a user's bucket, under names that do not depend on the run.

Theory. A run computes its result in the bucket of the platform, where attempts of tasks have names
of their own. Only whole results are copied: file n of the result is `part-<n>.parquet`. A run that
is repeated deletes what an earlier one has copied, so a reader never sees a row twice. The marker
`_SUCCESS` is written last: a folder without it is not complete.

    <prefix>/<request>/part-00000.parquet            timestamp column, outputs
    <prefix>/<request>/_failed/part-00000.parquet    number of the row, reason
    <prefix>/<request>/_SUCCESS
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from fennel_core.connections import s3
from fennel_core.offline.buckets import Bucket
from fennel_core.offline.results import ResultFiles
from fennel_core.offline.s3_places import published_key
from fennel_core.settings.model import Settings

SUCCESS: Final = "_SUCCESS"
COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Publication:
    """The folder of a result in a user's bucket: `prefix` ends with a slash."""

    settings: Settings
    bucket: Bucket
    prefix: str

    def begin(self) -> None:
        """Write an empty folder without its marker, so that a bucket that takes no objects is
        noticed before the work. Raises `BucketRefused` and botocore's errors.
        """
        with self.bucket.checked("writing"):
            client = self.bucket.client()
            client.put_object(Bucket=self.bucket.name, Key=f"{self.prefix}_STARTED", Body=b"")

    def clear(self) -> None:
        """Delete what an earlier run has copied, whose files may have been cut elsewhere. Raises as
        `begin`.
        """
        with self.bucket.checked("listing and deleting"):
            client = self.bucket.client()
            for each in s3.list_objects(client, self.bucket.name, self.prefix):
                s3.delete(client, self.bucket.name, each.key)

    def publish(self, result: ResultFiles, check: Callable[[], None]) -> None:
        """Copy a result. `check` raises if the run must stop; raises as `begin`."""
        for number, file in enumerate(result.files):
            for key, failed in ((file.object_key, False), (file.failed_key, True)):
                if key:
                    check()
                    self._copy(key, published_key(self.prefix, number, failed=failed))
        check()
        with self.bucket.checked("writing"):
            client = self.bucket.client()
            client.put_object(Bucket=self.bucket.name, Key=f"{self.prefix}{SUCCESS}", Body=b"")

    def _copy(self, key: str, target: str) -> None:
        with TemporaryFile(prefix="fennel-publish-") as copy:
            self._fetch(key, copy)
            with self.bucket.checked("writing"):
                self.bucket.client().put_object(Bucket=self.bucket.name, Key=target, Body=copy)

    def _fetch(self, key: str, copy: BinaryIO) -> None:
        body = s3.open_stream(s3.client(self.settings), self.settings.s3_bucket, key)
        assert body is not None, "this run has just written it"
        shutil.copyfileobj(body, copy, COPY_BYTES)
        copy.seek(0)
