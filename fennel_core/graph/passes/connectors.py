"""Check that a connector's name means one thing, and that a dataset reads an endpoint or a stream
once.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import (
    Database,
    KafkaTopic,
    KinesisStream,
    MySQLChanges,
    MySQLTable,
    PostgresChanges,
    PostgresTable,
    S3Table,
    Sink,
    Source,
    Table,
    WebhookEndpoint,
)


def one_definition_per_connector(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per connector that is defined again with other parameters, and per endpoint
    that is a source of one dataset twice.

    An incremental commit may change a connector although datasets that it does not contain still
    have the earlier definition, so only sources and sinks of this commit are compared.
    """
    known: dict[str, Database] = {}
    reported: set[str] = set()
    for use in _uses(graph, before):
        database = use.table.db
        first = known.setdefault(database.name, database)
        if first != database and database.name not in reported:
            reported.add(database.name)
            text = (
                f"connector `{database.name}` is defined twice with different parameters, the "
                f"second time for dataset `{use.dataset}`; give one of them another name"
            )
            yield Problem("connector-redefined", database.name, text)
    for dataset in graph.datasets:
        read = [_what(source.table) for source in graph.sources_of(dataset.name)]
        for what in sorted({each for each in read if each is not None and read.count(each) > 1}):
            text = (
                f"Dataset `{dataset.name}` has two sources of {what}, so each row would arrive "
                "twice; give each its own env"
            )
            yield Problem("source-twice", dataset.name, text)


def _what(table: Table) -> str | None:
    """Return what a source reads, if a dataset may read it once only."""
    match table:
        case WebhookEndpoint():
            return f"webhook endpoint `{table.db.name}/{table.endpoint}`"
        case KafkaTopic():
            return f"Kafka topic `{table.db.name}/{table.topic}`"
        case KinesisStream():
            return f"Kinesis stream `{table.db.name}/{table.stream_arn}`"
        case S3Table():
            path = f"{table.bucket}/{table.prefix}{table.suffix}"
            return f"{table.format} files `{table.db.name}/{path}`"
        case PostgresTable() | PostgresChanges():
            return f"Postgres table `{table.db.name}/{table.table}`"
        case MySQLTable() | MySQLChanges():
            return f"MySQL table `{table.db.name}/{table.table}`"
        case _:
            return None


def _uses(graph: Graph, before: Graph | None) -> Iterator[Source | Sink]:
    """Yield the sources and sinks that this commit defines or changes."""
    old_sources = frozenset[Source]() if before is None else frozenset(before.sources)
    old_sinks = frozenset[Sink]() if before is None else frozenset(before.sinks)
    yield from (source for source in graph.sources if source not in old_sources)
    yield from (sink for sink in graph.sinks if sink not in old_sinks)
