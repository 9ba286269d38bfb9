"""Reject cycles: among datasets through pipelines, and among features through extractors."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.errors import DependencyCycle
from fennel_core.graph.topological_order import dataset_order, inputs_first
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Extractor


def forbid_cycles(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield the first cycle among datasets and the first among extractors."""
    del before
    try:
        dataset_order(graph)
    except DependencyCycle as cycle:
        path = " -> ".join(map(str, cycle.path))
        yield Problem(
            "dataset-cycle",
            str(cycle.path[0]),
            f"Cyclic dependency found for datasets {path}; break it by a source or another dataset",
        )

    def providers(extractor: Extractor) -> list[Extractor]:
        found = (graph.extractor_of(ref) for ref in extractor.inputs)
        return list(dict.fromkeys(x for x in found if x is not None))

    try:
        inputs_first(graph.extractors, providers)
    except DependencyCycle as cycle:
        names = [x.fqn for x in cycle.path if isinstance(x, Extractor)]
        yield Problem(
            "feature-cycle", names[0], f"Cyclic dependency found for {' -> '.join(names)}"
        )
