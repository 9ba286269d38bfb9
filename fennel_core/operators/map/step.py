"""Map: a run of stateless native operators over signed versions, one run per branch of a union.

Theory. A stateless operator is a function f of one row, so `+v` becomes `+f(v)` and `-v` becomes
`-f(v)`, and no state is needed. A row that a filter removes has a different meaning in the two
kinds of dataset: in a keyless one there is no event; in a keyed one it still ends its predecessor,
so it becomes a tombstone at the same time and position. A row on which an expression fails leaves
the set that the law speaks of: it goes to the dead letters once, when it is added; its retraction
fails in the same way and is dropped. The position is extended by the branch of a union and by the
element of an explode, so that it stays unique. Rows keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import polars as pl
import pyarrow as pa

from fennel_core.expressions.errors import RowFailure
from fennel_core.expressions.evaluate import CompiledExpressions, Evaluation, compile_columns
from fennel_core.operators.rows import columns_of, output_names
from fennel_core.operators.spec import MapSpec, MapStage
from fennel_core.operators.step import DeadRows, Outcome, OutputBatch, StateReader
from fennel_core.vocab.dtypes import Bool, Dtype, Optional, is_optional
from fennel_core.vocab.position import extend
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, META, POS, SIGN
from fennel_core.wire import operators as wire

ROW = "\0row"
"""Number of the input row that a row came from. No column of the client can start with a NUL."""
KEEP = "\0keep"


@dataclass(frozen=True, slots=True)
class StageRows:
    """The rows between two stages. `tombstones` have only keys, timestamp and meta columns."""

    live: pl.DataFrame
    tombstones: pl.DataFrame
    failures: tuple[RowFailure, ...] = ()


StageFunction = Callable[[StageRows], StageRows]


class MapStep:
    """Run a `MapSpec`: input i goes through `branches[i]`; output 0 takes all of them."""

    def __init__(self, spec: MapSpec) -> None:
        assert len(spec.inputs) == len(spec.branches), "one input per branch"
        self._branches = tuple(
            _compile(schema, stages)
            for schema, stages in zip(spec.inputs, spec.branches, strict=True)
        )
        self._tombstone_columns = tuple(
            [*schema.key_names, schema.timestamp, *META, ROW] for schema in spec.inputs
        )
        self._names = list(output_names(spec.output))
        self._null_values = [
            pl.lit(None, dtype).alias(name)
            for name, dtype in columns_of(spec.output, spec.output.value_names).items()
        ]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:  # noqa: ARG002  # the contract of OperatorStep
        rows = batch.with_row_index(ROW)
        gone = rows[IS_TOMBSTONE]
        tombstones = rows[self._tombstone_columns[source]]
        current = (
            StageRows(rows.filter(~gone), tombstones.filter(gone))
            if gone.any()
            else StageRows(rows, tombstones.clear())
        )
        for stage in self._branches[source]:
            current = stage(current)
        out = self._with_tombstones(current)[self._names]
        if len(self._branches) > 1:
            out = _extend_positions(out, pl.repeat(source, out.height, dtype=pl.UInt32, eager=True))
        return Outcome(
            emits=(OutputBatch(0, out),) if out.height else (), dead=_dead(batch, current.failures)
        )

    def _with_tombstones(self, current: StageRows) -> pl.DataFrame:
        """Return rows and tombstones in the order of the input."""
        if not current.tombstones.height:
            return current.live
        names = [*self._names, ROW]
        tombstones = current.tombstones.with_columns(
            *self._null_values, pl.lit(value=True).alias(IS_TOMBSTONE)
        )
        return pl.concat([current.live[names], tombstones[names]]).sort(ROW, maintain_order=True)


def _compile(schema: Schema, stages: Sequence[MapStage]) -> tuple[StageFunction, ...]:
    functions: list[StageFunction] = []
    for stage in stages:
        functions.append(_stage_function(schema, stage))
        schema = stage.output
    return tuple(functions)


def _stage_function(schema: Schema, stage: MapStage) -> StageFunction:
    names = [*stage.output.names, *META, ROW]
    match stage.op:
        case wire.AssignExpr(columns=columns):
            return _assign(
                compile_columns(
                    {name: (expr, dtype) for name, expr, dtype in columns}, _types(schema)
                ),
                names,
            )
        case wire.FilterExpr(expr=expr):
            return _filter(
                compile_columns({KEEP: (expr, Optional(Bool()))}, _types(schema)), schema.keyed
            )
        case wire.Rename(columns=pairs):
            renames = dict(pairs)
            return lambda current: StageRows(
                current.live.rename(renames)[names],
                current.tombstones.rename(renames, strict=False),
                current.failures,
            )
        case wire.Drop():
            return lambda current: StageRows(
                current.live[names], current.tombstones, current.failures
            )
        case wire.Dropnull(columns=columns):
            checked = columns or tuple(f.name for f in schema.values if is_optional(f.dtype))
            return lambda current: _split(
                current,
                current.live,
                pl.all_horizontal(pl.col(c).is_not_null() for c in checked),
                schema.keyed,
            )
        case wire.Explode(columns=columns):
            assert not schema.keyed, "only a keyless dataset can be exploded"
            return lambda current: _explode(current, columns)
        case unreachable:
            assert_never(unreachable)


def _assign(expressions: CompiledExpressions, names: list[str]) -> StageFunction:
    def run(current: StageRows) -> StageRows:
        evaluation = expressions.attempt(current.live)
        failures = current.failures + _of_input_rows(current.live, evaluation)
        return StageRows(_survivors(evaluation)[names], current.tombstones, failures)

    return run


def _filter(expressions: CompiledExpressions, keyed: bool) -> StageFunction:
    def run(current: StageRows) -> StageRows:
        evaluation = expressions.attempt(current.live)
        failures = current.failures + _of_input_rows(current.live, evaluation)
        rows = _survivors(evaluation)
        names = [name for name in rows.columns if name != KEEP]
        if rows[KEEP].all(ignore_nulls=False):
            return StageRows(rows[names], current.tombstones, failures)
        kept = _split(current, rows, pl.col(KEEP).fill_null(value=False), keyed)
        return StageRows(kept.live[names], kept.tombstones, failures)

    return run


def _split(current: StageRows, rows: pl.DataFrame, keep: pl.Expr, keyed: bool) -> StageRows:
    """Return the rows to keep; the others become tombstones where the dataset is keyed."""
    kept = rows.filter(keep)
    if not keyed or kept.height == rows.height:
        return StageRows(kept, current.tombstones, current.failures)
    return StageRows(
        kept,
        pl.concat([current.tombstones, rows.filter(~keep).select(current.tombstones.columns)]),
        current.failures,
    )


def _explode(current: StageRows, columns: tuple[str, ...]) -> StageRows:
    """Return one row per element, null for an empty or missing list. The lists of one row must have
    the same length.
    """
    lengths = [pl.col(c).list.len().fill_null(1).clip(lower_bound=1) for c in columns]
    uneven = current.live.select(
        pl.any_horizontal(pl.lit(False), *(length != lengths[0] for length in lengths[1:]))
    ).to_series()
    failures = current.failures
    if uneven.any():
        text = (
            f"the lists of {', '.join(f'`{c}`' for c in columns)} have different "
            "lengths; give each the same number of elements."
        )
        bad = current.live.filter(uneven)
        failures += tuple(
            RowFailure(columns[0], row, "explode-lengths", text, None) for row in bad[ROW].to_list()
        )
    filled = [
        pl.when(pl.col(c).list.len() > 0)
        .then(c)
        .otherwise(pl.lit(pl.Series(c, [[None]], current.live.schema[c])))
        for c in columns
    ]
    rows = current.live.filter(~uneven).with_columns(filled).with_row_index(KEEP).explode(columns)
    elements = rows.select(pl.int_range(pl.len(), dtype=pl.UInt32).over(KEEP)).to_series()
    return StageRows(_extend_positions(rows.drop(KEEP), elements), current.tombstones, failures)


def _extend_positions(rows: pl.DataFrame, elements: pl.Series) -> pl.DataFrame:
    positions = rows[POS].to_arrow().cast(pa.large_binary())
    return rows.with_columns(
        pl.Series(POS, extend(positions, elements.to_arrow()), dtype=pl.Binary)
    )


def _survivors(evaluation: Evaluation) -> pl.DataFrame:
    return evaluation.frame.filter(~evaluation.failed) if evaluation.failures else evaluation.frame


def _of_input_rows(frame: pl.DataFrame, evaluation: Evaluation) -> tuple[RowFailure, ...]:
    """Return failures with the number of the input row in place of that in this stage's frame."""
    if not evaluation.failures:
        return ()
    numbers = frame[ROW].gather([f.row for f in evaluation.failures]).to_list()
    return tuple(
        RowFailure(f.column, n, f.code, f.text, f.value)
        for f, n in zip(evaluation.failures, numbers, strict=True)
    )


def _dead(batch: pl.DataFrame, failures: tuple[RowFailure, ...]) -> tuple[DeadRows, ...]:
    """Return failed input rows by reason. A row that failed more than once (exploded) is reported
    once, a retraction not at all.
    """
    reasons: dict[str, list[int]] = {}
    signs = batch[SIGN].to_list() if failures else []
    reported: set[int] = set()
    for failure in failures:
        if signs[failure.row] > 0 and failure.row not in reported:
            reported.add(failure.row)
            culprit = "null" if failure.value is None else f"`{failure.value}`"
            reason = f"column `{failure.column}`: {failure.text} Value: {culprit}. [{failure.code}]"
            reasons.setdefault(reason, []).append(failure.row)
    return tuple(DeadRows(reason, batch[rows]) for reason, rows in reasons.items())


def _types(schema: Schema) -> Mapping[str, Dtype]:
    return {f.name: f.dtype for f in schema.fields}
