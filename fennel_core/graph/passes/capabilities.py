"""Refuse what this platform does not serve: sources other than webhooks and the streams that it
reads (`streams.py`), sinks of kinds that it does not write, and options and combinations of
operators without a defined result.

The client can express more than the platform runs. Without this pass such a definition would be
accepted and have no effect, which looks like success while rows are lost. The client's defaults are
always accepted, also where they have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from fennel_core.graph.derived_schemas import derive_known_schemas
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.delta_sinks import check_delta_sink
from fennel_core.graph.passes.delta_sources import check_delta_keys
from fennel_core.graph.passes.http_sinks import unusable_http
from fennel_core.graph.passes.kinesis import check_starts
from fennel_core.graph.passes.streams import (
    check_formats,
    check_orders,
    check_stream,
    connector_problems,
    format_title,
    reads,
)
from fennel_core.graph.passes.terminals import is_terminal_dataset
from fennel_core.graph.sink_places import is_written
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire import operators as o
from fennel_core.wire.entities import Dataset, Pipeline


def refuse_unserved(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per source, source option and sink that would have no effect."""
    del before
    for dataset in graph.datasets:
        for source in graph.sources_of(dataset.name):
            if isinstance(source.table, c.WebhookEndpoint):
                yield from _webhook(dataset, source)
            elif reads(source.table):
                yield from check_stream(dataset, source)
            elif not isinstance(source.table, c.HttpPath):  # `check_sources` reports it
                yield source_not_served(dataset.name, source.table)
        for sink in graph.sinks_of(dataset.name):
            yield from _sink(graph, dataset, sink)
    yield from check_formats(graph)
    yield from check_orders(graph)
    yield from check_starts(graph)
    yield from check_delta_keys(graph)
    for pipeline in graph.pipelines:
        yield from _operators(graph, pipeline)


def _problem(code: str, pipeline: Pipeline, reason: str) -> Problem:
    where = f"dataset `{pipeline.dataset}`: pipeline `{pipeline.name}`"
    return Problem(code, f"{pipeline.dataset}.{pipeline.name}", f"{where}: {reason}")


def _operators(graph: Graph, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield one problem per operator of a pipeline that cannot be served."""
    # Operators without a schema are reported by other passes.
    schemas = derive_known_schemas(graph, pipeline).known
    for operator in graph.operators_of(pipeline):
        match operator.kind:
            case o.Aggregate(specs=specs):
                for spec in specs:
                    if isinstance(spec, o.ExpDecay) and o.is_discrete(spec.window):
                        text = (
                            f"`{spec.name}` is an ExpDecaySum over a window that closes by event "
                            "time, but it decays until it is read; "
                            "use `Continuous` as its window, in an aggregation of its own"
                        )
                        yield _problem("aggregation-not-served", pipeline, text)
            case o.WindowOp(specs=specs, window=window, emit=emit):
                for spec in specs:
                    if isinstance(spec, o.ExpDecay):
                        text = (
                            f"`{spec.name}` is an ExpDecaySum in `groupby(…, window=…)`, whose "
                            "rows never change after the window has closed; use Sum, or "
                            "ExpDecaySum over `Continuous` without `window` in `groupby`"
                        )
                        yield _problem("aggregation-not-served", pipeline, text)
                if emit is o.Emit.FINAL and isinstance(window, o.Session):
                    text = (
                        "sessions are emitted as soon as they have a row, so "
                        '`emit="final"` has no effect on them; remove it'
                    )
                    yield _problem("emit-not-served", pipeline, text)
            case o.Join(left=left, within_low_us=low_us, within_high_us=high_us):
                is_bounded = low_us is not None or high_us != 0
                if is_bounded and left in schemas and schemas[left].keyed:
                    text = (
                        "`within` limits the age of the match of a row, but the left side of the "
                        f"join is keyed by {list(schemas[left].key_names)}: each pair of versions "
                        "that are valid at the same time is joined; remove `within`, or join the "
                        "changelog of the left side"
                    )
                    yield _problem("join-within", pipeline, text)
            case _:
                pass


def source_not_served(dataset: str, table: c.Table) -> Problem:
    """Return the refusal of a source of a kind that is not read."""
    text = (
        f"Dataset `{dataset}` has a source of {table_title(table)}, which this platform does "
        "not read yet: rows come from webhooks, Kafka topics, Kinesis streams, tables of Postgres "
        "and MySQL, and csv, json and parquet files and Delta tables on S3. Use a webhook and "
        "send the rows with `client.log`, or give the source an `env` and commit with another one."
    )
    return Problem("source-not-served", dataset, text)


def _sink(graph: Graph, dataset: Dataset, sink: c.Sink) -> Iterator[Problem]:
    """Yield why a sink would have no effect, or another one than its definition says."""
    table = sink.table
    into = f"Dataset `{dataset.name}` has a sink into {table_title(table)}"
    if not is_written(table):
        text = (
            f"{into}, which this platform does not write to yet: sinks are topics of Kafka, "
            "HTTP endpoints, and Delta tables on S3. Remove the sink, or give it an `env` and "
            "commit with another one."
        )
        yield Problem("sink-not-served", dataset.name, text)
        return
    if is_terminal_dataset(graph, dataset.name):
        text = (
            f"{into}, but it ends in an aggregation whose values are computed when they are read, "
            "so it has no changes to write. Aggregate in `groupby(…, window=…)`, or put the sink "
            "on the dataset that is aggregated."
        )
        yield Problem("sink-not-served", dataset.name, text)
    if isinstance(table, c.S3Table):
        yield from check_delta_sink(dataset, sink, table, into)
        return
    for option in (name for name in ("create", "stacked") if getattr(sink, name)):
        text = f"{into} with `{option}`, which has no effect on it; remove the option"
        yield Problem("sink-option-not-served", dataset.name, text)
    if isinstance(table, c.KafkaTopic):
        yield from connector_problems(dataset, table)
        return
    for reason in unusable_http(table):
        text = f"Dataset `{dataset.name}`: connector `{table.db.name}` of {table_title(table)} "
        yield Problem("connector-not-served", dataset.name, text + reason)


def _webhook(dataset: Dataset, source: c.Source) -> Iterator[Problem]:
    if source.cdc not in (c.Cdc.APPEND, c.Cdc.UPSERT):
        text = (
            f"Dataset `{dataset.name}` has a webhook source with cdc `{source.cdc.value}`, which "
            "this platform does not read from a webhook: every logged row is a plain row. "
            "Use cdc `append` without key fields, or `upsert` with key fields."
        )
        yield Problem("cdc-not-served", dataset.name, text)
    without_effect = {
        "every": source.every_us not in (None, c.DEFAULT_EVERY_US),
        "cursor": source.cursor is not None,
        "timestamp_field": source.timestamp_field not in (None, dataset.schema.timestamp),
    }
    for option, is_set in without_effect.items():
        if is_set:
            text = (
                f"Dataset `{dataset.name}` has a webhook source with `{option}`, which has no "
                "effect on a webhook; remove the option"
            )
            yield Problem("source-option-not-served", dataset.name, text)


def table_title(table: c.Table) -> str:
    """Return what a source reads or a sink writes, as a person names it: its kind and name."""
    match table:
        case c.WebhookEndpoint():
            return f"webhook endpoint `{table.db.name}/{table.endpoint}`"
        case c.MySQLTable():
            return f"MySQL table `{table.table}`"
        case c.PostgresTable():
            return f"Postgres table `{table.table}`"
        case c.PostgresChanges():
            return f"changes of Postgres table `{table.table}`"
        case c.MySQLChanges():
            return f"changes of MySQL table `{table.table}`"
        case c.SnowflakeTable():
            return f"Snowflake table `{table.table}`"
        case c.BigQueryTable():
            return f"BigQuery table `{table.table}`"
        case c.RedshiftTable():
            return f"Redshift table `{table.table}`"
        case c.MongoCollection():
            return f"MongoDB collection `{table.collection}`"
        case c.KafkaTopic():
            return f"Kafka topic `{table.topic}`{format_title(table.format)}"
        case c.KinesisStream():
            return f"Kinesis stream `{table.stream_arn}`"
        case c.PubSubTopic():
            return f"Pub/Sub topic `{table.topic}`"
        case c.S3Table():
            return f"{table.format} files in S3 bucket `{table.bucket}`"
        case c.HttpPath():
            return f"HTTP path `{table.endpoint}`"
        case unreachable:
            assert_never(unreachable)
