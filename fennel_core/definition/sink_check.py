"""Check that what the sinks of a commit write to can be written, before anything exists.

Only sinks that the commit adds or changes are checked. Branches with the same content and the same
place share one sink, so they must agree on the address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.external_kafka import ExternalKafkaUnusable, opened
from fennel_core.connections.external_sinks import POSITIONS, check_sink_topic
from fennel_core.connections.secrets import Sealer
from fennel_core.definition.source_check import is_platform_topic, secret_opener
from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import Kafka, KafkaTopic, Sink


def added_sinks(graph: Graph, before: Collection[Sink]) -> list[Sink]:
    """Return the sinks of a valid `graph` that are not in `before`, the branch's version."""
    return [sink for sink in graph.sinks if sink not in before]


async def sink_problems(
    added: Collection[Sink],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
) -> tuple[Problem, ...]:
    """Return a problem for each of the sinks `added` that cannot be written.

    `others`: the catalogs of the workspace's other branches.
    """
    found: list[Problem] = []
    reached: dict[KafkaTopic, Sink] = {}
    for sink in added:
        table = _topic(sink)
        found += _disagreements(sink, table, others)
        if is_platform_topic(table.topic) or table.topic == POSITIONS:
            text = (
                f"Dataset `{sink.dataset}`: Kafka topic `{table.topic}` belongs to a platform like "
                "this one, or to Kafka itself, and is no sink; write to a topic of your own"
            )
            found.append(Problem("connector-not-served", sink.dataset, text))
        else:
            reached.setdefault(table, sink)
    results = await asyncio.gather(
        *(
            asyncio.to_thread(_unwritable, table, sink, workspace, sealer)
            for table, sink in reached.items()
        )
    )
    return (*found, *(problem for each in results for problem in each))


def _topic(sink: Sink) -> KafkaTopic:
    assert isinstance(sink.table, KafkaTopic), "validation refuses other sinks"
    return sink.table


def _address(table: KafkaTopic) -> str:
    assert isinstance(table.db, Kafka), "validation refuses connectors by name"
    return table.db.bootstrap_servers


def _disagreements(
    sink: Sink, table: KafkaTopic, others: Mapping[BranchName, Catalog]
) -> Iterator[Problem]:
    for branch, catalog in others.items():
        for other in (_topic(binding.sink) for binding in catalog.sinks):
            same = (other.db.name, other.topic) == (table.db.name, table.topic)
            if same and _address(other) != _address(table):
                text = (
                    f"Dataset `{sink.dataset}`: connector `{table.db.name}` of Kafka topic "
                    f"`{table.topic}` leads to `{_address(table)}`, and in branch `{branch}` to "
                    f"`{_address(other)}`; branches share what they write, so give it the same "
                    "address, or another name"
                )
                yield Problem("connector-redefined", sink.dataset, text)


def _unwritable(
    table: KafkaTopic, sink: Sink, workspace: WorkspaceId, sealer: Sealer | None
) -> list[Problem]:
    assert isinstance(table.db, Kafka), "validation refuses connectors by name"
    try:
        check_sink_topic(opened(table.db, secret_opener(workspace, sealer)), table.topic)
    except ExternalKafkaUnusable as unusable:
        text = f"Dataset `{sink.dataset}`: {unusable}"
        return [Problem("sink-unreachable", sink.dataset, text)]
    return []
