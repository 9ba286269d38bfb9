"""Step specifications: the computation of a job, as data. The registry stores them; `build.build`
makes the step.

Each specification contains the schemas it reads and writes, so that a step derives none.
`step_version` enters the identity of the job: raise it when the step's results or its state format
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.vocab.dtypes import Field, Optional, Timestamp
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from fennel_core.wire.connectors import Source
from fennel_core.wire.pycode import PyCode

VALID_TO = "__valid_to"
"""Column of a row with a validity interval: the end (exclusive), null while it has no successor."""


def with_validity(schema: Schema) -> Schema:
    """Return the keyless schema of a keyed dataset's rows with their validity intervals.

    Its values are the keys and values of `schema`, then `VALID_TO`; the timestamp is the start of
    the interval.
    """
    assert schema.keyed, "rows of a keyless dataset have no end"
    values = (*schema.keys, *schema.values, Field(VALID_TO, Optional(Timestamp())))
    return Schema((), values, schema.timestamp)


def has_validity(schema: Schema) -> bool:
    """Return whether rows of this schema carry validity intervals."""
    return schema.field(VALID_TO) is not None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Keep every version of a keyed dataset for lookups and as-of reads. Input 0: the dataset's
    topic. No outputs.
    """

    schema: Schema


StatelessOp = (
    wire.AssignExpr | wire.FilterExpr | wire.Rename | wire.Drop | wire.Dropnull | wire.Explode
)


@dataclass(frozen=True, slots=True)
class MapStage:
    """One stateless native operator and the schema of its output."""

    op: StatelessOp
    output: Schema


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A run of fused stateless operators. Input i (one per branch of a union) goes through
    `branches[i]`; output 0 takes all of them.

    A row's position is extended by the branch number when there is more than one branch.
    """

    inputs: tuple[Schema, ...]
    branches: tuple[tuple[MapStage, ...], ...]
    output: Schema


@dataclass(frozen=True, slots=True)
class UserCodeSpec:
    """Run user code (transform, assign or filter) in an executor. Input 0, output 0. `column` is
    the assigned column, if any.
    """

    kind: str
    code: PyCode
    column: Field | None
    input: Schema
    output: Schema


@dataclass(frozen=True, slots=True)
class SourceReplaySpec:
    """Type the raw requests of an endpoint that ingest has not typed for the dataset itself. Input
    0: the endpoint's raw topic (`vocab.raw_batches`). Output 0: the dataset's topic, which ingest
    writes, too.
    """

    dataset: DatasetName
    source: Source
    schema: Schema

    @property
    def output(self) -> Schema:
        """The schema of the output, under the name that every step with an output has."""
        return self.schema


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Join against a keyed dataset. Input 0: the left side, partitioned by `left_on`; input 1: the
    right dataset's topic. Output 0.

    A left row at time T matches the latest right version with T - low <= ts <= T + high (both
    inclusive; low None: no lower bound). A left side with validity intervals makes it a table-table
    join, which has no such bounds. `right_values`: right columns of the output, in order; the right
    timestamp may be among them.
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
class AggregateSpec:
    """Aggregate per group; input 0 partitioned by `keys`. `terminal`: no output topic, lookups
    assemble results from this job's state. `along`: the column whose time counts in place of the
    timestamp.

    How results are emitted is not part of it: windows that close by event time are emitted once
    they have closed, so their content is the same under both strategies of the client, and so is
    that of windows that move with the reader.
    """

    input: Schema
    keys: tuple[str, ...]
    specs: tuple[wire.Spec, ...]
    along: str | None
    terminal: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class FirstLatestSpec:
    """groupby(...).first() or .latest(): one row per key, by (timestamp, position). Input 0
    partitioned by `keys`; output 0 is keyed.
    """

    input: Schema
    keys: tuple[str, ...]
    first: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class DedupSpec:
    """Keep the last row per (`by`, timestamp) or per window. Input 0 partitioned by `by`; output 0
    is keyless.
    """

    input: Schema
    by: tuple[str, ...]
    window: wire.Window | None
    output: Schema


@dataclass(frozen=True, slots=True)
class ChangelogSpec:
    """A keyed dataset as a stream of inserts and deletes. Input 0 partitioned by its key; output 0
    is keyless.
    """

    input: Schema
    kind_column: str
    deletes: bool
    output: Schema


@dataclass(frozen=True, slots=True)
class WindowsSpec:
    """groupby(..., window=W): one row per key and window. Input 0 partitioned by `by`; output 0
    keyed by `by` + `field`.

    Each of `specs` aggregates the rows of the window; the window in the spec itself is ignored.
    """

    input: Schema
    by: tuple[str, ...]
    field: str
    window: wire.Window
    output: Schema
    specs: tuple[wire.Spec, ...] = ()


@dataclass(frozen=True, slots=True)
class IntervalsSpec:
    """A keyed dataset as signed rows with validity intervals: each row with the time at which its
    successor ends it. Input 0 partitioned by its key; output 0 is keyless.

    This is how a keyed dataset reaches a step that is partitioned by something else, where the end
    of a row can no longer be derived. `output` is `with_validity(input)`.
    """

    input: Schema
    output: Schema


StepSpec = (
    TableSpec
    | MapSpec
    | UserCodeSpec
    | SourceReplaySpec
    | JoinSpec
    | AggregateSpec
    | FirstLatestSpec
    | DedupSpec
    | ChangelogSpec
    | WindowsSpec
    | IntervalsSpec
)


_VERSIONS: Mapping[type, int] = {
    TableSpec: 1,
    MapSpec: 1,
    UserCodeSpec: 1,
    SourceReplaySpec: 1,
    JoinSpec: 1,
    AggregateSpec: 1,
    FirstLatestSpec: 1,
    DedupSpec: 1,
    ChangelogSpec: 1,
    WindowsSpec: 1,
    IntervalsSpec: 1,
}


def step_version(spec: StepSpec) -> int:
    """Return the version of the step that runs `spec`. It enters the job's identity; raise it when
    the step's results or its state format change.
    """
    return _VERSIONS[type(spec)]


def has_native_step(spec: StepSpec) -> bool:
    """Return whether `build.build` makes the step; the engine awaits other code for the rest.

    Such a job has no state, so replay never computes it again.
    """
    return not isinstance(spec, UserCodeSpec | SourceReplaySpec)


def needs_watermark(spec: StepSpec) -> bool:
    """Return whether the step closes windows by event time, so that each of its partitions needs
    the largest event time of the whole input.
    """
    match spec:
        case WindowsSpec():
            return True
        case AggregateSpec(specs=specs):
            return any(wire.is_discrete(s.window) for s in specs)
        case _:
            return False
