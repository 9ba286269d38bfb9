"""What can be wrong with an expression, and what can go wrong with a row.

Theory. An expression is judged once, against a schema, before any row exists: what is found then is
an `InvalidExpression`, the author's mistake. A row is judged when it arrives: a text that is no
date, a null where the type has none. That is a `RowFailure`, the row's mistake; it names the
column, the row and the value, and it never spoils its neighbours, because the runner turns it into
a dead letter. `EvaluationFailed` is the same news for callers who want all rows or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

NULL_IN_NON_OPTIONAL = "Null values found in non-optional field."
"""The client raises this very sentence; shipped tests look for it."""


class InvalidExpression(ValueError):
    """An expression that does not fit its schema. `code` is stable; `text` says what is wrong and
    what to do, without naming the entity.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} [{code}]")
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why one row has no value in one column. `row` counts from 0 within the frame; `value` is the
    culprit as text, None if it was null.
    """

    column: str
    row: int
    code: str
    text: str
    value: str | None

    def __str__(self) -> str:
        culprit = "null" if self.value is None else f"`{self.value}`"
        return (
            f"column `{self.column}`, row {self.row}: {self.text} Value: {culprit}. [{self.code}]"
        )


class EvaluationFailed(ValueError):
    """Some rows could not be evaluated. `failure` is the first of them, `failed` a Boolean series
    over all rows of the frame.
    """

    def __init__(self, failure: RowFailure, failed: pl.Series) -> None:
        others = int(failed.sum()) - 1
        super().__init__(
            str(failure)
            if others == 0
            else f"{failure} {others} more of {failed.len()} rows failed."
        )
        self.failure = failure
        self.failed = failed

    @property
    def code(self) -> str:
        return self.failure.code
