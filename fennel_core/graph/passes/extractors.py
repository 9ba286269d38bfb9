"""Check that each feature has one extractor among those that the environment selects, and that an
extractor which the client generates computes one feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Alias, FeatureRef, PyFunc


def one_extractor_per_feature(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per extractor that computes a feature of another extractor, and per
    generated extractor that does not compute exactly one.
    """
    del before
    for extractor in graph.extractors:
        if not isinstance(extractor.kind, PyFunc) and len(extractor.outputs) != 1:
            text = (
                f"extractor `{extractor.fqn}` computes {len(extractor.outputs)} features, but a "
                "lookup, an alias and an expression compute exactly one"
            )
            yield Problem("extractor-outputs", extractor.fqn, text)
        if isinstance(extractor.kind, Alias) and len(extractor.inputs) != 1:
            text = (
                f"extractor `{extractor.fqn}` is an alias of {len(extractor.inputs)} features; "
                "an alias has exactly one input"
            )
            yield Problem("extractor-inputs", extractor.fqn, text)
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
