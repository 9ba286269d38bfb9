"""Expression features, as many as possible per evaluation.

An evaluation costs some tens of microseconds regardless of its size, so expressions of a level that
do not read one another are evaluated together, over one frame with full feature names as columns.
Compilation (types, Polars expressions) belongs to the plan and is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from fennel_core.expressions.errors import EvaluationFailed, InvalidExpression
from fennel_core.expressions.evaluate import CompiledExpressions as Compiled
from fennel_core.expressions.evaluate import Evaluation, compile_columns
from fennel_core.expressions.references import uses_now
from fennel_core.plans.plan_nodes import AliasNode, ExpressionNode, LocalNode
from fennel_core.query.columns import LOGICAL_TIME, QueryColumn
from fennel_core.query.errors import ExpressionRejected, ValueNotConvertible
from fennel_core.vocab.dtypes import Dtype
from fennel_core.wire.entities import FeatureRef

NOW = "\0now"
"""The column of the query's clock reading; no feature can have this name."""


@dataclass(frozen=True, slots=True)
class BoundExpressions:
    """Expressions evaluated together: registers read (by column name) and registers written."""

    compiled: Compiled
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, Dtype, int], ...]
    reads_clock: bool

    @classmethod
    def of(
        cls, expressions: tuple[ExpressionNode, ...], register: Callable[[FeatureRef], int]
    ) -> BoundExpressions:
        """Compile `expressions`.

        Raises `ExpressionRejected` when one does not fit its features' types (a commit checks the
        same).
        """
        schema = {i.ref.fqn: i.dtype for e in expressions for i in e.inputs}
        inputs = {i.ref.fqn: register(i.ref) for e in expressions for i in e.inputs}
        try:
            compiled = compile_columns(
                {e.output.ref.fqn: (e.expr, e.output.dtype) for e in expressions},
                schema,
                now=pl.col(NOW),
            )
        except InvalidExpression as refused:
            names = ", ".join(f"`{e.output.ref.fqn}`" for e in expressions)
            raise ExpressionRejected(f"the expression of feature {names}: {refused}") from refused
        return cls(
            compiled,
            tuple(inputs.items()),
            tuple((e.output.ref.fqn, e.output.dtype, register(e.output.ref)) for e in expressions),
            any(uses_now(e.expr) for e in expressions),
        )

    def run(self, registers: list[QueryColumn], rows: int, now_us: int) -> None:
        """Evaluate over the registers' columns.

        Raises `ValueNotConvertible`, naming the feature, row and value without a result.
        """
        columns = [registers[place].series.alias(name) for name, place in self.inputs]
        if self.reads_clock or not columns:
            moment = pl.Series(NOW, [now_us], dtype=pl.Int64).cast(LOGICAL_TIME)
            columns.append(moment if rows == 1 else moment.new_from_index(0, rows))
        try:
            frame = self.compiled.evaluate(pl.DataFrame(columns))
        except EvaluationFailed as failed:
            raise ValueNotConvertible(str(failed)) from failed
        for name, dtype, place in self.outputs:
            registers[place] = QueryColumn(dtype, series=frame[name])

    def attempt(self, columns: Mapping[str, pl.Series], now: pl.Series) -> Evaluation:
        """Evaluate over columns by name, with a clock reading per row; failed rows are reported."""
        named = [column.alias(name) for name, column in columns.items()]
        return self.compiled.attempt(pl.DataFrame([*named, now.alias(NOW)]))


def group_expressions(
    local: tuple[LocalNode, ...],
) -> Iterator[AliasNode | tuple[ExpressionNode, ...]]:
    """Order the steps by dependency, with adjacent independent expressions in one tuple."""
    group: list[ExpressionNode] = []
    made: set[FeatureRef] = set()
    for step in _by_depth(local):
        match step:
            case AliasNode():
                if group and step.source in made:
                    yield tuple(group)
                    group, made = [], set()
                yield step
            case ExpressionNode():
                if any(i.ref in made for i in step.inputs):
                    yield tuple(group)
                    group, made = [], set()
                group.append(step)
                made.add(step.output.ref)
    if group:
        yield tuple(group)


def _by_depth(local: tuple[LocalNode, ...]) -> list[LocalNode]:
    """Sort by depth of dependency, stable, so that groups are as large as possible."""
    depth: dict[FeatureRef, int] = {}
    for step in local:
        read = [step.source] if isinstance(step, AliasNode) else [i.ref for i in step.inputs]
        below = max((depth[ref] for ref in read if ref in depth), default=0)
        depth[step.output.ref] = below + (0 if isinstance(step, AliasNode) else 1)
    return sorted(local, key=lambda step: (depth[step.output.ref], isinstance(step, AliasNode)))
