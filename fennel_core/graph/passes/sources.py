"""Check that sources agree with their dataset.

Rows come either from sources or from a pipeline, and the kind of change feed fits the keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import Cdc, EvalCode, EvalExpr, HttpPath, Source
from fennel_core.wire.entities import Dataset


def check_sources(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield the problems of each dataset's sources, with the texts known from the client."""
    del before
    for dataset in graph.datasets:
        sources = graph.sources_of(dataset.name)
        if sources and graph.pipelines_of(dataset.name):
            text = (
                f"Dataset `{dataset.name}` has a source and pipelines defined. Please "
                "define either a source or pipelines, not both."
            )
            yield Problem("source-and-pipeline", dataset.name, text)
        for source in sources:
            yield from _agreement(dataset, source)
            yield from _preproc(dataset, source)
            yield from _bounds(dataset, source)


def _agreement(dataset: Dataset, source: Source) -> Iterator[Problem]:
    keyed = dataset.schema.keyed
    if source.cdc is Cdc.APPEND and keyed:
        text = (
            f"Dataset `{dataset.name}` has key fields and source cdc is append. Please "
            "set source cdc to `upsert` or remove key fields."
        )
        yield Problem("cdc-keys", dataset.name, text)
    if source.cdc is Cdc.UPSERT and not keyed:
        text = (
            f"Dataset `{dataset.name}` has no key fields and source cdc is upsert. "
            "Please set key fields or change source cdc to `append`."
        )
        yield Problem("cdc-keys", dataset.name, text)
    if source.cdc is Cdc.DEBEZIUM and not keyed:
        text = (
            f"Dataset `{dataset.name}` has no key fields and source cdc is debezium, so updates "
            "and deletes would name no row. Make the primary key of the table the key fields."
        )
        yield Problem("cdc-keys", dataset.name, text)
    if source.version != dataset.version:
        text = (
            f"a source of dataset `{dataset.name}` is for version {source.version}, but "
            f"the dataset has version {dataset.version}; use the same version"
        )
        yield Problem("source-version", dataset.name, text)
    if isinstance(source.table, HttpPath):
        yield Problem(
            "source-kind",
            dataset.name,
            f"Dataset `{dataset.name}`: HTTP can only be a sink; use a webhook as source",
        )


def _preproc(dataset: Dataset, source: Source) -> Iterator[Problem]:
    for field, value in source.preproc:
        if dataset.schema.field(field) is None:
            text = (
                f"Dataset `{dataset.name}` has a source with a pre_proc value field "
                f"`{field}`, but the field is not defined in the dataset."
            )
            yield Problem("preproc-field", dataset.name, text)
        if field == dataset.schema.timestamp and isinstance(value, EvalExpr | EvalCode):
            text = (
                f"Dataset `{dataset.name}` has timestamp field set from assign preproc. "
                "Please either ref preproc or set a constant value."
            )
            yield Problem("preproc-timestamp", dataset.name, text)


def _bounds(dataset: Dataset, source: Source) -> Iterator[Problem]:
    if (
        source.since_us is not None
        and source.until_us is not None
        and source.since_us > source.until_us
    ):
        yield Problem(
            "source-bounds",
            dataset.name,
            f"Dataset `{dataset.name}`: `since` of its source is later than `until`; swap them",
        )
    if source.bounded and source.idleness_us is None:
        yield Problem(
            "source-idleness",
            dataset.name,
            f"Dataset `{dataset.name}`: a bounded source needs `idleness`, the "
            "time without rows after which it has ended",
        )
    if source.sampling is not None:
        for column in source.sampling.columns:
            if dataset.schema.field(column) is None:
                text = (
                    f"Dataset `{dataset.name}`: its source samples by column `{column}`, "
                    "which the dataset does not have; sample by one of its columns"
                )
                yield Problem("sampling-column", dataset.name, text)
