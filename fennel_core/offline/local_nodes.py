"""Evaluate the local nodes of a level over a batch of rows, each as of its own time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import polars as pl

from fennel_core.offline.rows import AT, REASON, ROW, RowFailures, failed_rows, register, without
from fennel_core.query.bound_expressions import BoundExpressions
from fennel_core.query.columns import QueryColumn
from fennel_core.query.program import BoundAlias, BoundLocal
from fennel_core.vocab.dtypes import Dtype


def compute(
    rows: pl.DataFrame, local: Sequence[BoundLocal], types: Mapping[int, Dtype]
) -> tuple[pl.DataFrame, RowFailures]:
    """Return the rows with the registers of `local`, and the rows that failed.

    `types`: those of the registers that are read.
    """
    failures = failed_rows()
    known = dict(types)
    for step in local:
        match step:
            case BoundAlias(source, out, dtype, fill):
                column = QueryColumn(known[source], series=rows[register(source)])
                filled = column.filled(fill, dtype).series
                rows = rows.with_columns(filled.alias(register(out)))
                known[out] = dtype
            case BoundExpressions():
                rows, failed = _evaluated(rows, step)
                failures = pl.concat([failures, failed])
                known.update((out, dtype) for _, dtype, out in step.outputs)
            case unreachable:
                assert_never(unreachable)
    return rows, failures


def _evaluated(rows: pl.DataFrame, step: BoundExpressions) -> tuple[pl.DataFrame, RowFailures]:
    inputs = {name: rows[register(place)] for name, place in step.inputs}
    evaluation = step.attempt(inputs, rows[AT])
    numbers = rows[ROW].gather([failure.row for failure in evaluation.failures])
    reasons = [
        str(replace(failure, row=row))
        for failure, row in zip(evaluation.failures, numbers.to_list(), strict=True)
    ]
    failed = pl.DataFrame({ROW: numbers, REASON: pl.Series(reasons, dtype=pl.String)})
    made = rows.with_columns(
        evaluation.frame[name].alias(register(place)) for name, _, place in step.outputs
    )
    return without(made, failed), failed
