"""Check that every name resolves.

Covers inputs of pipelines and operators, datasets and features of extractors, and owners of sources
and indices.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Extractor, Pipeline
from fennel_core.wire.operators import DatasetRef


def resolve_references(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per unresolved name, with the texts that users of the client know."""
    del before
    for pipeline in graph.pipelines:
        yield from _pipeline(graph, pipeline)
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


def _pipeline(graph: Graph, pipeline: Pipeline) -> Iterator[Problem]:
    operators = graph.operators_of(pipeline)
    title = f"{pipeline.dataset}@v{pipeline.version}.{pipeline.name}"
    read = [
        *pipeline.inputs,
        *(o.kind.dataset for o in operators if isinstance(o.kind, DatasetRef)),
    ]
    for name in dict.fromkeys(read):
        if graph.dataset(name) is None:
            yield _not_found(name, title)
    ids = {operator.id for operator in operators}
    for operator in operators:
        for operand in operator.inputs:
            if operand not in ids:
                yield Problem(
                    "operand-missing",
                    title,
                    f"pipeline `{title}` reads operator `{operand}`, which it does not have",
                )
    roots = sum(operator.is_root for operator in operators)
    if roots != 1:
        yield Problem(
            "pipeline-root",
            title,
            f"pipeline `{title}` must end in exactly one operator, but {roots} are "
            "marked as its end",
        )


def _extractor(graph: Graph, extractor: Extractor) -> Iterator[Problem]:
    for name in dict.fromkeys(extractor.datasets):
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
