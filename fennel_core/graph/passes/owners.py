"""Check that every dataset and featureset has an owner."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def require_owners(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset and featureset without an owner, with the client's text."""
    del before
    for dataset in graph.datasets:
        if not dataset.metadata.owner:
            text = f"Dataset {dataset.name} must have an owner."
            yield Problem("owner-missing", dataset.name, text)
    for featureset in graph.featuresets:
        if not featureset.metadata.owner:
            text = f"Featureset {featureset.name} must have an owner."
            yield Problem("owner-missing", featureset.name, text)
