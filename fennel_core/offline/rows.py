"""The rows of an offline query: their columns, and the rows that failed.

A row has its number in the input (`ROW`), its time (`AT`) and one column per register of the
program. A row that fails leaves the query with a message, as an online query of this row would
fail; the others go on.
"""

from __future__ import annotations

from typing import Final

import polars as pl

ROW: Final = "__row_number"
AT: Final = "__at"
ELEMENT: Final = "__element"
"""The number of an element in the list of its row."""
REASON: Final = "reason"
RowFailures = pl.DataFrame
"""The columns `ROW` and `REASON`."""


def register(place: int) -> str:
    """Return the column of a register."""
    return f"r{place}"


def failed_rows(rows: pl.DataFrame | None = None, reason: str = REASON) -> RowFailures:
    """Return the failures of `rows`, whose column `reason` has the message; None: no failure."""
    if rows is None:
        return pl.DataFrame(schema={ROW: pl.Int64(), REASON: pl.String()})
    return rows.select(ROW, pl.col(reason).alias(REASON))


def good_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a frame with `REASON` that have not failed."""
    return frame.filter(pl.col(REASON).is_null())


def rows_at_fault(frame: pl.DataFrame, failures: RowFailures) -> pl.DataFrame:
    """Return the rows of a frame with `REASON` that have failed, or fail now.

    A failed row keeps nothing but its number, its time and its reason.
    """
    earlier = frame.filter(pl.col(REASON).is_not_null()).select(ROW, AT, REASON)
    if failures.is_empty():
        return earlier
    now = frame.select(ROW, AT).join(failures, on=ROW, how="inner", maintain_order="left")
    return pl.concat([earlier, now.select(ROW, AT, REASON)])


def without(rows: pl.DataFrame, failures: RowFailures) -> pl.DataFrame:
    """Return the rows that did not fail, in order."""
    if failures.is_empty():
        return rows
    return rows.join(failures, on=ROW, how="anti", maintain_order="left")
