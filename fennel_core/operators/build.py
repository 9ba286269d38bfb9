"""From a job's specification to the step that runs it.

User code is no step: it waits for an executor, so the engine runs it (`spec.UserCode`).
"""

from __future__ import annotations

from typing import assert_never

from fennel_core.operators.join.step import JoinStep
from fennel_core.operators.map.step import MapStep
from fennel_core.operators.spec import Aggregate, Changelog, Dedup, Join, Map, Pick, StepSpec, Table, UserCode, Windows
from fennel_core.operators.step import Served, Step
from fennel_core.operators.table.step import TableStep


def build(spec: StepSpec) -> Step:
    """The step of a specification; TypeError for user code, which the engine runs itself."""
    match spec:
        case Table():
            return TableStep(spec)
        case Map():
            return MapStep(spec)
        case Join():
            return JoinStep(spec)
        case Aggregate() | Pick() | Dedup() | Changelog() | Windows():
            raise NotImplementedError(f"{type(spec).__name__} has no step yet")
        case UserCode():
            raise TypeError("user code is run by the engine through an executor, not by a step")
        case unreachable:
            assert_never(unreachable)


def served(step: Step) -> Served | None:
    """The side of a step that answers lookups, None where it has none."""
    return step if isinstance(step, TableStep) else None
