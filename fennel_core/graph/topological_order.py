"""Topological orders: inputs before the entities computed from them.

The order is deterministic (ties in the order of the commit), so equal graphs give equal plans.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.errors import DependencyCycle
from fennel_core.vocab.ids import DatasetName

N = TypeVar("N", bound=Hashable)


def inputs_first(nodes: Iterable[N], inputs_of: Callable[[N], Iterable[N]]) -> tuple[N, ...]:
    """Return `nodes` and all their transitive inputs, inputs before their users.

    Raises `DependencyCycle`.
    """
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
    """Return the names of the datasets, inputs before the datasets computed from them.

    Names that are read but not defined are left out. Raises `DependencyCycle`.
    """

    def inputs_of(name: DatasetName) -> Iterable[DatasetName]:
        return [
            i for pipeline in graph.pipelines_of(name) for i in pipeline.inputs if graph.dataset(i)
        ]

    return inputs_first([dataset.name for dataset in graph.datasets], inputs_of)
