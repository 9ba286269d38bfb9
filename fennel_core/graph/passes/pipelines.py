"""A dataset is computed by at most one pipeline.

Environments are the client's business: it sends only the pipelines that the commit's environment
selects.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.problems import Problem


def one_pipeline_per_dataset(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset with several pipelines, and per pipeline of another version
    than its dataset.
    """
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
                    f"pipeline `{dataset.name}.{pipeline.name}` is of version "
                    f"{pipeline.version}, its dataset of {dataset.version}"
                )
                yield Problem("pipeline-version", f"{dataset.name}.{pipeline.name}", text)
