"""Check that sinks belong to derived datasets and have the options of their kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.sink_places import SinkPlace, place_of
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset

PLACES: Final = {"kafka": "Kafka topic", "http": "HTTP path", "delta": "Delta table"}


def check_sinks(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset with a sink but without a pipeline, per invalid option, and per
    place that two sinks would write to.
    """
    del before
    writers: dict[SinkPlace, str] = {}
    for dataset in graph.datasets:
        sinks = graph.sinks_of(dataset.name)
        if sinks and not graph.pipelines_of(dataset.name):
            text = f"Dataset `{dataset.name}` error: Cannot define sinks on a source dataset"
            yield Problem("sink-on-source", dataset.name, text)
        for sink in sinks:
            for text in _options(dataset, sink):
                yield Problem("sink-option", dataset.name, f"Dataset `{dataset.name}`: {text}")
            place = place_of(sink.table)
            if place is not None:
                met = next((each for each in writers if each.meets(place)), None)
                if met is not None:
                    what = PLACES[place.kind]
                    text = (
                        f"Dataset `{dataset.name}` and dataset `{writers[met]}` have a "
                        "sink into "
                        f"{what} `{place.name}` of connector `{place.connector}`, "
                        "where rows of both would mix; give each sink a place of its own"
                    )
                    yield Problem("sink-twice", dataset.name, text)
                writers[place] = dataset.name


def _options(dataset: Dataset, sink: c.Sink) -> Iterator[str]:
    """Yield the client's texts about options that do not fit the kind of the sink."""
    if sink.version != dataset.version:
        yield (
            f"a sink is for version {sink.version}, but the dataset has version "
            f"{dataset.version}; use the same version"
        )
    match sink.table:
        case c.KafkaTopic(format=record_format):
            if not isinstance(record_format, c.JsonFormat):
                yield 'Kafka Sink only support "json" format for now'
            yield from _row_sink(sink, "Kafka")
        case c.HttpPath():
            yield from _row_sink(sink, "HTTP")
        case c.S3Table(db=db, format=record_format):
            if record_format != "delta":
                yield "Only Delta format supported for S3 sink"
            if isinstance(db, c.S3) and (db.role_arn or db.login.user or db.login.password):
                yield "S3 sink only supports data access through Fennel DataAccess IAM Role"
            yield from _batch_sink(sink, "S3")
        case c.SnowflakeTable():
            yield from _batch_sink(sink, "Snowflake")
        case table:
            kind = type(table).__name__
            yield f"Sink is only supported for Kafka, S3, Snowflake and HTTP, found {kind}"
    if sink.renames:
        yield "renames are not supported for sinks; rename the columns in the pipeline"


def _row_sink(sink: c.Sink, kind: str) -> Iterator[str]:
    if sink.cdc is not c.Cdc.DEBEZIUM:
        found = None if sink.cdc is None else sink.cdc.value
        yield f'{kind} Sink only support "debezium" cdc, found {found}'
    if sink.every_us is not None:
        yield f'"every" should not be set for {kind} sink'
    if not isinstance(sink.how, c.Incremental | None):
        yield f'Only "incremental" style supported for {kind} sink'
    if sink.since_us is not None or sink.until_us is not None:
        yield f'"since" and "until" are not supported for {kind} sink'


def _batch_sink(sink: c.Sink, kind: str) -> Iterator[str]:
    if sink.cdc is not None:
        yield f"CDC shouldn't be set for {kind} sink"
    if not isinstance(sink.how, c.Incremental):
        yield f"Only Incremental style supported for {kind} sink"
