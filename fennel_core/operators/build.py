"""From a job's specification to the step that runs it.

User code is no step: it waits for an executor, so the engine runs it (`spec.UserCode`).
"""

from __future__ import annotations

from typing import assert_never

import polars as pl

from fennel_core.operators.aggregate import emitted
from fennel_core.operators.aggregate import step as aggregate
from fennel_core.operators.aggregate.emitted import EmittedAggregateStep
from fennel_core.operators.aggregate.step import AggregateStep
from fennel_core.operators.changelog import step as changelog
from fennel_core.operators.changelog.step import ChangelogStep
from fennel_core.operators.dedup import step as dedup
from fennel_core.operators.dedup.step import DedupStep
from fennel_core.operators.join import step as join
from fennel_core.operators.join.step import JoinStep
from fennel_core.operators.map import step as map_
from fennel_core.operators.map.step import MapStep
from fennel_core.operators.pick import step as pick
from fennel_core.operators.pick.step import FirstStep, LatestStep
from fennel_core.operators.spec import Aggregate, Changelog, Dedup, Join, Map, Pick, StepSpec, Table, UserCode, Windows
from fennel_core.operators.step import Outcome, Reads, Served, Step
from fennel_core.operators.table import step as table
from fennel_core.operators.table.step import TableStep
from fennel_core.operators.windows import sessions
from fennel_core.operators.windows import step as windows
from fennel_core.operators.windows.sessions import SessionWindowsStep
from fennel_core.operators.windows.step import HoppingWindowsStep
from fennel_core.wire.operators import Session


class EngineRuns:
    """Stands where a step would for user code: only an engine with an executor can run it."""

    def apply(self, reads: Reads, source: int, batch: pl.DataFrame) -> Outcome:  # noqa: ARG002  # the contract of Step
        raise TypeError("user code is run by the engine through an executor, not by a step")


def build(spec: StepSpec) -> Step:
    """The step of a specification."""
    match spec:
        case Table():
            return TableStep(spec)
        case Map():
            return MapStep(spec)
        case Join():
            return JoinStep(spec)
        case Aggregate(terminal=True):
            return AggregateStep(spec)
        case Aggregate():
            return EmittedAggregateStep(spec)
        case Pick(first=first):
            return FirstStep(spec) if first else LatestStep(spec)
        case Dedup():
            return DedupStep(spec)
        case Changelog():
            return ChangelogStep(spec)
        case Windows(window=window):
            return SessionWindowsStep(spec) if isinstance(window, Session) else HoppingWindowsStep(spec)
        case UserCode():
            return EngineRuns()
        case unreachable:
            assert_never(unreachable)


def step_version(spec: StepSpec) -> int:
    """Version of the step's results and state format: part of its job's identity."""
    match spec:
        case Table():
            return table.STEP_VERSION
        case Map():
            return map_.STEP_VERSION
        case Join():
            return join.STEP_VERSION
        case Aggregate():
            return aggregate.STEP_VERSION if spec.terminal else emitted.STEP_VERSION
        case Pick():
            return pick.STEP_VERSION
        case Dedup():
            return dedup.STEP_VERSION
        case Changelog():
            return changelog.STEP_VERSION
        case Windows(window=window):
            return sessions.STEP_VERSION if isinstance(window, Session) else windows.STEP_VERSION
        case UserCode():
            return 1
        case unreachable:
            assert_never(unreachable)


def served(step: Step) -> Served | None:
    """The side of a step that answers lookups, None where it has none."""
    return step if isinstance(step, TableStep | AggregateStep) else None
