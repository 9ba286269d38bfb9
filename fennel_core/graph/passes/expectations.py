"""Check that expectations can be evaluated: their kinds, columns, arguments and rows.

Arguments are not checked where that would stop a commit for nothing: those of featuresets, which
are not evaluated, and those that the branch has already, since an earlier release accepted them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fennel_core.expectations.errors import ExpectationInvalid
from fennel_core.expectations.expected import COLUMN_ARGUMENTS, KINDS, json_object, read_expectation
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.terminals import is_terminal_dataset
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Expectation, ExpectationSuite, ExpectedOf


def check_expectations(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per suite on a missing or terminal entity, and per invalid expectation."""
    for suite in graph.expectations:
        dtypes = _dtypes(graph, suite)
        if dtypes is None:
            text = (
                f"{suite.entity_kind.value.capitalize()} `{suite.entity}` not found in sync call, "
                "but expectations belong to it"
            )
            yield Problem("expectation-owner", suite.entity, text)
            continue
        if suite.entity_kind is ExpectedOf.DATASET and is_terminal_dataset(graph, suite.entity):
            text = (
                f"Dataset {suite.entity} has a terminal aggregate node with Continuous windows, we "
                "currently dont support expectations on continuous windows."
            )
            yield Problem("expectation-terminal", suite.entity, text)
        accepted = accepted_before(before, suite)
        reasons = reasons_not_evaluable(graph, suite)
        yield from _suite(
            suite, dtypes, {each: why for each, why in reasons.items() if each not in accepted}
        )


def reasons_not_evaluable(graph: Graph, suite: ExpectationSuite) -> dict[Expectation, str]:
    """Return why expectations of a dataset about its columns cannot be evaluated."""
    dtypes = _dtypes(graph, suite)
    found: dict[Expectation, str] = {}
    if suite.entity_kind is not ExpectedOf.DATASET or dtypes is None:
        return found
    for expectation in suite.expectations:
        if expectation.type in KINDS and dtypes.keys() >= {*_named_columns(expectation.kwargs)}:
            try:
                read_expectation(expectation, dtypes)
            except ExpectationInvalid as invalid:
                found[expectation] = str(invalid)
    return found


def accepted_before(before: Graph | None, suite: ExpectationSuite) -> frozenset[Expectation]:
    """Return the expectations that an entity has already although they cannot be evaluated."""
    if before is None:
        return frozenset()
    return frozenset(
        expectation
        for known in before.expectations
        if (known.entity, known.entity_kind) == (suite.entity, suite.entity_kind)
        for expectation in reasons_not_evaluable(before, known)
    )


def _dtypes(graph: Graph, suite: ExpectationSuite) -> dict[str, Dtype] | None:
    """Return the columns of the suite's entity with their types, None if it is not in the graph."""
    match suite.entity_kind:
        case ExpectedOf.DATASET:
            dataset = graph.dataset(suite.entity)
            return None if dataset is None else {f.name: f.dtype for f in dataset.schema.fields}
        case ExpectedOf.FEATURESET:
            if graph.featureset(suite.entity) is None:
                return None
            return {f.ref.name: f.dtype for f in graph.features_of(suite.entity)}


def _suite(
    suite: ExpectationSuite, dtypes: Mapping[str, Dtype], reasons: Mapping[Expectation, str]
) -> Iterator[Problem]:
    where = f"{suite.entity_kind.value} `{suite.entity}`"
    for expectation in suite.expectations:
        if expectation.type not in KINDS:
            text = (
                f"{where} has an expectation `{expectation.type}`, which is unknown; use one of "
                "the client's `expect_…` functions"
            )
            yield Problem("expectation-kind", suite.entity, text)
            continue
        missing = [c for c in _named_columns(expectation.kwargs) if c not in dtypes]
        for column in missing:
            text = (
                f"{where}: `{expectation.type}` is about column `{column}`, which it does not "
                f"have; its columns are {sorted(dtypes)}"
            )
            yield Problem("expectation-column", suite.entity, text)
        if expectation in reasons:
            text = f"{where}: `{expectation.type}` cannot be evaluated: {reasons[expectation]}"
            yield Problem("expectation-argument", suite.entity, text)


def _named_columns(kwargs: str) -> Iterator[str]:
    """Yield the columns in the arguments of an expectation, which are a JSON object."""
    arguments = json_object(kwargs)
    if arguments is None:
        return
    for name in COLUMN_ARGUMENTS:
        value = arguments.get(name, [])
        yield from map(str, value if isinstance(value, list) else [value])
