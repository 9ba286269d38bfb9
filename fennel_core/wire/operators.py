"""Pipelines as values: operators, aggregation specs and windows.

Theory. A pipeline is a small DAG of operators that ends in the one marked `is_root`. An operator
refers to its inputs by id. Ids are unique only within one pipeline (a dataset reference uses the
dataset's name as its id), so the key is (dataset, version, pipeline, id). `kind`, a closed union,
describes the operation. Durations are integer microseconds. Maps of the protocol (`on`, `renames`,
assigned columns) are unordered on the wire and are sorted by name here, so that equal pipelines are
equal values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.expr import Expr
from fennel_core.wire.pycode import PyCode

# --- windows --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forever:
    """All rows up to the time of reading."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """The client's `Continuous(duration)`: the rows of the last `duration_us`."""

    duration_us: int


@dataclass(frozen=True, slots=True)
class Tumbling:
    duration_us: int
    lookback_us: int


@dataclass(frozen=True, slots=True)
class Hopping:
    duration_us: int
    stride_us: int
    lookback_us: int


@dataclass(frozen=True, slots=True)
class ForeverHopping:
    """All rows up to the last boundary of `stride_us`."""

    stride_us: int
    lookback_us: int


@dataclass(frozen=True, slots=True)
class Session:
    gap_us: int


Window = Forever | Sliding | Tumbling | Hopping | ForeverHopping | Session


def is_discrete(window: Window) -> bool:
    """Return whether the window closes at fixed times (tumbling, hopping, session).

    Other windows end at the time of reading.
    """
    return not isinstance(window, Forever | Sliding)


# --- aggregation specs ----------------------------------------------------------------------------
# `name` is the output column, `of` the input column. If `default` is None, the output is Optional
# and null for an empty window.


@dataclass(frozen=True, slots=True)
class Sum:
    name: str
    window: Window
    of: str


@dataclass(frozen=True, slots=True)
class Average:
    name: str
    window: Window
    of: str
    default: float | None


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows, or of distinct values of `of` if `unique`; `of` None is a plain count."""

    name: str
    window: Window
    of: str | None
    unique: bool
    approx: bool
    dropnull: bool


@dataclass(frozen=True, slots=True)
class LastK:
    name: str
    window: Window
    of: str
    limit: int
    dedup: bool
    dropnull: bool


@dataclass(frozen=True, slots=True)
class FirstK:
    name: str
    window: Window
    of: str
    limit: int
    dedup: bool
    dropnull: bool


@dataclass(frozen=True, slots=True)
class Min:
    """The minimum.

    `default` is in the unit of the protocol: datetimes are epoch microseconds, dates days since
    1970, decimals floats.
    """

    name: str
    window: Window
    of: str
    default: float | None


@dataclass(frozen=True, slots=True)
class Max:
    """The maximum; `default` as in `Min`."""

    name: str
    window: Window
    of: str
    default: float | None


@dataclass(frozen=True, slots=True)
class Stddev:
    name: str
    window: Window
    of: str
    default: float | None


@dataclass(frozen=True, slots=True)
class Distinct:
    name: str
    window: Window
    of: str
    dropnull: bool


@dataclass(frozen=True, slots=True)
class Quantile:
    """The quantile `p` in [0, 1]."""

    name: str
    window: Window
    of: str
    p: float
    default: float | None
    approx: bool


@dataclass(frozen=True, slots=True)
class ExpDecay:
    name: str
    window: Window
    of: str
    half_life_us: int


Spec = Sum | Average | Count | LastK | FirstK | Min | Max | Stddev | Distinct | Quantile | ExpDecay


class Emit(Enum):
    EAGER = "eager"
    FINAL = "final"


class JoinHow(Enum):
    LEFT = "left"
    INNER = "inner"


# --- operator kinds -------------------------------------------------------------------------------
# `operand` (or `left`, `right`, `operands`) are ids of operators of the same pipeline.


@dataclass(frozen=True, slots=True)
class DatasetRef:
    dataset: DatasetName


@dataclass(frozen=True, slots=True)
class Aggregate:
    operand: str
    keys: tuple[str, ...]
    specs: tuple[Spec, ...]
    along: str | None
    emit: Emit

    @property
    def terminal(self) -> bool:
        """Return whether the result is only complete at read time, so that no operator may follow.

        True for windows that end at the time of reading under eager emission, and for any
        exponential decay.
        """
        if any(isinstance(spec, ExpDecay) for spec in self.specs):
            return True
        return (
            bool(self.specs)
            and self.emit is Emit.EAGER
            and all(not is_discrete(spec.window) for spec in self.specs)
        )


@dataclass(frozen=True, slots=True)
class Join:
    """A join of rows with a keyed dataset.

    `on` pairs (left column, right key). `within_low_us` None is "forever"; empty `fields` are all
    values of the right side.
    """

    left: str
    right: str
    on: tuple[tuple[str, str], ...]
    how: JoinHow
    within_low_us: int | None
    within_high_us: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """User code; `schema` lists every output column sorted by name, empty means unchanged."""

    operand: str
    schema: tuple[tuple[str, Dtype], ...]
    pycode: PyCode


@dataclass(frozen=True, slots=True)
class Union_:
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    operand: str
    pycode: PyCode


@dataclass(frozen=True, slots=True)
class FilterExpr:
    operand: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Rename:
    """Renamed columns, as pairs (old name, new name)."""

    operand: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    operand: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explode:
    operand: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dedup:
    """Deduplication.

    With `window` None, duplicates have equal `by` and timestamp. Otherwise `window` is Tumbling or
    Session.
    """

    operand: str
    by: tuple[str, ...]
    window: Window | None


@dataclass(frozen=True, slots=True)
class First:
    operand: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Latest:
    operand: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    operand: str
    column: str
    dtype: Dtype
    pycode: PyCode


@dataclass(frozen=True, slots=True)
class AssignExpr:
    """Assigned columns (column, expression, type), sorted by column.

    Every expression reads the input's columns.
    """

    operand: str
    columns: tuple[tuple[str, Expr, Dtype], ...]


@dataclass(frozen=True, slots=True)
class Dropnull:
    operand: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changes of a keyed dataset as rows.

    `kind_column` is true for deletes if `deletes`, else true for inserts.
    """

    operand: str
    kind_column: str
    deletes: bool


@dataclass(frozen=True, slots=True)
class WindowOp:
    """`groupby(*by, window=…)`: one row per key and window, with the window as key `field`.

    The client's protocol omits the aggregation specs and the emit strategy of this operator.
    `wire.window_specs` extracts them by running the pipeline function. Until `specs_known`, `specs`
    is empty and `emit` eager.
    """

    operand: str
    window: Window
    by: tuple[str, ...]
    field: str
    specs: tuple[Spec, ...] = ()
    emit: Emit = Emit.EAGER
    specs_known: bool = False


OperatorKind = (
    DatasetRef
    | Aggregate
    | Join
    | Transform
    | Union_
    | Filter
    | FilterExpr
    | Rename
    | Drop
    | Explode
    | Dedup
    | First
    | Latest
    | Assign
    | AssignExpr
    | Dropnull
    | Changelog
    | WindowOp
)


@dataclass(frozen=True, slots=True)
class Operator:
    id: str
    dataset: DatasetName
    version: int
    pipeline: str
    is_root: bool
    kind: OperatorKind

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the ids of the operators that this one reads, left to right."""
        return operand_ids(self.kind)


def operand_ids(kind: OperatorKind) -> tuple[str, ...]:
    """Return the ids of the operators that `kind` reads, left to right.

    A dataset reference reads none.
    """
    match kind:
        case DatasetRef():
            return ()
        case Join(left=left, right=right):
            return (left, right)
        case Union_(operands):
            return operands
        case (
            Aggregate(operand=operand)
            | Transform(operand=operand)
            | Filter(operand=operand)
            | FilterExpr(operand=operand)
            | Rename(operand=operand)
            | Drop(operand=operand)
            | Explode(operand=operand)
            | Dedup(operand=operand)
            | First(operand=operand)
            | Latest(operand=operand)
            | Assign(operand=operand)
            | AssignExpr(operand=operand)
            | Dropnull(operand=operand)
            | Changelog(operand=operand)
            | WindowOp(operand=operand)
        ):
            return (operand,)
        case unreachable:
            assert_never(unreachable)
