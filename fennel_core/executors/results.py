"""What a call must return: its schema, and the checks of a result that a worker made.

Workers check results for their authors, with the client's own texts. Their code shares a process
with user code, so the platform checks again what it relies on: types, numbers of rows, the rows
that a transform or a filter names, and nulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, assert_never

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fennel_core.executors import protocol
from fennel_core.executors.call_failures import call_failure
from fennel_core.executors.calls import (
    AssignCall,
    CollectCall,
    EachRowCall,
    ExecutorCall,
    ExtractCall,
    FilterCall,
    ProgramCall,
    TransformCall,
    WarmCall,
)
from fennel_core.executors.errors import CallFailed
from fennel_core.executors.hostile_arrow import read_batch
from fennel_core.executors.internal_errors import ArrowRefused
from fennel_core.executors.responses import text_of
from fennel_core.vocab.dtypes import Field, Null, Optional, arrow_type

FAILURES: Final = pa.schema(
    [
        (protocol.ROW, pa.int64()),
        (protocol.REASON, pa.string()),
        (protocol.MESSAGE, pa.string()),
        (protocol.TRACE, pa.string()),
    ]
)
"""What an `EachRowCall` returns."""


def read_result(call: ExecutorCall, payload: bytes, rows: int) -> pa.Table:
    """Return the result of `call` on `rows` rows; raises `ArrowRefused`."""
    fields, row_numbers = _declared(call)
    if not fields and not row_numbers:
        return pa.table({})
    table = read_batch(payload, _schema(call), rows)
    if isinstance(call, EachRowCall):
        _check_failures(table)
    if row_numbers:
        _check_row_numbers(table.column(protocol.ROW), rows)
    elif table.num_rows != rows:
        raise ArrowRefused(f"it has {table.num_rows} rows, {rows} are expected")
    for field, column in zip(fields, table.columns, strict=False):
        if column.null_count and not isinstance(field.dtype, Optional | Null):
            raise ArrowRefused(f"`{field.name}` is not optional and has nulls")
    return table


def failures_of(call: EachRowCall, table: pa.Table) -> Iterator[tuple[int, CallFailed]]:
    """Yield the rows on which the code failed, with the failure of each."""
    for row in table.to_pylist():
        message, trace = (text_of(row, name) for name in (protocol.MESSAGE, protocol.TRACE))
        yield row[protocol.ROW], call_failure(call, row[protocol.REASON], message, trace)


def frame_of(call: ExecutorCall, table: pa.Table) -> pl.DataFrame:
    """Return the result of `call` as a frame; raises `UserCodeFailed` if Polars cannot hold it."""
    try:
        frame = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as refused:
        text = f"its result cannot be converted: {refused}"
        raise call_failure(call, protocol.INVALID, text, "") from refused
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return frame


@lru_cache(maxsize=4096)
def _schema(call: ExecutorCall) -> pa.Schema:
    if isinstance(call, EachRowCall):
        return FAILURES
    fields, row_numbers = _declared(call)
    columns = [pa.field(field.name, arrow_type(field.dtype)) for field in fields]
    return pa.schema([*columns, *([pa.field(protocol.ROW, pa.int64())] if row_numbers else [])])


def _declared(call: ExecutorCall) -> tuple[tuple[Field, ...], bool]:
    """Return the columns of a result, and whether the numbers of rows follow them."""
    match call:
        case TransformCall(output=output):
            return output, True
        case FilterCall() | EachRowCall():
            return (), True
        case AssignCall(column=column):
            return (column,), False
        case ExtractCall(outputs=outputs):
            return outputs, False
        case WarmCall() | ProgramCall() | CollectCall():
            return (), False
        case unreachable:
            assert_never(unreachable)


def _check_failures(table: pa.Table) -> None:
    if any(column.null_count for column in table.columns):
        raise ArrowRefused("a failure that it reports has nulls")
    reasons = table.column(protocol.REASON)
    if not pc.all(pc.is_in(reasons, pa.array(protocol.ROW_REASONS)), min_count=0).as_py():
        raise ArrowRefused("a row that it reports failed for no reason of a row")


def _check_row_numbers(column: pa.ChunkedArray, rows: int) -> None:
    if column.null_count:
        raise ArrowRefused("a row that it returns has no number")
    if not len(column):
        return
    bounds = pc.min_max(column)
    if bounds["min"].as_py() < 0 or bounds["max"].as_py() >= rows:
        raise ArrowRefused("a row that it returns is not one of its input")
    if pc.count_distinct(column).as_py() != len(column):
        raise ArrowRefused("it returns a row twice")
