"""The schema of an aggregation's output, and the rules of its windows and columns.

All functions raise `SchemaMismatch` if the aggregation cannot be applied to its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from fennel_core.expressions.type_lattice import non_optional
from fennel_core.graph.column_checks import expect_keys, expect_values, find_column
from fennel_core.graph.errors import SchemaMismatch
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field, base, is_optional, optional, show
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as o

WINDOW_TYPE = dtypes.Struct(
    "Window", (Field("begin", dtypes.Timestamp()), Field("end", dtypes.Timestamp()))
)
"""The type of the key column that a windowed groupby adds."""
NUMERIC = (dtypes.Int, dtypes.Float, dtypes.Decimal)
ORDERED = (*NUMERIC, dtypes.Date, dtypes.Timestamp)


def aggregate_schema(kind: o.Aggregate, schema: Schema) -> Schema:
    if not kind.specs:
        raise SchemaMismatch("aggregate operator expects at least one aggregation operation")
    if kind.along is not None:
        expect_values((kind.along,), schema, "along")
        if find_column(kind.along, schema, "along").dtype != dtypes.Timestamp():
            raise SchemaMismatch(
                f"error with along kwarg of aggregate operator: `{kind.along}` is not of type "
                "datetime"
            )
    if kind.along is not None and kind.emit is o.Emit.FINAL:
        raise SchemaMismatch("'along' param can not be used with emit=\"final\" strategy")
    _expect_eager_decay(kind)
    _expect_windows(kind, schema)
    return _aggregated(kind.keys, (), kind.specs, schema)


def window_schema(kind: o.WindowOp, schema: Schema) -> Schema:
    if schema.keyed:
        keys = list(schema.key_names)
        raise SchemaMismatch(
            "Using 'window' param in groupby on keyed dataset is not allowed. Found "
            f"dataset with keys `{keys}`"
        )
    if not isinstance(kind.window, o.Tumbling | o.Hopping | o.Session):
        raise SchemaMismatch("the window of a groupby must be Tumbling, Hopping or Session")
    _expect_eager_decay(kind)
    _expect_hops(kind.window)
    return _aggregated(kind.by, (Field(kind.field, WINDOW_TYPE),), kind.specs, schema)


def _aggregated(
    by: Sequence[str], more: tuple[Field, ...], specs: Sequence[o.Spec], schema: Schema
) -> Schema:
    expect_keys(by)
    keys = (*(find_column(name, schema, "groupby") for name in by), *more)
    values = tuple(Field(spec.name, spec_dtype(spec, schema)) for spec in specs)
    names = [f.name for f in (*keys, *values)] + [schema.timestamp]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaMismatch(
            f"columns {repeated} appear twice in the output of an aggregation; give "
            "each output its own name"
        )
    return Schema(keys, values, schema.timestamp)


def _expect_eager_decay(kind: o.Aggregate | o.WindowOp) -> None:
    if kind.emit is o.Emit.FINAL and any(isinstance(spec, o.ExpDecay) for spec in kind.specs):
        raise SchemaMismatch("ExpDecaySum aggregation does not support emit='final'.")


def expect_dedup_window(window: o.Window | None) -> None:
    if not isinstance(window, o.Tumbling | o.Session | None):
        raise SchemaMismatch("the window of dedup must be Tumbling or Session")
    if isinstance(window, o.Tumbling) and (window.duration_us % 1_000_000 or window.lookback_us):
        raise SchemaMismatch("the window of dedup has whole seconds and no lookback")


def _expect_hops(window: o.Window) -> None:
    if isinstance(window, o.Hopping) and window.stride_us > window.duration_us:
        raise SchemaMismatch(
            "the stride of a hopping window is longer than its duration, so rows between two "
            "windows would be in none; use a stride up to the duration"
        )


def _expect_windows(kind: o.Aggregate, schema: Schema) -> None:
    windows = [spec.window for spec in kind.specs]
    for window in windows:
        _expect_hops(window)
    if any(isinstance(window, o.Session) for window in windows):
        raise SchemaMismatch(
            "Session windows go into `groupby(…, window=Session(…))`, not into a single aggregation"
        )
    if len({o.is_discrete(window) for window in windows}) > 1:
        raise SchemaMismatch(
            "Windows in all specs have to be either discrete "
            "(Hopping/Tumbling/Session) or non-discrete (Continuous/Forever) not both"
        )
    lookbacks = {
        window.lookback_us
        for window in windows
        if isinstance(window, o.Tumbling | o.Hopping | o.ForeverHopping)
    }
    if len(lookbacks) > 1:
        raise SchemaMismatch(
            "Windows in all specs must have same lookback found "
            f"{sorted(us // 1_000_000 for us in lookbacks)} seconds"
        )
    if (
        schema.keyed
        and kind.along is None
        and any(isinstance(window, o.Tumbling | o.Hopping) for window in windows)
    ):
        raise SchemaMismatch(
            "invalid aggregate: tumbling and hopping windows can not be used to "
            "aggregate keyed datasets; "
            "maybe try using a 'forever hopping' window or 'along' parameter?"
        )


def spec_dtype(spec: o.Spec, schema: Schema) -> Dtype:
    """Return the type of an aggregation's output over rows of `schema`.

    Raises `SchemaMismatch` if the aggregation cannot be applied to its column.
    """
    match spec:
        case o.Count(of=of, unique=unique, dropnull=dropnull):
            if of is not None:
                column = find_column(of, schema, "count").dtype
                _expect_dropnull(dropnull, of, column, "count")
                if unique:
                    _expect_hashable(of, column, "count unique")
            elif unique or dropnull:
                raise SchemaMismatch("a unique or null-dropping count must name its column in `of`")
            return dtypes.Int()
        case o.Sum(of=of):
            return non_optional(_of_type(NUMERIC, of, schema, "sum"))
        case (
            o.Average(of=of, default=default)
            | o.Stddev(of=of, default=default)
            | o.Quantile(of=of, default=default)
        ):
            _of_type(NUMERIC, of, schema, type(spec).__name__.lower())
            if isinstance(spec, o.Quantile) and not 0 <= spec.p <= 1:
                raise SchemaMismatch(f"quantile `p` is {spec.p}; use a number from 0 to 1")
            return dtypes.Float() if default is not None else dtypes.Optional(dtypes.Float())
        case o.ExpDecay(of=of):
            _of_type(NUMERIC, of, schema, "exponential decay sum")
            return dtypes.Float()
        case o.Min(of=of, default=default) | o.Max(of=of, default=default):
            column = non_optional(_of_type(ORDERED, of, schema, type(spec).__name__.lower()))
            return column if default is not None else optional(column)
        case o.Distinct(of=of, dropnull=dropnull):
            column = find_column(of, schema, "distinct").dtype
            _expect_dropnull(dropnull, of, column, "distinct")
            _expect_hashable(of, column, "distinct")
            return dtypes.List(non_optional(column) if dropnull else column)
        case o.LastK(of=of, dropnull=dropnull) | o.FirstK(of=of, dropnull=dropnull):
            if spec.limit <= 0:
                raise SchemaMismatch(f"the limit of `{spec.name}` is {spec.limit}; use 1 or more")
            column = find_column(of, schema, type(spec).__name__).dtype
            _expect_dropnull(dropnull, of, column, type(spec).__name__)
            return dtypes.List(non_optional(column) if dropnull else column)
        case unreachable:
            assert_never(unreachable)


def _of_type(accepted: tuple[type, ...], of: str, schema: Schema, what: str) -> Dtype:
    dtype = find_column(of, schema, what).dtype
    if not isinstance(base(dtype), accepted):
        words = ", ".join(kind.__name__.lower() for kind in accepted)
        raise SchemaMismatch(
            f"Cannot take {what} of field `{of}` of type `{show(dtype)}`; it needs one of {words}"
        )
    return dtype


def _expect_dropnull(dropnull: bool, of: str, dtype: Dtype, what: str) -> None:
    if dropnull and not is_optional(dtype):
        raise SchemaMismatch(
            f"Cannot use {what} with dropnull for field `{of}` of type "
            f"`{show(dtype)}`, as it is not optional."
        )


def _expect_hashable(of: str, dtype: Dtype, what: str) -> None:
    if not _hashable(dtype):
        raise SchemaMismatch(
            f"Cannot use {what} for field `{of}` of type `{show(dtype)}`, as it is not hashable"
        )


def _hashable(dtype: Dtype) -> bool:
    match base(dtype):
        case dtypes.Float() | dtypes.Struct() | dtypes.Embedding():
            return False
        case dtypes.List(of) | dtypes.Map(of):
            return _hashable(of)
        case _:
            return True
