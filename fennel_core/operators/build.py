"""From a job's specification to the step that runs it.

User code is no step: it waits for an executor, so the engine runs it (`spec.UserCodeSpec`).
"""

from __future__ import annotations

from typing import assert_never

from fennel_core.operators.aggregate.change_points import ChangePointStep
from fennel_core.operators.aggregate.emitted import EmittedAggregateStep
from fennel_core.operators.aggregate.keyed_input import (
    EmittedKeyedAggregateStep,
    KeyedAggregateStep,
)
from fennel_core.operators.aggregate.read_time import ReadTimeAggregateStep
from fennel_core.operators.changelog.step import ChangelogStep
from fennel_core.operators.dedup.step import DedupStep
from fennel_core.operators.first_latest.step import FirstStep, LatestStep
from fennel_core.operators.intervals.step import IntervalsStep
from fennel_core.operators.join.stream_table import StreamTableJoinStep
from fennel_core.operators.join.table_table import TableTableJoinStep
from fennel_core.operators.map.step import MapStep
from fennel_core.operators.spec import (
    AggregateSpec,
    ChangelogSpec,
    DedupSpec,
    FirstLatestSpec,
    IntervalsSpec,
    JoinSpec,
    MapSpec,
    StepSpec,
    TableSpec,
    UserCodeSpec,
    WindowsSpec,
    has_validity,
)
from fennel_core.operators.step import LookupStep, OperatorStep, WatermarkStep
from fennel_core.operators.table.step import TableStep
from fennel_core.operators.windows.sessions import SessionWindowsStep
from fennel_core.operators.windows.step import HoppingWindowsStep
from fennel_core.wire.operators import Session


def build(spec: StepSpec) -> OperatorStep:
    """The step of a specification; TypeError for user code."""
    match spec:
        case TableSpec():
            return TableStep(spec)
        case MapSpec():
            return MapStep(spec)
        case JoinSpec():
            return (
                TableTableJoinStep(spec) if has_validity(spec.left) else StreamTableJoinStep(spec)
            )
        case AggregateSpec(terminal=True):
            return (
                KeyedAggregateStep(spec)
                if has_validity(spec.input)
                else ReadTimeAggregateStep(spec)
            )
        case AggregateSpec():
            return (
                EmittedKeyedAggregateStep(spec)
                if has_validity(spec.input)
                else EmittedAggregateStep(spec)
            )
        case FirstLatestSpec(first=first):
            return FirstStep(spec) if first else LatestStep(spec)
        case DedupSpec():
            return DedupStep(spec)
        case ChangelogSpec():
            return ChangelogStep(spec)
        case IntervalsSpec():
            return IntervalsStep(spec)
        case WindowsSpec(window=window):
            return (
                SessionWindowsStep(spec)
                if isinstance(window, Session)
                else HoppingWindowsStep(spec)
            )
        case UserCodeSpec():
            raise TypeError("user code is run by the engine through an executor, not by a step")
        case unreachable:
            assert_never(unreachable)


def as_lookup_step(step: OperatorStep) -> LookupStep | None:
    """The side of a step that answers lookups, None where it has none."""
    return (
        step if isinstance(step, TableStep | ReadTimeAggregateStep | KeyedAggregateStep) else None
    )


def as_watermark_step(step: OperatorStep) -> WatermarkStep | None:
    """The side of a step that wants to be told the frontier of its input, None where it has
    none.
    """
    return step if isinstance(step, ChangePointStep | SessionWindowsStep) else None


def is_order_deterministic(step: OperatorStep) -> bool:
    """Are the bytes of its state a function of the order of its rows, however they are cut into
    batches?

    Not where a batch files its rows' beginnings and then their ends: there only what is answered
    is.
    """
    return not isinstance(step, KeyedAggregateStep)
