"""Check that expectations are about columns that exist and rows that can be seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.terminals import is_terminal_dataset
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import ExpectationSuite, ExpectedOf

_COLUMN: Final = "expect_column_values_to_"
_PAIR: Final = "expect_column_pair_values_"
KINDS: Final = frozenset(
    {
        *(f"{_COLUMN}{kind}" for kind in ("be_null", "not_be_null", "be_of_type", "be_between")),
        *(f"{_COLUMN}{kind}" for kind in ("be_in_type_list", "be_in_set", "not_be_in_set")),
        *(f"{_COLUMN}{kind}" for kind in ("match_regex", "not_match_regex", "match_regex_list")),
        *(f"{_COLUMN}{kind}" for kind in ("not_match_regex_list", "match_strftime_format")),
        *(f"{_COLUMN}{kind}" for kind in ("be_dateutil_parseable", "be_json_parseable")),
        f"{_COLUMN}match_json_schema",
        "expect_column_value_lengths_to_be_between",
        "expect_column_value_lengths_to_equal",
        f"{_PAIR}to_be_equal",
        f"{_PAIR}to_be_in_set",
        f"{_PAIR}a_to_be_greater_than_b",
        "expect_multicolumn_sum_to_equal",
    }
)
"""The expectations of the client, by the name that it sends."""
COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list")


def check_expectations(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per suite on a missing or terminal entity, and per invalid expectation."""
    del before
    for suite in graph.expectations:
        columns = _columns(graph, suite)
        if columns is None:
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
        yield from _suite(suite, columns)


def _columns(graph: Graph, suite: ExpectationSuite) -> frozenset[str] | None:
    """Return the columns of the suite's entity, None if it is not in the graph."""
    match suite.entity_kind:
        case ExpectedOf.DATASET:
            dataset = graph.dataset(suite.entity)
            return None if dataset is None else frozenset(dataset.schema.names)
        case ExpectedOf.FEATURESET:
            if graph.featureset(suite.entity) is None:
                return None
            return frozenset(f.ref.name for f in graph.features_of(suite.entity))


def _suite(suite: ExpectationSuite, columns: frozenset[str]) -> Iterator[Problem]:
    where = f"{suite.entity_kind.value} `{suite.entity}`"
    for expectation in suite.expectations:
        if expectation.type not in KINDS:
            text = (
                f"{where} has an expectation `{expectation.type}`, which is unknown; use one of "
                "the client's `expect_…` functions"
            )
            yield Problem("expectation-kind", suite.entity, text)
            continue
        for column in _named_columns(expectation.kwargs):
            if column not in columns:
                text = (
                    f"{where}: `{expectation.type}` is about column `{column}`, which it does not "
                    f"have; its columns are {sorted(columns)}"
                )
                yield Problem("expectation-column", suite.entity, text)


def _named_columns(kwargs: str) -> Iterator[str]:
    """Yield the columns in the arguments of an expectation, which are a JSON object."""
    try:
        arguments = json.loads(kwargs)
    except json.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        return
    for name in COLUMN_ARGUMENTS:
        value = arguments.get(name, [])
        yield from map(str, value if isinstance(value, list) else [value])
