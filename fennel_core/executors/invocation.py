"""Invoke each kind of user code (executor environment).

One function per kind of call: build the input frame, call the function, check the result and cast
it to its declaration. Only exceptions out of the function itself are `UserCodeRaised`; a bad result
is `ResultInvalid`. Transforms and filters may drop and reorder rows. The frame's index, 0..n-1 in
the input, identifies the rows that are left, so the platform can keep each row's position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fennel_core.executors import protocol
from fennel_core.executors.code_cache import message_of
from fennel_core.executors.columns_in import frame, series
from fennel_core.executors.columns_out import (
    cast_text,
    check,
    check_column,
    layout,
    to_arrow,
)
from fennel_core.executors.internal_errors import ResultInvalid, UserCodeRaised

Function = Callable[..., Any]


def _call(function: Function, *args: Any) -> Any:
    try:
        return function(*args)
    except MemoryError:
        raise
    # Outermost handler of user code: also panics of native libraries, and what ends a process.
    except BaseException as error:
        raise UserCodeRaised(message_of(error), error) from error


def transform(function: Function, header: dict[str, Any], table: pa.Table) -> pa.Table:
    """Transform a frame; return the declared output columns and `__row`."""
    given = frame(table, header["input"])
    names = list(given.columns)
    out = _call(function, given)
    if out is None:
        raise ResultInvalid("the transform function returned None")
    if not isinstance(out, pd.DataFrame):
        raise ResultInvalid(
            f"the transform function returned a `{type(out).__name__}`, expected a pandas dataframe"
        )
    expected = [name for name, _ in header["output"]]
    got = [str(c) for c in out.columns]
    if set(got) != set(expected) and (set(got) != set(names) or not set(expected) <= set(got)):
        raise ResultInvalid(
            f"the output schema does not match. Got output columns: {got}. Expected "
            f"output columns: {expected}"
        )
    rows = _origin(out, len(table))
    columns = [_cast(out[name], name, description) for name, description in header["output"]]
    return pa.table([*columns, pa.array(rows, pa.int64())], names=[*expected, protocol.ROW])


def keep(function: Function, header: dict[str, Any], table: pa.Table) -> pa.Table:
    """Filter a frame; return `__row`, the rows that are left."""
    out = _call(function, frame(table, header["input"]))
    if not isinstance(out, pd.DataFrame):
        raise ResultInvalid(
            f"the filter function returned a `{type(out).__name__}`, expected a mask over the rows"
        )
    return pa.table([pa.array(_origin(out, len(table)), pa.int64())], names=[protocol.ROW])


def assign(function: Function, header: dict[str, Any], table: pa.Table) -> pa.Table:
    """Compute one new column.

    A pipeline's column is checked as the client checks it; a preproc's column is only cast.
    """
    ((name, description),) = header["output"]
    out = _call(function, frame(table, header["input"]))
    if not isinstance(out, pd.DataFrame) or name not in out or len(out) != len(table):
        raise ResultInvalid(f"the function did not give one value per row for column `{name}`")
    if header["checked"]:
        try:
            check_column(out, name, description, header["entity"])
        except ValueError as problem:
            raise ResultInvalid(str(problem)) from problem
    return pa.table([_cast(out[name], name, description)], names=[name])


def extract(function: Function, header: dict[str, Any], table: pa.Table) -> pa.Table:
    """Compute features from timestamps and inputs."""
    extractor = header["extractor"]
    # By index: one feature may be passed twice, under one name.
    inputs = [
        series(table.column(i), d, name, hashable=True)
        for i, (name, d) in enumerate(header["input"], start=1)
    ]
    out = _call(function, series(table.column(0), "t", "timestamp"), *inputs)
    if isinstance(out, pd.Series):
        columns = pd.DataFrame({out.name: out.array}, copy=False)
    elif isinstance(out, pd.DataFrame):
        columns = out
    else:
        raise ResultInvalid(
            f"Extractor `{extractor}` returned invalid type `{type(out)}`, expected "
            "a pandas series or dataframe"
        )
    if len(columns):
        problems = check(columns, header["output"], extractor)
        if problems:
            raise ResultInvalid(
                f"Extractor `{extractor}` returned invalid schema for data: {problems}"
            )
    names = [name for name, _ in header["output"]]
    if len(columns) != len(table):
        first = header["input"][0][0] if header["input"] else protocol.TS
        raise ResultInvalid(
            f"Number of values in feature {names[0]} is {len(columns)}, but "
            f"{len(table)} in feature {first}. "
        )
    if not len(columns):
        return pa.table(
            [pa.array([], layout(description)) for _, description in header["output"]], names=names
        )
    return pa.table(
        [_cast(columns[name], name, description) for name, description in header["output"]],
        names=names,
    )


KINDS: dict[str, Callable[[Function, dict[str, Any], pa.Table], pa.Table]] = {
    "transform": transform,
    "filter": keep,
    "assign": assign,
    "extract": extract,
}


def _cast(column: pd.Series, name: str, description: Any) -> pa.Array:
    try:
        return to_arrow(column, description)
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        AttributeError,
        KeyError,
        pa.ArrowException,
    ) as error:
        raise ResultInvalid(cast_text(name, description, error)) from error


def _origin(out: pd.DataFrame, rows: int) -> Any:
    """Return the input row of each output row.

    Rows are matched by index label while the index is still the one of the input, else by order.
    """
    labels = out.index.to_numpy()
    if labels.dtype.kind in "iu" and len(labels) <= rows:
        known = np.unique(labels)
        if len(known) == len(labels) and (not len(known) or (known[0] >= 0 and known[-1] < rows)):
            return labels
    if len(out) == rows:
        return np.arange(rows)
    raise ResultInvalid(
        f"the function changed the number of rows from {rows} to {len(out)} and gave "
        "them a new index: keep the index"
    )
