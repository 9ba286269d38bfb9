"""Check that indexed datasets have keys: an index is a lookup by key."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def indices_need_keys(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per indexed dataset without keys."""
    del before
    for dataset in graph.datasets:
        if graph.indices_of(dataset.name) and not dataset.schema.keyed:
            text = (
                "Index is only applicable for datasets with keyed fields. Found zero "
                f"key fields for dataset : `{dataset.name}`."
            )
            yield Problem("index-keys", dataset.name, text)
