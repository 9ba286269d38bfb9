"""Check that each feature has one extractor among those that the environment selects."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import FeatureRef


def one_extractor_per_feature(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per extractor that computes a feature of another extractor."""
    del before
    provided: set[FeatureRef] = set()
    for extractor in graph.extractors:
        for ref in extractor.output_refs:
            if ref in provided:
                text = (
                    f"Feature `{ref.name}` is extracted by multiple extractors "
                    f"including `{extractor.name}` "
                    f"in featureset `{extractor.featureset}`."
                )
                yield Problem("several-extractors", ref.fqn, text)
            provided.add(ref)
