"""A query as of times, planned against one version of a branch, in a form that tasks load.

A bound program holds compiled expressions, which only the process that compiled them can use. So
what travels to tasks is the plan and the datasets that it looks up; a task binds it again, which
takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from fennel_core.offline.lookup_groups import Erasures
from fennel_core.operators.spec import StepSpec
from fennel_core.plans.errors import PlansError
from fennel_core.plans.plan_nodes import (
    ListLookupNode,
    LookupNode,
    PythonExtractorNode,
    QueryPlan,
)
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

        Raises `QueryRejected` or another `QueryError`.
        """
        try:
            plan = make_plan(view.index, *asked)
        except PlansError as refused:
            raise QueryRejected(refused) from refused
        read: set[DatasetName] = set()
        for node in (node for level in plan.levels for node in level.remote):
            match node:
                case LookupNode(dataset=name) | ListLookupNode(dataset=name):
                    read.add(name)
                case PythonExtractorNode(datasets=names):
                    read.update(names)
                case unreachable:
                    assert_never(unreachable)
        query = cls(plan, {name: table for name, table in view.tables.items() if name in read})
        query.program()
        return query

    def program(self) -> QueryProgram:
        """Return the program; raises `LookupRejected` or `UnknownDataset`."""
        return bind(self.plan, self.tables, offline=True)

    def jobs(self) -> tuple[JobId, ...]:
        """Return the distinct jobs that serve the lookups, those of user code included."""
        levels = self.program().levels
        lookups = [lookup.job for level in levels for lookup in level.lookups]
        code = [
            table.offline_job()
            for level in levels
            for step in level.extractors
            for table in step.tables.values()
            if table.serves_times
        ]
        return tuple(dict.fromkeys([*lookups, *code]))


@dataclass(frozen=True, slots=True)
class OfflineQuery:
    """A planned query with what it reads besides rows. `specs`: the steps of its jobs."""

    planned: PlannedQuery
    specs: Mapping[JobId, StepSpec]
    erasures: Erasures
