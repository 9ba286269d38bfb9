"""Check that names are unique.

A dataset or featureset is committed once, and so is a feature, an extractor or a pipeline within
its owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def unique_names(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per name that occurs twice."""
    del before
    kinds: tuple[tuple[str, Iterable[str]], ...] = (
        ("Dataset", (d.name for d in graph.datasets)),
        ("Featureset", (f.name for f in graph.featuresets)),
        ("Feature", (f.ref.fqn for f in graph.features)),
        ("Pipeline", (f"{p.dataset}.{p.name}" for p in graph.pipelines)),
        ("Extractor", (x.fqn for x in graph.extractors)),
    )
    for kind, names in kinds:
        for name, count in Counter(names).items():
            if count > 1:
                yield Problem("duplicate-name", name, f"{kind} {name} already registered")
