"""What a commit asks for that has no effect here although nothing is lost by it.

Such a definition is accepted, and its author reads one line about it in the plan. What would lose
rows or change results is refused instead (`graph/passes/capabilities.py`, decision 0030).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fennel_core.blueprints.plan_entries import Notice
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.expectations import accepted_before, reasons_not_evaluable
from fennel_core.vocab.dtypes import show
from fennel_core.wire.entities import Dataset, ExpectedOf, IndexSide, Pipeline
from fennel_core.wire.operators import Aggregate, Count, Quantile, WindowOp

DAY_US: Final = 86_400_000_000
_UNITS: Final = (("d", DAY_US), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000))


def definition_notices(graph: Graph, before: Graph | None = None) -> tuple[Notice, ...]:
    """Return the notices about the definitions of a valid commit, in their order.

    `before`: the definitions that the branch has now.
    """
    notices = [notice for dataset in graph.datasets for notice in _dataset(graph, dataset)]
    notices += [notice for pipeline in graph.pipelines for notice in _pipeline(graph, pipeline)]
    notices += [
        Notice(
            "expectations-not-evaluated",
            suite.entity,
            f"featureset `{suite.entity}`: its expectations are recorded and not evaluated; those "
            "of datasets are",
        )
        for suite in graph.expectations
        if suite.entity_kind is ExpectedOf.FEATURESET
    ]
    if before is not None:
        notices += _expectations(graph, before)
        notices += _feature_types(graph, before)
    return tuple(notices)


def _expectations(graph: Graph, before: Graph) -> Iterator[Notice]:
    """Yield the expectations of datasets that an earlier release accepted, and this one not."""
    for suite in graph.expectations:
        accepted = accepted_before(before, suite)
        for expectation, why in reasons_not_evaluable(graph, suite).items():
            if expectation in accepted:
                yield Notice(
                    "expectation-not-evaluable",
                    suite.entity,
                    f"dataset `{suite.entity}`: `{expectation.type}` is recorded as before and "
                    f"cannot be evaluated: {why}",
                )


def _feature_types(graph: Graph, before: Graph) -> Iterator[Notice]:
    """Yield the features that have another type; those of user code need a new version instead."""
    for feature in graph.features:
        old = before.feature(feature.ref)
        if old is not None and old.dtype != feature.dtype:
            yield Notice(
                "feature-type-changed",
                feature.ref.fqn,
                f"feature `{feature.ref.fqn}` is `{show(feature.dtype)}` and was "
                f"`{show(old.dtype)}`; its consumers receive the new type",
            )


def _dataset(graph: Graph, dataset: Dataset) -> Iterator[Notice]:
    for index in graph.indices_of(dataset.name):
        if index.duration_us is not None:
            yield Notice(
                "index-duration-not-applied",
                dataset.name,
                f"dataset `{dataset.name}`: the duration {duration(index.duration_us)} of its "
                f"{index.side.value} index is recorded; lookups find older rows too",
            )
    if dataset.schema.keyed and not graph.has_index(dataset.name, IndexSide.ONLINE):
        readers = sorted(
            ref.fqn
            for extractor in graph.extractors
            if dataset.name in extractor.datasets
            for ref in extractor.output_refs
        )
        if readers:
            yield Notice(
                "online-index-missing",
                dataset.name,
                f"dataset `{dataset.name}` has no online index; queries of {', '.join(readers)} "
                "are refused until it has one",
            )
    if not graph.sources_of(dataset.name) and not graph.pipelines_of(dataset.name):
        yield Notice(
            "no-rows-arrive",
            dataset.name,
            f"dataset `{dataset.name}` has neither a source nor a pipeline in this environment, so "
            "no rows arrive in it",
        )


def _pipeline(graph: Graph, pipeline: Pipeline) -> Iterator[Notice]:
    columns = [
        spec.name
        for operator in graph.operators_of(pipeline)
        if isinstance(operator.kind, Aggregate | WindowOp)
        for spec in operator.kind.specs
        if isinstance(spec, Count | Quantile) and spec.approx
    ]
    if columns:
        names = ", ".join(f"`{name}`" for name in columns)
        yield Notice(
            "results-are-exact",
            f"{pipeline.dataset}.{pipeline.name}",
            f"dataset `{pipeline.dataset}`: {names} may be approximate and will be exact",
        )


def duration(micros: int) -> str:
    """Return a duration in the client's notation, in the largest unit that divides it."""
    for unit, size_us in _UNITS:
        if micros % size_us == 0:
            return f"{micros // size_us}{unit}"
    return f"{micros}us"
