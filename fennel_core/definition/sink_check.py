"""Check that what the sinks of a commit write to can be written, before anything exists.

Only sinks that the commit adds or changes are checked. Branches with the same content and the same
place share one sink, so they must agree on the address.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.external_delta import (
    OWNER,
    ExternalDelta,
    ExternalTableUnusable,
    delta_place,
    delta_refused,
    other_columns,
)
from fennel_core.connections.external_http import (
    HttpEndpoint,
    HttpEndpointUnusable,
    http_url,
    opened_http,
)
from fennel_core.connections.external_kafka import (
    ExternalKafkaAway,
    ExternalKafkaUnusable,
    OpenSecret,
    opened,
)
from fennel_core.connections.external_s3 import ExternalBucketUnusable
from fennel_core.connections.external_sinks import POSITIONS, check_sink_topic
from fennel_core.connections.http_addresses import AllowedHosts, HttpAddressRefused
from fennel_core.connections.secrets import Sealer
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.definition.source_check import is_platform_topic, secret_opener
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.capabilities import table_title
from fennel_core.graph.sink_places import SinkTable, is_written, place_of
from fennel_core.settings.model import Settings
from fennel_core.vocab.change_columns import change_columns
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Http, HttpPath, Kafka, KafkaTopic, S3Table, Sink


@dataclass(frozen=True, slots=True)
class AddedSink:
    """A sink that a commit adds or changes. `schema`: that of its dataset."""

    sink: Sink
    schema: Schema


def added_sinks(graph: Graph, before: Collection[Sink]) -> list[AddedSink]:
    """Return the sinks of a valid `graph` that are not in `before`, the branch's version."""
    schemas = {dataset.name: dataset.schema for dataset in graph.datasets}
    return [AddedSink(sink, schemas[sink.dataset]) for sink in graph.sinks if sink not in before]


async def sink_problems(
    added: Collection[AddedSink],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    allowed: AllowedHosts,
    settings: Settings | None = None,
) -> tuple[Problem, ...]:
    """Return a problem for each of the sinks `added` that cannot be written.

    `others`: the catalogs of the workspace's other branches. `allowed`: where HTTP sinks may go.
    `settings` None: of a program without an installation, which writes no bucket.
    """
    found: list[Problem] = []
    reached: dict[SinkTable, AddedSink] = {}
    for one in added:
        sink, table = one.sink, _table(one.sink)
        found += _disagreements(sink, table, others)
        if isinstance(table, KafkaTopic) and (
            is_platform_topic(table.topic) or table.topic == POSITIONS
        ):
            text = (
                f"Dataset `{sink.dataset}`: Kafka topic `{table.topic}` belongs to a platform like "
                "this one, or to Kafka itself, and is no sink; write to a topic of your own"
            )
            found.append(Problem("connector-not-served", sink.dataset, text))
        elif isinstance(table, S3Table) and (refused := _refused(table, settings)):
            text = f"Dataset `{sink.dataset}`: {table_title(table)} {refused}"
            found.append(Problem("connector-not-served", sink.dataset, text))
        else:
            reached.setdefault(table, one)
    places: dict[object, list[AddedSink]] = {}
    for table, one in reached.items():
        places.setdefault(table.db, []).append(one)
    open_secret = secret_opener(workspace, sealer)
    asked = [
        partial(_unwritable_of, each, open_secret, allowed, settings) for each in places.values()
    ]
    for each, result in zip(places.values(), await answers(asked), strict=True):
        found += [_not_answered(one.sink) for one in each] if result is None else result
    return tuple(found)


def _not_answered(sink: Sink) -> Problem:
    text = (
        f"Dataset `{sink.dataset}`: {table_title(sink.table)} was not reached in "
        f"{REACHED_S:.0f} s; check its address, and commit again"
    )
    return Problem("sink-unreachable", sink.dataset, text)


def _refused(table: S3Table, settings: Settings | None) -> str | None:
    """Return why a Delta table may not be written, as the end of a sentence about it."""
    if settings is None:
        return "cannot be written by a program without an installation"
    return delta_refused(table, settings)


def _table(sink: Sink) -> SinkTable:
    assert is_written(sink.table), "validation refuses other sinks"
    return sink.table


def _address(table: SinkTable) -> str:
    match table:
        case KafkaTopic(db=db):
            assert isinstance(db, Kafka), "names are resolved before"
            return db.bootstrap_servers
        case HttpPath(db=db):
            assert isinstance(db, Http), "names are resolved before"
            return http_url(db, "/")
        case S3Table():
            return ""  # that of the installation
        case unreachable:
            assert_never(unreachable)


def _disagreements(
    sink: Sink, table: SinkTable, others: Mapping[BranchName, Catalog]
) -> Iterator[Problem]:
    place = place_of(table)
    assert place is not None, "the kinds of sinks have places"
    for branch, catalog in others.items():
        for other in (_table(binding.sink) for binding in catalog.sinks):
            if place_of(other) == place and _address(other) != _address(table):
                what = f"connector `{place.connector}` of {table_title(table)}"
                text = (
                    f"Dataset `{sink.dataset}`: {what} leads to `{_address(table)}`, "
                    f"and in branch `{branch}` to `{_address(other)}`; branches share what "
                    "they write, so give it the same address, or another name"
                )
                yield Problem("connector-redefined", sink.dataset, text)


def _unwritable_of(
    added: Sequence[AddedSink],
    open_secret: OpenSecret,
    allowed: AllowedHosts,
    settings: Settings | None,
) -> list[Problem]:
    """Return the problems of tables of one connector. A cluster that is away is asked once."""
    found: list[Problem] = []
    away: ExternalKafkaAway | None = None
    for one in added:
        sink, table = one.sink, _table(one.sink)
        try:
            if away is not None:
                raise away
            _reach(table, one.schema, open_secret, allowed, settings)
        except HttpAddressRefused as refused:
            text = f"Dataset `{sink.dataset}`: connector `{table.db.name}`: {refused}"
            found.append(Problem("sink-host-not-allowed", sink.dataset, text))
        except (
            ExternalKafkaUnusable,
            HttpEndpointUnusable,
            ExternalTableUnusable,
            ExternalBucketUnusable,
        ) as unusable:
            away = unusable if isinstance(unusable, ExternalKafkaAway) else None
            text = f"Dataset `{sink.dataset}`: {unusable}"
            found.append(Problem("sink-unreachable", sink.dataset, text))
    return found


def _reach(
    table: SinkTable,
    schema: Schema,
    open_secret: OpenSecret,
    allowed: AllowedHosts,
    settings: Settings | None,
) -> None:
    match table:
        case KafkaTopic(db=db):
            assert isinstance(db, Kafka), "names are resolved before"
            check_sink_topic(opened(db, open_secret), table.topic)
        case HttpPath():
            title = f"connector `{table.db.name}`"
            endpoint = HttpEndpoint(opened_http(table, title, open_secret), allowed)
            try:
                endpoint.check()
            finally:
                endpoint.close()
        case S3Table():
            assert settings is not None, "tables are not allowed without an installation"
            _check_table(delta_place(table, settings, open_secret), schema)
        case unreachable:
            assert_never(unreachable)


def _check_table(place: ExternalDelta, schema: Schema) -> None:
    """Raise `ExternalTableUnusable` unless the table is there with its columns, or can be made.

    Nothing is written but the empty object of `require_conditional_put`.
    """
    place.require_conditional_put()
    if (parent := place.parent()) is not None:
        raise ExternalTableUnusable(
            f"{place.title} would be below table `{parent}`, whose VACUUM deletes what is not its "
            "own; give the sink another path"
        )
    table = place.table()
    if table is None:
        return
    if OWNER not in table.metadata().configuration:
        raise ExternalTableUnusable(
            f"{place.title} was made by another program; a sink makes its own: give it another path"
        )
    if others := other_columns(table, change_columns(schema)):
        raise ExternalTableUnusable(
            f"{place.title} has other columns than the sink would write, or of other types: "
            f"{', '.join(others)}; give the sink another path"
        )
