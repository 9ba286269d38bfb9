"""Check that an incremental commit removes features only explicitly.

A featureset keeps every feature it had, or names it as deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def keep_features(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per featureset that lost a feature without naming it as deleted."""
    if before is None:
        return
    for featureset in graph.featuresets:
        had = {feature.ref for feature in before.features_of(featureset.name)}
        has = {feature.ref for feature in graph.features_of(featureset.name)}
        if had - has - set(graph.deleted.features):
            text = f"Featureset {featureset.name} is not a superset of the existing featureset"
            yield Problem("featureset-superset", featureset.name, text)
