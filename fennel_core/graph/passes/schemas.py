"""Check that every operator fits its input and that a pipeline yields the declared schema."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.derived_schemas import (
    derive_known_schemas,
    schema_difference,
)
from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Pipeline
from fennel_core.wire.operators import DatasetRef, WindowOp


def check_operator_schemas(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield the problems of each pipeline whose references all resolve."""
    del before
    for pipeline in graph.pipelines:
        dataset, root = graph.dataset(pipeline.dataset), graph.root_of(pipeline)
        if dataset is None or root is None or not is_complete(graph, pipeline):
            continue
        name = f"{pipeline.dataset}.{pipeline.name}"
        where = f"dataset `{dataset.name}` v{dataset.version}: pipeline `{pipeline.name}`"
        schemas = derive_known_schemas(graph, pipeline)
        for text in dict.fromkeys(schemas.mismatches):
            yield Problem("operator-schema", name, f"{where}: {text}")
        derived = schemas.known.get(root.id)
        if derived is None:
            continue
        if isinstance(root.kind, WindowOp) and not root.kind.specs_known and dataset.schema.values:
            text = (
                f"{where} aggregates inside `groupby(…, window=…)`, and the client "
                "does not send these aggregations; "
                "end the windowed groupby with an empty `.aggregate()` and aggregate "
                "its rows by key and window after it"
            )
            yield Problem("window-aggregations", name, text)
            continue
        difference = schema_difference(derived, dataset.schema)
        if difference is not None:
            yield Problem(
                "pipeline-schema", name, f"{where} does not yield the declared schema: {difference}"
            )


def is_complete(graph: Graph, pipeline: Pipeline) -> bool:
    """Return whether all names inside the pipeline resolve; `resolve_references` reports those that
    do not.
    """
    operators = graph.operators_of(pipeline)
    ids = {operator.id for operator in operators}
    datasets = [o.kind.dataset for o in operators if isinstance(o.kind, DatasetRef)]
    return all(graph.dataset(name) for name in datasets) and all(
        i in ids for o in operators for i in o.inputs
    )
