"""Check that at most one pipeline computes a dataset.

Environments are selected by the client: it sends only the pipelines of the commit's environment.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem


def one_pipeline_per_dataset(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset with several pipelines or pipeline of another version."""
    del before
    for dataset in graph.datasets:
        pipelines = graph.pipelines_of(dataset.name)
        if len(pipelines) > 1:
            names = ", ".join(f"`{p.name}`" for p in pipelines)
            text = (
                f"Dataset `{dataset.name}` is computed by {names}; give each its own env "
                "and commit with one, so that only one is selected"
            )
            yield Problem("several-pipelines", dataset.name, text)
        for pipeline in pipelines:
            if pipeline.version != dataset.version:
                text = (
                    f"pipeline `{dataset.name}.{pipeline.name}` has version {pipeline.version}, "
                    f"but its dataset has version {dataset.version}; use the same version"
                )
                yield Problem("pipeline-version", f"{dataset.name}.{pipeline.name}", text)
