"""A definition that changed needs a higher version, so that nobody resets data or changes a served
value by accident.

Logic is compared without comments, layout and metadata (`fennel_core.wire.canonical_logic`). A
dataset's logic here is its schema, its sources and its pipeline; what its inputs are made of is
theirs to answer for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.problems import Problem
from fennel_core.wire.canonical_logic import (
    dataset_logic,
    extractor_logic,
    pipeline_logic,
    source_logic,
)
from fennel_core.wire.connectors import Source, WebhookEndpoint
from fennel_core.wire.entities import Dataset, Extractor, PyFunc

MOCK_WEBHOOK = "_internal_fennel_webhook"
"""The client's mock hangs this source on every dataset it sees, so it may turn up in a later real
commit of the same process: nobody's change.
"""


def require_new_version_on_change(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset or Python extractor that changed without a higher version."""
    if before is None:
        return
    for dataset in graph.datasets:
        old = before.dataset(dataset.name)
        if old is None or dataset.version > old.version:
            continue
        changed = _difference(before, old, graph, dataset)
        if changed:
            text = (
                f"please increment dataset version of `{dataset.name}`: {changed} "
                f"changed, but its version is {dataset.version} "
                f"and was {old.version}"
            )
            yield Problem("dataset-version", dataset.name, text)
    for extractor in graph.extractors:
        yield from _extractor(before, extractor)


def _difference(before: Graph, old: Dataset, after: Graph, new: Dataset) -> str | None:
    """The first part of a dataset's logic that differs. Equal values, the common case, need no look
    at their logic.
    """
    if _parts(before, old) == _parts(after, new):
        return None
    if dataset_logic(old) != dataset_logic(new):
        return _schema_difference(old, new)
    if _sources(before, old.name) != _sources(after, new.name):
        return "its source"
    if _pipelines(before, old.name) != _pipelines(after, new.name):
        return "its pipeline"
    return None


def _sources(graph: Graph, dataset: str) -> list[bytes]:
    return sorted(
        source_logic(source) for source in graph.sources_of(dataset) if not _is_of_the_mock(source)
    )


def _is_of_the_mock(source: Source) -> bool:
    return isinstance(source.table, WebhookEndpoint) and source.table.db.name == MOCK_WEBHOOK


def _parts(graph: Graph, dataset: Dataset) -> tuple[object, ...]:
    pipelines = graph.pipelines_of(dataset.name)
    return (
        dataset,
        graph.sources_of(dataset.name),
        pipelines,
        tuple(graph.operators_of(pipeline) for pipeline in pipelines),
    )


def _schema_difference(old: Dataset, new: Dataset) -> str:
    was, now = {f.name: f for f in old.schema.fields}, {f.name: f for f in new.schema.fields}
    for name in was:
        if name not in now:
            return f"its schema (field `{name}` is gone)"
    for name, field in now.items():
        if field != was.get(name):
            return f"its schema (field `{name}`)"
    return "its schema" if old.schema != new.schema else "its history or its erase keys"


def _pipelines(graph: Graph, dataset: str) -> list[bytes]:
    found = []
    for pipeline in graph.pipelines_of(dataset):
        with suppress(KeyError):  # an operand that leads nowhere: `resolve_references` has said so
            found.append(pipeline_logic(pipeline, graph.operators_of(pipeline)))
    return sorted(found)


def _extractor(before: Graph, extractor: Extractor) -> Iterator[Problem]:
    """User code is versioned by its author; lookups, aliases and expressions are made by the client
    and have no version to raise.
    """
    if not isinstance(extractor.kind, PyFunc):
        return
    old = next(
        (x for x in before.extractors_of(extractor.featureset) if x.name == extractor.name), None
    )
    if (
        old is None
        or old == extractor
        or extractor.version > old.version
        or extractor_logic(old) == extractor_logic(extractor)
    ):
        return
    text = (
        f"please increment the version of extractor `{extractor.fqn}`: it changed, but "
        f"its version is {extractor.version} as before"
    )
    yield Problem("extractor-version", extractor.fqn, text)
