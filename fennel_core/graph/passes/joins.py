"""Check that the right side of a join is a dataset."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.operators import DatasetRef, Join


def right_sides_are_datasets(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per join whose right side is the result of an operator."""
    del before
    for pipeline in graph.pipelines:
        operators = {o.id: o for o in graph.operators_of(pipeline)}
        for operator in operators.values():
            if not isinstance(operator.kind, Join):
                continue
            right = operators.get(operator.kind.right)
            if right is not None and not isinstance(right.kind, DatasetRef):
                name = f"{pipeline.dataset}.{pipeline.name}"
                kind = type(right.kind).__name__.rstrip("_")
                text = (
                    f"pipeline `{name}` joins with the result of an operator `{kind}`, but the "
                    "right side of a join must be a dataset; compute it as a dataset of its own"
                )
                yield Problem("join-right", name, text)
