"""A query as of times, planned against one version of a branch, in a form that tasks load.

A bound program holds compiled expressions, which only the process that compiled them can use. So
what travels to tasks is the plan and the datasets that it looks up; a task binds it again, which
takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.offline.extractors import check_extractors
from fennel_core.offline.lookup_groups import Erasures
from fennel_core.operators.spec import StepSpec
from fennel_core.plans.errors import PlansError
from fennel_core.plans.plan_nodes import ListLookupNode, LookupNode, QueryPlan
from fennel_core.plans.planner import make_plan
from fennel_core.query.errors import QueryRejected
from fennel_core.query.program import QueryProgram, ServedDataset, bind
from fennel_core.query.view import FeatureRequest, View
from fennel_core.vocab.ids import DatasetName, JobId


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A plan and the datasets that it looks up."""

    plan: QueryPlan
    tables: Mapping[DatasetName, ServedDataset]

    @classmethod
    def of(cls, view: View, asked: FeatureRequest) -> PlannedQuery:
        """Plan a query on a version of a branch.

        Raises `QueryRejected` or another `QueryError`, and `ExtractorNotOffline`.
        """
        try:
            plan = make_plan(view.index, *asked)
        except PlansError as refused:
            raise QueryRejected(refused) from refused
        read = {
            node.dataset
            for level in plan.levels
            for node in level.remote
            if isinstance(node, LookupNode | ListLookupNode)
        }
        query = cls(plan, {name: table for name, table in view.tables.items() if name in read})
        check_extractors(query.program())
        return query

    def program(self) -> QueryProgram:
        """Return the program; raises `LookupRejected` or `UnknownDataset`."""
        return bind(self.plan, self.tables, offline=True)

    def jobs(self) -> tuple[JobId, ...]:
        """Return the distinct jobs that serve the lookups."""
        lookups = (lookup for level in self.program().levels for lookup in level.lookups)
        return tuple(dict.fromkeys(lookup.job for lookup in lookups))


@dataclass(frozen=True, slots=True)
class OfflineQuery:
    """A planned query with what it reads besides rows. `specs`: the steps of its jobs."""

    planned: PlannedQuery
    specs: Mapping[JobId, StepSpec]
    erasures: Erasures
