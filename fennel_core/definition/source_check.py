"""Check that the external streams of a commit can be read, before anything exists.

A wrong address or password would otherwise be found by the process that reads the source, after the
commit has succeeded. Only sources that the commit adds or changes are checked, so a cluster that is
down does not stop other commits. The topics of the platform itself are refused whatever cluster
they are on, and so is its bucket: a workspace would read the rows of another one. Without keys a
connector of S3 may read the buckets that the operator names, because it reads with the platform's
keys. Branches with the same connector and topic share one reader, so they must agree on the
address and on the format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, assert_never

from fennel_core.blueprints.asset_names import is_asset_name
from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import StreamTable, is_scheduled, is_stream, stream_of
from fennel_core.connections import external_kafka, external_kinesis, external_s3, secrets
from fennel_core.connections.external_kafka import (
    ExternalKafkaAway,
    ExternalKafkaUnusable,
    OpenSecret,
    describe_topic,
)
from fennel_core.connections.external_kinesis import (
    ExternalKinesis,
    ExternalStreamUnusable,
    StreamThrottled,
)
from fennel_core.connections.external_s3 import ExternalBucketUnusable
from fennel_core.connections.schema_registry import RegistryClient, SchemaRegistryUnusable
from fennel_core.connections.secrets import Sealer
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.graph.delta_keys import is_delta
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.streams import format_title, without_order
from fennel_core.ledger.kafka_access import AUDIT_PREFIX
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import (
    S3,
    AvroFormat,
    FromTimestamp,
    JsonFormat,
    Kafka,
    KafkaTopic,
    Kinesis,
    KinesisStream,
    MySQLChanges,
    MySQLTable,
    PostgresChanges,
    PostgresTable,
    RecordFormat,
    S3Table,
    SealedSecret,
    Source,
)

CLOCKS_US: Final = 60_000_000
"""How far the clocks of a user and of AWS may differ."""
NOT_READ: Final = ("__", AUDIT_PREFIX)
"""The prefixes of Kafka's own topics, as `__consumer_offsets`, and of audit logs."""


def added_streams(graph: Graph, before: Collection[Source]) -> list[Source]:
    """Return the streams of a valid `graph` that are not in `before`, the branch's version.

    Tables are checked in `table_check`, `delta_check` and `changes_check`.
    """
    return [
        source
        for source in graph.sources
        if source not in before
        and is_stream(source.table)
        and not (is_scheduled(source.table) or is_delta(source))
        and not isinstance(source.table, PostgresChanges | MySQLChanges)
    ]


async def source_problems(
    added: Collection[Source],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None = None,
) -> tuple[Problem, ...]:
    """Return a problem for each of the streams `added` that cannot be read.

    `others`: the catalogs of the workspace's other branches. `settings` None: of a program without
    an installation, which reads no bucket.
    """
    found: list[Problem] = []
    reached: dict[StreamTable, Source] = {}
    for source in added:
        assert is_stream(source.table), "streams only"
        if isinstance(source.table, KafkaTopic):
            found += _disagreements(source, source.table, others)
        elif isinstance(source.table, S3Table):
            found += _other_orders(source, source.table, others)
        refused = _not_allowed(source.table, settings)
        if refused is None:
            reached.setdefault(source.table, source)
        else:
            text = f"Dataset `{source.dataset}`: {stream_of(source.table).title} {refused}"
            found.append(Problem("connector-not-served", source.dataset, text))
    places: dict[object, list[tuple[StreamTable, Source]]] = {}
    for table, source in reached.items():
        places.setdefault(table.db, []).append((table, source))
    asked = [
        partial(_unreachable_of, each, workspace, sealer, settings) for each in places.values()
    ]
    for each, result in zip(places.values(), await answers(asked), strict=True):
        found += (
            [_not_answered(table, source) for table, source in each] if result is None else result
        )
    return tuple(found)


def _not_answered(table: StreamTable, source: Source) -> Problem:
    text = (
        f"Dataset `{source.dataset}`: connector `{table.db.name}` of {stream_of(table).title} was "
        f"not reached in {REACHED_S:.0f} s; check its address, and commit again"
    )
    return Problem("source-unreachable", source.dataset, text)


def _disagreements(
    source: Source, table: KafkaTopic, others: Mapping[BranchName, Catalog]
) -> Iterator[Problem]:
    own = _address(table)
    for branch, catalog in others.items():
        tables = [binding.source.table for binding in catalog.sources]
        addresses = {
            _address(each)
            for each in tables
            if isinstance(each, KafkaTopic)
            and (each.db.name, each.topic) == (table.db.name, table.topic)
        }
        for other in sorted(addresses - {own}):
            text = (
                f"Dataset `{source.dataset}`: connector `{table.db.name}` of Kafka topic "
                f"`{table.topic}` leads to `{own}`, and in branch `{branch}` to `{other}`; "
                "branches share what they read, so give it the same address and format, or another "
                "name"
            )
            yield Problem("connector-redefined", source.dataset, text)


def _other_orders(
    source: Source, table: S3Table, others: Mapping[BranchName, Catalog]
) -> Iterator[Problem]:
    for branch, catalog in others.items():
        if any(
            isinstance(each.source.table, S3Table)
            and without_order(each.source.table) == without_order(table)
            and each.source.table.presorted != table.presorted
            for each in catalog.sources
        ):
            text = (
                f"Dataset `{source.dataset}`: the files of connector `{table.db.name}` are read "
                f"with `presorted={table.presorted}`, and in branch `{branch}` with "
                f"`presorted={not table.presorted}`; branches "
                "share what they read, so give both the same, or the connector another name"
            )
            yield Problem("connector-redefined", source.dataset, text)


def _address(table: KafkaTopic) -> str:
    """Return what readers of a topic must agree on, for people."""
    assert isinstance(table.db, Kafka), "names are resolved before"
    return f"{table.db.bootstrap_servers}{format_title(table.format)}"


def _not_allowed(table: StreamTable, settings: Settings | None) -> str | None:
    """Return why a stream is no source of a user, as the end of a sentence about it."""
    match table:
        case KafkaTopic():
            if is_platform_topic(table.topic):
                return (
                    "belongs to a platform like this one, or to Kafka itself, and is no source; "
                    "read a topic of your own"
                )
        case S3Table():
            if settings is None:
                return "cannot be read by a program without an installation"
            assert isinstance(table.db, S3), "names are resolved before"
            return external_s3.bucket_refused(table.db, table.bucket, settings)
        case KinesisStream():
            if settings is None:
                return "cannot be read by a program without an installation"
            assert isinstance(table.db, Kinesis), "validation refuses connectors by name"
            return external_kinesis.role_refused(table.db, settings)
        case PostgresTable() | MySQLTable() | PostgresChanges() | MySQLChanges():
            raise AssertionError("tables have checks of their own")
        case unreachable:
            assert_never(unreachable)
    return None


def is_platform_topic(topic: str) -> bool:
    """Return whether a topic is named as those of a platform, or as Kafka's own."""
    return is_asset_name(topic) or topic.startswith(NOT_READ)


def secret_opener(workspace: WorkspaceId, sealer: Sealer | None) -> OpenSecret:
    """Return what opens the sealed secrets of a workspace."""

    def open_secret(secret: SealedSecret) -> str:
        if sealer is None:
            raise SecretsNotConfigured
        return sealer.open(workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    return open_secret


def _unreachable_of(
    streams: Sequence[tuple[StreamTable, Source]],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None,
) -> list[Problem]:
    """Return the problems of streams of one connector. A cluster that is away is asked once."""
    open_secret = secret_opener(workspace, sealer)
    found: list[Problem] = []
    away: ExternalKafkaAway | None = None
    for table, source in streams:
        try:
            if away is not None:
                raise away
            _reach(table, open_secret, settings, workspace)
        except (
            *(ExternalKafkaUnusable, ExternalBucketUnusable),
            *(ExternalStreamUnusable, StreamThrottled),
        ) as unusable:
            away = unusable if isinstance(unusable, ExternalKafkaAway) else None
            text = f"Dataset `{source.dataset}`: {unusable}"
            found.append(Problem("source-unreachable", source.dataset, text))
        try:
            if isinstance(table, KafkaTopic):
                _check_registry(table.format, open_secret)
        except SchemaRegistryUnusable as unusable:
            text = f"Dataset `{source.dataset}`: {unusable}"
            found.append(Problem("schema-registry-unreachable", source.dataset, text))
    return found


def _reach(
    table: StreamTable, open_secret: OpenSecret, settings: Settings | None, workspace: WorkspaceId
) -> None:
    """Reach a stream. Raises `ExternalKafkaUnusable`, `ExternalBucketUnusable`,
    `ExternalStreamUnusable` and `StreamThrottled`.
    """
    match table:
        case KafkaTopic():
            assert isinstance(table.db, Kafka), "names are resolved before"
            describe_topic(external_kafka.opened(table.db, open_secret), table.topic)
        case S3Table():
            assert isinstance(table.db, S3), "names are resolved before"
            assert settings is not None, "files are not allowed without an installation"
            external_s3.opened(table.db, table.bucket, settings, open_secret).check()
        case KinesisStream():
            assert isinstance(table.db, Kinesis), "validation refuses connectors by name"
            assert settings is not None, "streams are not allowed without an installation"
            stream = external_kinesis.opened(table.db, table.stream_arn, settings, workspace)
            _reach_kinesis(table, stream)
        case PostgresTable() | MySQLTable() | PostgresChanges() | MySQLChanges():
            raise AssertionError("tables have checks of their own")
        case unreachable:
            assert_never(unreachable)


def _reach_kinesis(table: KinesisStream, stream: ExternalKinesis) -> None:
    """Reach a stream of Kinesis. Raises `ExternalStreamUnusable` and `StreamThrottled`."""
    facts, first = stream.check(), table.init_position
    if isinstance(first, FromTimestamp) and first.at_us > facts.now_us + CLOCKS_US:
        raise ExternalStreamUnusable(
            f"connector `{stream.connector}`: the `init_position` of stream `{stream.name}` is in "
            "the future; give `latest`, or a time that has come"
        )


def _check_registry(record_format: RecordFormat, open_secret: OpenSecret) -> None:
    """Reach the registry of a format, if it has one. Raises `SchemaRegistryUnusable`."""
    if isinstance(record_format, JsonFormat):
        return
    client = RegistryClient.of(record_format.registry, open_secret)
    try:
        client.check("AVRO" if isinstance(record_format, AvroFormat) else "PROTOBUF")
    finally:
        client.close()
