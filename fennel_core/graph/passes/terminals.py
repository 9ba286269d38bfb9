"""Check that a terminal aggregation is last: its values are computed only when they are read."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Pipeline
from fennel_core.wire.operators import Aggregate, Operator


def terminals_are_last(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per operator after a terminal aggregation.

    Also yields one per pipeline that reads a dataset with a terminal aggregation.
    """
    del before
    for pipeline in graph.pipelines:
        terminal = {o.id for o in graph.operators_of(pipeline) if _is_terminal(o)}
        for operator in graph.operators_of(pipeline):
            if terminal.intersection(operator.inputs):
                kind = type(operator.kind).__name__.rstrip("_")
                text = (
                    f"Cannot add node '{kind}' after a terminal node in pipeline : "
                    f"`{pipeline.name}`."
                )
                yield Problem("after-terminal", f"{pipeline.dataset}.{pipeline.name}", text)
        for name in dict.fromkeys(pipeline.inputs):
            if is_terminal_dataset(graph, name):
                text = (
                    f"pipeline `{pipeline.dataset}.{pipeline.name}` cannot have "
                    f"terminal dataset `{name}` as input; "
                    "aggregate with discrete windows or read its inputs instead"
                )
                yield Problem("terminal-input", f"{pipeline.dataset}.{pipeline.name}", text)


def is_terminal_dataset(graph: Graph, name: str) -> bool:
    """Return whether the dataset ends in a terminal aggregation, so has no rows to pass on."""
    return any(_ends_terminal(graph, pipeline) for pipeline in graph.pipelines_of(name))


def _ends_terminal(graph: Graph, pipeline: Pipeline) -> bool:
    root = graph.root_of(pipeline)
    return root is not None and _is_terminal(root)


def _is_terminal(operator: Operator) -> bool:
    return isinstance(operator.kind, Aggregate) and operator.kind.terminal
