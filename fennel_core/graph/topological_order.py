"""Orders of the graph: datasets before what is computed from them, and the extractors a query has
to run.

Theory. Both questions are a depth-first walk against the arrows. The order is deterministic: inputs
first, ties as in the commit, so that equal graphs give equal plans. A given feature is a leaf, even
where an extractor could compute it: the caller's value wins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.problems import Problem
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.entities import Extractor, FeatureRef

N = TypeVar("N", bound=Hashable)


class DependencyCycle(Exception):
    """`path` leads from a node back to itself, along the arrows; its first and last node are the
    same.
    """

    def __init__(self, path: tuple[object, ...]) -> None:
        super().__init__(" -> ".join(map(str, path)))
        self.path = path


def inputs_first(nodes: Iterable[N], inputs_of: Callable[[N], Iterable[N]]) -> tuple[N, ...]:
    """`nodes` and everything they need, inputs before users. Raises `DependencyCycle`."""
    sorter: TopologicalSorter[N] = TopologicalSorter()
    pending = list(nodes)
    seen = set(pending)
    for node in pending:
        inputs = list(inputs_of(node))
        sorter.add(node, *inputs)
        pending += [i for i in dict.fromkeys(inputs) if i not in seen]
        seen.update(inputs)
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        raise DependencyCycle(tuple(error.args[1])) from error


def dataset_order(graph: Graph) -> tuple[DatasetName, ...]:
    """The names of the datasets, inputs first; names that are read but not defined are left out.
    Raises `DependencyCycle`.
    """

    def inputs_of(name: DatasetName) -> Iterable[DatasetName]:
        return [
            i for pipeline in graph.pipelines_of(name) for i in pipeline.inputs if graph.dataset(i)
        ]

    return inputs_first([dataset.name for dataset in graph.datasets], inputs_of)


def resolve(
    graph: Graph, inputs: Iterable[FeatureRef], outputs: Iterable[FeatureRef]
) -> tuple[Extractor, ...] | Problem:
    """The extractors that compute `outputs` from `inputs`, each after those whose features it
    needs; none for features that are given.

    A Problem when a feature is neither given nor computable, is unknown, or needs itself.
    """
    given = set(inputs)
    wanted = [ref for ref in outputs if ref not in given]
    missing: list[FeatureRef] = []

    def providers(refs: Iterable[FeatureRef]) -> list[Extractor]:
        found: dict[Extractor, None] = {}
        for ref in refs:
            if ref in given:
                continue
            extractor = graph.extractor_of(ref)
            if extractor is None:
                missing.append(ref)
            else:
                found[extractor] = None
        return list(found)

    try:
        order = inputs_first(providers(wanted), lambda extractor: providers(extractor.inputs))
    except DependencyCycle as cycle:
        path = [str(x.fqn) for x in cycle.path if isinstance(x, Extractor)]
        return Problem("feature-cycle", path[0], f"Cyclic dependency found for {' -> '.join(path)}")
    if missing:
        unknown = next((ref for ref in missing if graph.feature(ref) is None), None)
        if unknown is not None:
            return Problem(
                "feature-unknown",
                unknown.fqn,
                f"Feature `{unknown.fqn}` is not committed on this branch.",
            )
        return Problem(
            "feature-provider",
            missing[0].fqn,
            f"No extractor found for feature `{missing[0].fqn}`.",
        )
    return order
