"""A Kinesis stream of the user's own: the role that reads it, its shards, and their records.

The connector of a definition names a role, which the platform assumes with the installation's own
credentials, so the operator names the roles that may be assumed. The workspace is the external id:
the trust policy of a role can demand one. The address of AWS follows from the region in the ARN, or
is a setting of the installation, never a user's.

What AWS says is data of this module's own types; `records` and `iterator` are one request each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from fennel_core.connections.errors import ConnectionsError
from fennel_core.settings.model import Settings
from fennel_core.vocab.aws_arns import STREAM_ARN
from fennel_core.vocab.ids import Micros, WorkspaceId
from fennel_core.wire.connectors import Kinesis

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

SHARD_ID: Final = re.compile(r"shardId-([0-9]{12})")
CONNECT_S: Final = 5
READ_S: Final = 30
ATTEMPTS: Final = 3
"""Of one request: botocore waits between them, longer each time, also when it is throttled."""
SESSION_S: Final = 3600
"""How long the credentials of a role are valid; they are asked for again before their end."""
EXTERNAL_ID: Final = re.compile(r"[^\w+=,.@:/-]")
"""What an external id cannot have."""
THROTTLES: Final = frozenset(
    ("ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException",
     "KMSThrottlingException", "RequestLimitExceeded")
)  # fmt: skip


class ExternalStreamUnusable(ConnectionsError):
    """A stream does not exist, the role is refused or may not read it, or AWS is away.

    The text names the connector and what to change. A retry helps if AWS was down.
    """

    code: ClassVar[str] = "source-unreachable"


class StreamThrottled(ConnectionsError):
    """Others read the stream, too, and AWS refuses more requests for now; ask again later."""

    code: ClassVar[str] = "source-throttled"


class IteratorExpired(ConnectionsError):
    """A shard iterator is older than five minutes; ask for another one."""

    code: ClassVar[str] = "source-iterator-expired"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a stream is: `created_us` differs if it is deleted and created again."""

    created_us: Micros
    retention_us: int
    now_us: Micros
    """By the clock of AWS, in whole seconds: never later than it is."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, open or closed. `parents`: those that it came from, whether they exist or not.

    It has the records whose hash keys are from `first_hash` to `last_hash`.
    """

    number: int
    parents: tuple[int, ...] = ()
    first_hash: int = 0
    last_hash: int = 2**128 - 1


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A record as it was put. `sequence` ascends in a shard; it is a number of some 56 digits."""

    sequence: str
    arrived_us: Micros
    data: bytes


@dataclass(frozen=True, slots=True)
class ShardRecords:
    """What one request returned. `following`: the next iterator; None at the end of the shard."""

    records: Sequence[ShardRecord]
    following: str | None
    behind_ms: int
    """How far behind the newest record of the shard the request was."""
    now_us: Micros


@dataclass(frozen=True, slots=True)
class FromOldest:
    """The oldest record that the shard still has."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """The first record that arrived at this time or later."""

    at_us: Micros


@dataclass(frozen=True, slots=True)
class FromSequence:
    """The record with this number, or the one `behind` it; the oldest if it is gone."""

    sequence: str
    behind: bool


ShardStart = FromOldest | FromTime | FromSequence


class ShardStore(Protocol):
    """A stream. Every method blocks, and raises `ExternalStreamUnusable` and `StreamThrottled`."""

    def describe(self) -> StreamFacts: ...

    def shards(self) -> list[Shard]:
        """Return all shards that have records or may get some, in the order of their numbers."""
        ...

    def iterator(self, shard: int, start: ShardStart) -> str: ...

    def records(self, iterator: str, limit: int) -> ShardRecords:
        """Return records in order; none says nothing about the end. Raises `IteratorExpired`."""
        ...


def shard_id(number: int) -> str:
    """Return the name of a shard."""
    return f"shardId-{number:012d}"


def stream_name(arn: str) -> str:
    """Return the name in the ARN of a stream; the text itself if it is none."""
    found = STREAM_ARN.fullmatch(arn)
    return arn if found is None else found[3]


@dataclass(frozen=True, slots=True)
class ExternalKinesis:
    """How a stream is reached. Pickled to tasks; hashed by what it is."""

    connector: str
    arn: str
    role_arn: str
    external_id: str
    kinesis_endpoint: str
    sts_endpoint: str
    access_key: str
    secret_key: SecretStr = field(repr=False)

    @property
    def name(self) -> str:
        return stream_name(self.arn)

    def check(self) -> StreamFacts:
        """Use every right that reading needs, and return what the stream is.

        Raises `ExternalStreamUnusable` and `StreamThrottled`.
        """
        store = self.open()
        facts = store.describe()
        for shard in store.shards()[:1]:
            store.records(store.iterator(shard.number, FromOldest()), 1)
        return facts

    def open(self) -> KinesisStore:
        """Return the stream; nothing is asked yet."""
        return KinesisStore(self, self._client())

    def _client(self) -> KinesisClient:
        found = STREAM_ARN.fullmatch(self.arn)
        assert found is not None, "validation refuses other ARNs"
        region = found[1]
        own = boto3.Session(
            aws_access_key_id=self.access_key or None,
            aws_secret_access_key=self.secret_key.get_secret_value() or None,
            region_name=region,
        )
        # botocore's own way to assume a role with given credentials and to renew them; boto3 has
        # it for profiles in a file only.
        source = own.get_credentials()
        if source is None:
            raise ExternalStreamUnusable(
                f"connector `{self.connector}`: this installation has no credentials of AWS to "
                "assume a role with; set FENNEL_AWS_ACCESS_KEY and FENNEL_AWS_SECRET_KEY, or give "
                "its machines a role"
            )

        def sts(service: str, **given: Any) -> Any:
            given |= {"region_name": region, "config": _config()}
            return boto3.Session().client(
                cast(Any, service), endpoint_url=self.sts_endpoint or None, **given
            )

        fetcher = AssumeRoleCredentialFetcher(
            sts,
            source,
            self.role_arn,
            extra_args={
                "RoleSessionName": "fennel-core",
                "ExternalId": self.external_id,
                "DurationSeconds": SESSION_S,
            },
        )
        assumed = botocore.session.get_session()
        # There is no public way to give a session credentials that renew themselves.
        assumed._credentials = DeferredRefreshableCredentials(  # type: ignore[attr-defined]  # private
            method="assume-role", refresh_using=fetcher.fetch_credentials
        )
        return boto3.Session(botocore_session=assumed).client(
            "kinesis",
            region_name=region,
            endpoint_url=self.kinesis_endpoint or None,
            config=_config(),
        )

    @contextmanager
    def checked(self, what: str) -> Iterator[None]:
        """Raise the errors of this module where AWS fails or refuses `what`."""
        try:
            yield
        except ClientError as failed:
            code = failed.response.get("Error", {}).get("Code", "")
            title = f"connector `{self.connector}`"
            if code in THROTTLES:
                raise StreamThrottled(
                    f"{title}: AWS refuses {what} of stream `{self.name}` for now: {code}; other "
                    "programs read it, too"
                ) from failed
            if code == "ExpiredIteratorException":
                raise IteratorExpired(f"{title}: {failed}") from failed
            if failed.operation_name == "AssumeRole":
                raise ExternalStreamUnusable(
                    f"{title}: role `{self.role_arn}` cannot be assumed: {code}; check its trust "
                    f"policy, which may demand the external id `{self.external_id}`"
                ) from failed
            if code == "ResourceNotFoundException":
                raise ExternalStreamUnusable(
                    f"{title}: stream `{self.arn}` does not exist, or a shard of it is gone; "
                    "create it, or correct its ARN"
                ) from failed
            raise ExternalStreamUnusable(
                f"{title}: stream `{self.name}` does not allow {what}: {code}; check what role "
                f"`{self.role_arn}` may do"
            ) from failed
        except BotoCoreError as failed:
            raise ExternalStreamUnusable(
                f"connector `{self.connector}`: AWS cannot be used for stream `{self.name}`: "
                f"{failed}"
            ) from failed


class KinesisStore:
    """See `ShardStore`."""

    def __init__(self, stream: ExternalKinesis, client: KinesisClient) -> None:
        self._stream, self._client = stream, client

    def describe(self) -> StreamFacts:
        with self._stream.checked("describing"):
            found = self._client.describe_stream_summary(StreamARN=self._stream.arn)
        summary = found["StreamDescriptionSummary"]
        return StreamFacts(
            _micros(summary["StreamCreationTimestamp"]),
            summary["RetentionPeriodHours"] * 3_600_000_000,
            _date(found),
        )

    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        asked: dict[str, Any] = {"StreamARN": self._stream.arn}
        while True:
            with self._stream.checked("listing the shards"):
                page = self._client.list_shards(**asked)
            found += [self._shard(each) for each in page["Shards"]]
            if not page.get("NextToken"):
                return sorted(found, key=lambda shard: shard.number)
            asked = {"StreamARN": self._stream.arn, "NextToken": page["NextToken"]}

    def iterator(self, shard: int, start: ShardStart) -> str:
        given: dict[str, Any]
        match start:
            case FromOldest():
                given = {"ShardIteratorType": "TRIM_HORIZON"}
            case FromTime(at_us):
                at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
                given = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
            case FromSequence(sequence, behind):
                kind = "AFTER_SEQUENCE_NUMBER" if behind else "AT_SEQUENCE_NUMBER"
                given = {"ShardIteratorType": kind, "StartingSequenceNumber": sequence}
        with self._stream.checked("reading"):
            found = self._client.get_shard_iterator(
                StreamARN=self._stream.arn, ShardId=shard_id(shard), **given
            )
        return found["ShardIterator"]

    def records(self, iterator: str, limit: int) -> ShardRecords:
        with self._stream.checked("reading"):
            found = self._client.get_records(
                StreamARN=self._stream.arn, ShardIterator=iterator, Limit=limit
            )
        records = [
            ShardRecord(
                each["SequenceNumber"],
                _micros(each["ApproximateArrivalTimestamp"]),
                bytes(each["Data"]),
            )
            for each in found["Records"]
        ]
        following = found.get("NextShardIterator") or None
        return ShardRecords(records, following, found.get("MillisBehindLatest", 0), _date(found))

    def _shard(self, found: Any) -> Shard:
        parents = (found.get("ParentShardId"), found.get("AdjacentParentShardId"))
        hashes = found["HashKeyRange"]
        return Shard(
            self._number(found["ShardId"]),
            tuple(self._number(each) for each in parents if each),
            int(hashes["StartingHashKey"]),
            int(hashes["EndingHashKey"]),
        )

    def _number(self, shard: str) -> int:
        found = SHARD_ID.fullmatch(shard)
        if found is None:
            raise ExternalStreamUnusable(
                f"connector `{self._stream.connector}`: stream `{self._stream.name}` has a shard "
                f"`{shard}`, and AWS names shards `shardId-` and 12 digits; this platform knows "
                "them by these digits"
            )
        return int(found[1])


def role_refused(connector: Kinesis, settings: Settings) -> str | None:
    """Return why the platform does not assume a connector's role, as the end of a sentence."""
    if connector.role_arn in settings.source_roles:
        return None
    return (
        f"is read with role `{connector.role_arn}`, which your operator has not named in "
        "FENNEL_SOURCE_ROLES; ask for it, as the platform assumes no other role"
    )


def opened(
    connector: Kinesis, arn: str, settings: Settings, workspace: WorkspaceId
) -> ExternalKinesis:
    """Return how a stream is reached. Which roles may be assumed the caller checks."""
    return ExternalKinesis(
        connector.name,
        arn,
        connector.role_arn,
        EXTERNAL_ID.sub("-", f"fennel-{workspace}"),
        settings.kinesis_endpoint,
        settings.sts_endpoint,
        settings.aws_access_key,
        settings.aws_secret_key,
    )


def _config() -> Config:
    return Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )


def _micros(at: datetime) -> Micros:
    return Micros(int(at.timestamp() * 1_000_000))


def _date(response: Any) -> Micros:
    """Return the time of a response by the clock of AWS; by that of this machine without one."""
    headers = response["ResponseMetadata"]["HTTPHeaders"]
    given = headers.get("date")
    at = datetime.now(UTC).replace(microsecond=0) if not given else parsedate_to_datetime(given)
    return _micros(at)
