"""An incremental commit takes no feature away silently: what a featureset had, it still has, or
names as deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.problems import Problem


def keep_features(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per featureset that lost a feature without a word."""
    if before is None:
        return
    for featureset in graph.featuresets:
        had = {feature.ref for feature in before.features_of(featureset.name)}
        has = {feature.ref for feature in graph.features_of(featureset.name)}
        if had - has - set(graph.retired.features):
            text = f"Featureset {featureset.name} is not a superset of the existing featureset"
            yield Problem("featureset-superset", featureset.name, text)
