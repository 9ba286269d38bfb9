"""Check that sinks belong to derived datasets: a dataset with a source has no sink."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def sinks_only_on_derived(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset with a sink but without a pipeline."""
    del before
    for dataset in graph.datasets:
        if graph.sinks_of(dataset.name) and not graph.pipelines_of(dataset.name):
            text = f"Dataset `{dataset.name}` error: Cannot define sinks on a source dataset"
            yield Problem("sink-on-source", dataset.name, text)
