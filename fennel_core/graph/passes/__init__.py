"""The validation passes, in the order in which their findings are reported.

Every pass is one file with one function `(graph, before) -> Iterator[Problem]`. `graph` holds the
definitions of the branch after the commit, `before` those it has now (None for a branch without
commits). Each pass reports only its own rule: an unresolved name is reported by
`resolve_references` alone, and passes that need the missing entity skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.capabilities import refuse_unserved
from fennel_core.graph.passes.connectors import one_definition_per_connector
from fennel_core.graph.passes.cycles import forbid_cycles
from fennel_core.graph.passes.dependencies import declare_dependencies
from fennel_core.graph.passes.expectations import check_expectations
from fennel_core.graph.passes.expressions import check_expressions
from fennel_core.graph.passes.extractors import one_extractor_per_feature
from fennel_core.graph.passes.fields import check_fields
from fennel_core.graph.passes.indices import indices_need_keys
from fennel_core.graph.passes.joins import right_sides_are_datasets
from fennel_core.graph.passes.lookups import check_lookups
from fennel_core.graph.passes.names import unique_names
from fennel_core.graph.passes.owners import require_owners
from fennel_core.graph.passes.pipelines import one_pipeline_per_dataset
from fennel_core.graph.passes.references import resolve_references
from fennel_core.graph.passes.schemas import check_operator_schemas
from fennel_core.graph.passes.sinks import check_sinks
from fennel_core.graph.passes.sources import check_sources
from fennel_core.graph.passes.supersets import keep_features
from fennel_core.graph.passes.terminals import terminals_are_last
from fennel_core.graph.passes.versions import require_new_version_on_change
from fennel_core.vocab.problems import Problem

Pass = Callable[[Graph, Graph | None], Iterator[Problem]]

RULES: tuple[Pass, ...] = (
    unique_names,
    require_owners,
    check_fields,
    resolve_references,
    forbid_cycles,
    one_pipeline_per_dataset,
    check_sources,
    check_sinks,
    one_definition_per_connector,
    refuse_unserved,
    indices_need_keys,
    right_sides_are_datasets,
    check_operator_schemas,
    check_expressions,
    terminals_are_last,
    check_expectations,
    one_extractor_per_feature,
    check_lookups,
    declare_dependencies,
    require_new_version_on_change,
)
INCREMENTAL_RULES: tuple[Pass, ...] = (keep_features,)
"""Rules of incremental commits only: a full commit may leave out any definition."""


def validate(
    graph: Graph, before: Graph | None, *, incremental: bool = False
) -> tuple[Problem, ...]:
    """Return every problem of the commit that turns `before` into `graph`; empty if it is valid.

    For an incremental commit, `graph` is `merge_incremental(before, build_graph(request))`.
    """
    rules = (*RULES, *INCREMENTAL_RULES) if incremental else RULES
    return tuple(problem for rule in rules for problem in rule(graph, before))
