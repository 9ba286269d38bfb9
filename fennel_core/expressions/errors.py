"""Exceptions of expressions, and the description of a failed row.

Theory. An expression is checked once, against a schema, before any row exists; a violation is an
`InvalidExpression`, an error of its author. A row is checked when it arrives: a text that is not a
date, a null in a column that is not Optional. That is a `RowFailure`: it names the column, the row
and the value, other rows are computed, and the job runner turns the row into a dead letter.
`EvaluationFailed` carries the same information for callers that need all rows or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

NULL_IN_NON_OPTIONAL = "Null values found in non-optional field."
"""The client raises exactly this sentence, and its tests check it."""


class ExpressionsError(ValueError):
    """Base class of all exceptions of this package."""

    code: ClassVar[str] = "expressions"


class InvalidExpression(ExpressionsError):
    """Raised when an expression does not fit its schema; its author has to correct it.

    `rule` is the stable code of the violated rule, also shown to users; `text` says what is wrong
    and what to do, without naming the entity.
    """

    code: ClassVar[str] = "invalid-expression"

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{text} [{rule}]")
        self.rule = rule
        self.text = text


class JsonTypeMismatch(ExpressionsError):
    """Raised when JSON does not fit its type; the caller turns it into a row failure."""

    code: ClassVar[str] = "json-type-mismatch"


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why one row has no value in one column.

    `row` counts from 0 within the frame; `value` is the offending value as text, None if it was
    null.
    """

    column: str
    row: int
    code: str
    text: str
    value: str | None

    def __str__(self) -> str:
        value = "null" if self.value is None else f"`{self.value}`"
        return f"column `{self.column}`, row {self.row}: {self.text} Value: {value}. [{self.code}]"


class EvaluationFailed(ExpressionsError):
    """Raised when rows fail and the caller needs all of them; correct or drop these rows.

    `failure` is the first failure, `failed` a Boolean series over all rows of the frame.
    """

    code: ClassVar[str] = "evaluation-failed"

    def __init__(self, failure: RowFailure, failed: pl.Series) -> None:
        others = int(failed.sum()) - 1
        super().__init__(
            str(failure)
            if others == 0
            else f"{failure} {others} more of {failed.len()} rows failed."
        )
        self.failure = failure
        self.failed = failed
