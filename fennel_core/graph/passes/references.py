"""Check that every name resolves.

Covers inputs of pipelines and operators, datasets and features of extractors, and owners of sources
and indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Extractor, ListLookup, Lookup, Pipeline
from fennel_core.wire.operators import DatasetRef


def resolve_references(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per unresolved name, with the texts that users of the client know."""
    removed = () if before is None else before.datasets
    for dataset in removed:
        if graph.dataset(dataset.name) is None:
            yield from _removed(graph, dataset.name)
    gone = frozenset(dataset.name for dataset in removed)
    for pipeline in graph.pipelines:
        yield from _pipeline(graph, pipeline, gone)
    for extractor in graph.extractors:
        yield from _extractor(graph, extractor)
    for what, owners in (
        ("source", [s.dataset for s in graph.sources]),
        ("sink", [s.dataset for s in graph.sinks]),
        ("index", [i.dataset for i in graph.indices]),
        ("pipeline", [p.dataset for p in graph.pipelines]),
    ):
        for name in dict.fromkeys(owners):
            if graph.dataset(name) is None:
                yield Problem(
                    "dataset-missing",
                    name,
                    f"Dataset `{name}` not found in sync call, but a {what} belongs to it",
                )


def _removed(graph: Graph, dataset: str) -> Iterator[Problem]:
    """Yield the problem of a dataset that the branch had and that pipelines still read."""
    readers = [f"{p.dataset}.{p.name}" for p in graph.pipelines if dataset in _read(graph, p)]
    if readers:
        text = (
            f"Dataset `{dataset}` is an input to the pipelines: `{readers}` but is not synced. "
            "Please add it to the sync call."
        )
        yield Problem("dataset-missing", dataset, text)


def _read(graph: Graph, pipeline: Pipeline) -> list[DatasetName]:
    """Return the datasets that a pipeline declares or reads."""
    operators = graph.operators_of(pipeline)
    refs = [o.kind.dataset for o in operators if isinstance(o.kind, DatasetRef)]
    return list(dict.fromkeys([*pipeline.inputs, *refs]))


def _pipeline(graph: Graph, pipeline: Pipeline, gone: Set[DatasetName]) -> Iterator[Problem]:
    operators = graph.operators_of(pipeline)
    title = f"{pipeline.dataset}@v{pipeline.version}.{pipeline.name}"
    for name in _read(graph, pipeline):
        if graph.dataset(name) is None and name not in gone:
            yield _not_found(name, title)
        if name not in pipeline.inputs:
            text = f"pipeline `{title}` reads `{name}`, which is not one of its inputs"
            yield Problem("operand-missing", title, text)
    ids = {operator.id for operator in operators}
    if len(ids) != len(operators):
        text = f"pipeline `{title}` has operators with the same id; give each its own"
        yield Problem("duplicate-name", title, text)
    for operator in operators:
        for operand in operator.inputs:
            if operand not in ids:
                yield Problem(
                    "operand-missing",
                    title,
                    f"pipeline `{title}` reads operator `{operand}`, which it does not have",
                )
    roots = [operator.id for operator in operators if operator.is_root]
    if len(roots) != 1:
        yield Problem(
            "pipeline-root",
            title,
            f"pipeline `{title}` must end in exactly one operator, but {len(roots)} are "
            "marked as its end",
        )
    elif any(roots[0] in operator.inputs for operator in operators):
        text = (
            f"pipeline `{title}` does not end in the operator marked as its end; another reads it"
        )
        yield Problem("pipeline-root", title, text)


def _extractor(graph: Graph, extractor: Extractor) -> Iterator[Problem]:
    looked_up = (extractor.kind.dataset,) if isinstance(extractor.kind, Lookup | ListLookup) else ()
    for name in dict.fromkeys([*extractor.datasets, *looked_up]):
        if graph.dataset(name) is None:
            yield _not_found(name, extractor.fqn)
    if graph.featureset(extractor.featureset) is None:
        yield Problem(
            "featureset-missing",
            extractor.fqn,
            f"Featureset `{extractor.featureset}` of extractor `{extractor.fqn}` is not committed",
        )
        return
    for ref in dict.fromkeys(extractor.inputs):
        if graph.feature(ref) is not None or ref in graph.deleted.features:
            continue
        if graph.featureset(ref.featureset) is None:
            yield Problem(
                "featureset-missing",
                extractor.fqn,
                f"Featureset `{ref.featureset}` is required by "
                f"`{extractor.featureset}` but is not present in the sync call. "
                "Please ensure that all featuresets are present in the sync call.",
            )
        else:
            text = (
                f"Extractor `{extractor.fqn}` has an input feature `{ref.fqn}` that does "
                f"not exist; add it to `{ref.featureset}`"
            )
            yield Problem("feature-missing", extractor.fqn, text)
    for ref in extractor.output_refs:
        if graph.feature(ref) is None and ref not in graph.deleted.features:
            text = (
                f"Extractor `{extractor.fqn}` has an output feature `{ref.fqn}` that "
                f"does not exist; add it to `{ref.featureset}`"
            )
            yield Problem("feature-missing", extractor.fqn, text)


def _not_found(dataset: str, pipeline: str) -> Problem:
    text = (
        f"Dataset {dataset} not found in the graph while creating inedges for pipeline {pipeline}"
    )
    return Problem("dataset-missing", pipeline, text)
