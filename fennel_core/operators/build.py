"""Build the step that runs a job's specification.

What waits for an executor has no step: the engine runs it (`spec.has_native_step`).
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
from fennel_core.operators.errors import NoNativeStep
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
    SourceReplaySpec,
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
    """Return the step of a specification.

    Raises UnsupportedAggregation or UnsupportedWindow for a combination that has no defined result,
    NoNativeStep for what the engine awaits (`spec.has_native_step`).
    """
    match spec:
        case TableSpec():
            return TableStep(spec)
        case MapSpec():
            return MapStep(spec)
        case JoinSpec(left=left):
            return TableTableJoinStep(spec) if has_validity(left) else StreamTableJoinStep(spec)
        case AggregateSpec():
            return _build_aggregate(spec)
        case FirstLatestSpec(first=first):
            return FirstStep(spec) if first else LatestStep(spec)
        case DedupSpec():
            return DedupStep(spec)
        case ChangelogSpec():
            return ChangelogStep(spec)
        case IntervalsSpec():
            return IntervalsStep(spec)
        case WindowsSpec(window=Session()):
            return SessionWindowsStep(spec)
        case WindowsSpec():
            return HoppingWindowsStep(spec)
        case UserCodeSpec() | SourceReplaySpec():
            raise NoNativeStep(f"the engine awaits {type(spec).__name__}; it is not a step")
        case unreachable:
            assert_never(unreachable)


def _build_aggregate(spec: AggregateSpec) -> OperatorStep:
    if spec.terminal:
        return KeyedAggregateStep(spec) if has_validity(spec.input) else ReadTimeAggregateStep(spec)
    if has_validity(spec.input):
        return EmittedKeyedAggregateStep(spec)
    return EmittedAggregateStep(spec)


def as_lookup_step(step: OperatorStep) -> LookupStep | None:
    """Return the step as one that serves lookups, None if it does not."""
    lookup_steps = TableStep | ReadTimeAggregateStep | KeyedAggregateStep
    return step if isinstance(step, lookup_steps) else None


def as_watermark_step(step: OperatorStep) -> WatermarkStep | None:
    """Return the step as one that needs the watermark of its input, None if it does not."""
    return step if isinstance(step, ChangePointStep | SessionWindowsStep) else None


def is_order_deterministic(step: OperatorStep) -> bool:
    """Return whether the bytes of the step's state depend on the order of its rows alone, however
    they are cut into batches.

    They do not where a batch adds the starts of its rows' intervals and then their ends; there only
    the results of lookups are the same.
    """
    return not isinstance(step, KeyedAggregateStep)
