"""Tables of Delta Lake in buckets of users: addresses, keys and errors for delta-rs.

A commit to a Delta table is the creation of one object, the next number of its log. So two writers
need a store that creates an object only if it does not exist (`If-None-Match: *`), as S3 does since
2024; `require_conditional_put` tries it, because a store that ignores the condition would let two
writers commit the same number, and the first commit would be lost.

The address of S3 is the installation's; keys are those of the bucket (`external_s3.opened`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import ClassVar, Final

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema as DeltaSchema

from fennel_core.connections import external_s3
from fennel_core.connections.delta_log import LogUnreadable, TableHead, table_head
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_s3 import ExternalBucket, OpenSecret
from fennel_core.connections.stored_connectors import required
from fennel_core.settings.model import Settings
from fennel_core.wire.connectors import S3, S3Table

OWNER: Final = "fennel.sink"
"""The property of a table with the sink that made it: a table has the changes of one sink."""
PROBE: Final = "_fennel/conditional_put"
"""An empty object below a table that shows whether the store creates objects conditionally. Readers
and VACUUM leave names out that begin with `_`."""
REFUSED: Final = ("PreconditionFailed", "ConditionalRequestConflict")
TRIES: Final = 3
TIMEOUT_S: Final = 30
TEXT_CHARS: Final = 300
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class ExternalTableUnusable(ConnectionsError):
    """A Delta table of a user's own cannot be opened or written.

    The text names the connector, the table and what to change. A retry helps if S3 was down.
    """

    code: ClassVar[str] = "table-unusable"


@dataclass(frozen=True, slots=True)
class ExternalDelta:
    """A place of a Delta table: the folder `path` of a bucket, without slashes at its ends."""

    bucket: ExternalBucket
    path: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket.bucket}/{self.path}"

    def options(self) -> dict[str, str]:
        """Return what delta-rs needs to reach the bucket."""
        own = self.bucket
        return {
            "AWS_ENDPOINT_URL": own.s3_endpoint,
            "AWS_REGION": own.s3_region,
            "AWS_ACCESS_KEY_ID": own.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": own.s3_secret_key.get_secret_value(),
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "AWS_ALLOW_HTTP": "true" if own.s3_endpoint.startswith("http:") else "false",
            # No other log store: not DynamoDB, whatever the environment says.
            "AWS_CONDITIONAL_PUT": "etag",
            "max_retries": str(TRIES),
            "retry_timeout": f"{TIMEOUT_S}s",
            "timeout": f"{TIMEOUT_S}s",
            "connect_timeout": "5s",
        }

    def table(self) -> DeltaTable | None:
        """Return the table at its newest version, None if there is none.

        Raises `ExternalTableUnusable`; blocks.
        """
        with self.checked("cannot be opened"):
            try:
                return DeltaTable(self.uri, storage_options=self.options())
            except TableNotFoundError:
                return None

    def head(self) -> TableHead:
        """Return the newest version of a table that must exist. Raises `ExternalTableUnusable`."""
        table = self.table()
        if table is None:
            raise ExternalTableUnusable(
                f"{self.title} does not exist; create it, or correct `prefix` or `path`"
            )
        with self.checked("cannot be read"):
            return table_head(table)

    def parent(self) -> str | None:
        """Return the folder above this table that has a table of its own, None if there is none."""
        client, parts = self.bucket.client(), self.path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            with self.bucket.checked("listing it"):
                found = client.list_objects_v2(
                    Bucket=self.bucket.bucket, Prefix=f"{folder}/_delta_log/", MaxKeys=1
                )
            if found["KeyCount"]:
                return folder
        return None

    def require_conditional_put(self) -> None:
        """Raise `ExternalTableUnusable` unless the store creates an object only once."""
        client, key = self.bucket.client(), f"{self.path}/{PROBE}"
        for _ in range(2):
            try:
                client.put_object(Bucket=self.bucket.bucket, Key=key, Body=b"", IfNoneMatch="*")
            except ClientError as failed:
                reason = failed.response.get("Error", {}).get("Code", "")
                if reason in REFUSED:
                    return
                if reason == "NotImplemented":
                    break
                raise ExternalTableUnusable(
                    f"{self.title} cannot be written: {reason}; check that the bucket exists and "
                    "what its keys may do: list, get, put and delete objects"
                ) from failed
            except BotoCoreError as failed:
                raise ExternalTableUnusable(
                    f"{self.title}: S3 at `{self.bucket.s3_endpoint}` cannot be used: {failed}"
                ) from failed
        raise ExternalTableUnusable(
            f"{self.title}: the store overwrites an object that was to be created only if it did "
            "not exist (`If-None-Match: *`), so two writers could lose changes; use a store that "
            "serves conditional writes, as S3 does"
        )

    @property
    def title(self) -> str:
        return f"connector `{self.bucket.connector}`: Delta table `{self.uri}`"

    @contextmanager
    def checked(self, what: str) -> Iterator[None]:
        """Raise `ExternalTableUnusable` where delta-rs or S3 fail; `what`: the verb about it.

        A commit that lost against another one (`CommitFailedError`) is the caller's.
        """
        try:
            yield
        except CommitFailedError:
            raise
        except (LogUnreadable, DeltaError, OSError, ValueError) as failed:
            raise ExternalTableUnusable(f"{self.title} {what}: {text_of(failed)}") from failed


def delta_place(table: S3Table, settings: Settings, open_secret: OpenSecret) -> ExternalDelta:
    """Return the place of a table: with the keys of its stored connector, else the platform's.

    Which buckets may be used (`delta_refused`) the caller checks. Raises `SecretUnreadable` and
    `ConnectorNotStored`.
    """
    bucket = external_s3.opened(required(S3, table.db), table.bucket, settings, open_secret)
    return ExternalDelta(bucket, table.prefix.strip("/"))


def source_place(bucket: ExternalBucket, table: S3Table) -> ExternalDelta:
    """Return the place of a table that a source reads with the keys of its connector."""
    return ExternalDelta(bucket, table.prefix.strip("/"))


def delta_refused(table: S3Table, settings: Settings) -> str | None:
    """Return why a table may not be written, as the end of a sentence about it."""
    if table.bucket == settings.s3_bucket:
        return "is in the bucket of the platform itself; write to a bucket of your own"
    has_keys = isinstance(table.db, S3) and table.db.login.user is not None
    if not has_keys and table.bucket not in settings.sink_shared_buckets:
        return (
            "would be written with the platform's S3 keys (the client allows a sink no others), "
            f"so ask your operator to name bucket `{table.bucket}` in FENNEL_SINK_SHARED_BUCKETS, "
            f"or store keys: fennel-core connector add {quote(table.db.name)} s3"
        )
    return None


def other_columns(table: DeltaTable, columns: pa.Schema) -> list[str]:
    """Return the columns that only one of both has, or that have another type there."""
    own = {each.name: each.type for each in DeltaSchema.from_arrow(columns).fields}
    found = {each.name: each.type for each in table.schema().fields}
    return sorted(name for name in own | found if own.get(name) != found.get(name))


def text_of(failed: Exception) -> str:
    """Return the text of an error of delta-rs, in one short line without colours."""
    # The body of a response of S3 may have the access key.
    text = str(failed).partition("<?xml")[0].partition("<Error")[0]
    return " ".join(_COLOURS.sub("", text).replace("↳", "").split())[:TEXT_CHARS]
