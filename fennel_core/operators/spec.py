"""Step specifications: what a job computes, as data. The registry stores them; `operators.build`
makes the step.

Each spec names the schemas it reads and writes, so that a step never guesses. `STEP_VERSION` of a
step enters the identity of its job: raise it when the step's results or its state format change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.vocab.dtypes import Field, Optional, Timestamp
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from fennel_core.wire.pycode import PyCode

TO = "__to"
"""Column of signed facts: the end (exclusive) of the row's life, null while it has no successor."""


def facts_of(schema: Schema) -> Schema:
    """The schema of a keyed dataset as signed facts: keys and values as values, then `TO`; the
    timestamp is the beginning of life.
    """
    assert schema.keyed, "rows of a keyless dataset have no end"
    return Schema(
        (), (*schema.keys, *schema.values, Field(TO, Optional(Timestamp()))), schema.timestamp
    )


def has_facts(schema: Schema) -> bool:
    """Are rows of this schema signed facts?"""
    return schema.field(TO) is not None


@dataclass(frozen=True, slots=True)
class Table:
    """Keeps every version of a keyed dataset for lookups and as-of reads. Input 0: the dataset's
    topic. No outputs.
    """

    schema: Schema


StatelessOp = (
    wire.AssignExpr | wire.FilterExpr | wire.Rename | wire.Drop | wire.Dropnull | wire.Explode
)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stateless native operator and the schema it puts out."""

    op: StatelessOp
    output: Schema


@dataclass(frozen=True, slots=True)
class Map:
    """A run of fused stateless operators. Input i (one per branch of a union) goes through
    `branches[i]`; output 0 takes all of them.

    A row's position is extended by the branch number when there is more than one branch.
    """

    inputs: tuple[Schema, ...]
    branches: tuple[tuple[Stage, ...], ...]
    output: Schema


@dataclass(frozen=True, slots=True)
class UserCode:
    """Runs user code (transform, assign or filter) in an executor. Input 0, output 0. `column` is
    the assigned column, if any.
    """

    kind: str
    code: PyCode
    column: Field | None
    input: Schema
    output: Schema


@dataclass(frozen=True, slots=True)
class Join:
    """Stream–table join. Input 0: the left side, partitioned by `left_on`; input 1: the right
    dataset's topic. Output 0.

    A left row at time T meets the latest right version with T − low <= ts <= T + high (both
    inclusive; low None is for ever back). `right_values`: right columns that join the output, in
    order; the right timestamp may be among them.
    """

    left: Schema
    right: Schema
    left_on: tuple[str, ...]
    right_values: tuple[str, ...]
    inner: bool
    low_us: int | None
    high_us: int
    output: Schema


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Grouped aggregation; input 0 partitioned by `keys`. `terminal`: no output topic, lookups
    assemble from this job's state.
    """

    input: Schema
    keys: tuple[str, ...]
    specs: tuple[wire.Spec, ...]
    along: str | None
    final: bool
    terminal: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class Pick:
    """groupby(..).first() or .latest(): one row per key, by (timestamp, position). Input 0
    partitioned by `keys`; output 0 is keyed.
    """

    input: Schema
    keys: tuple[str, ...]
    first: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class Dedup:
    """Keeps the last row per (`by`, timestamp) or per window. Input 0 partitioned by `by`; output
    0.
    """

    input: Schema
    by: tuple[str, ...]
    window: wire.Window | None
    output: Schema


@dataclass(frozen=True, slots=True)
class Changelog:
    """A keyed dataset as a stream of inserts and deletes. Input 0 partitioned by its key; output 0
    is keyless.
    """

    input: Schema
    kind_column: str
    deletes: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class Windows:
    """groupby(.., window=W): one row per key and window. Input 0 partitioned by `by`; output 0
    keyed by `by` + `field`.

    Each of `specs` aggregates the rows of the window, whatever window it names itself.
    """

    input: Schema
    by: tuple[str, ...]
    field: str
    window: wire.Window
    output: Schema
    specs: tuple[wire.Spec, ...] = ()


@dataclass(frozen=True, slots=True)
class Intervals:
    """A keyed dataset as signed facts: each row with the time its successor ends it. Input 0
    partitioned by its key; output 0 is keyless.

    This is how a keyed dataset reaches a step that is partitioned by something else: there the end
    of a row cannot be derived any more. `output` is `facts_of(input)`.
    """

    input: Schema
    output: Schema


StepSpec = (
    Table | Map | UserCode | Join | Aggregate | Pick | Dedup | Changelog | Windows | Intervals
)


_VERSIONS: Mapping[type, int] = {
    Table: 1,
    Map: 1,
    UserCode: 1,
    Join: 1,
    Aggregate: 1,
    Pick: 1,
    Dedup: 1,
    Changelog: 1,
    Windows: 1,
    Intervals: 1,
}


def step_version(spec: StepSpec) -> int:
    """Version of the step that runs `spec`: enters its job's identity; raise it when results or
    state format of that step change.
    """
    return _VERSIONS[type(spec)]


def needs_frontier(spec: StepSpec) -> bool:
    """Does the step close windows by event time, so that every partition of its input must be told
    the largest one?
    """
    match spec:
        case Windows():
            return True
        case Aggregate(specs=specs):
            return any(wire.is_discrete(s.window) for s in specs)
        case _:
            return False
