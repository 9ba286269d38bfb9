"""The one error tree of this boundary. A code never changes its meaning; the text says what was
wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class WireError(ValueError):
    """Bytes or JSON from a client that cannot be understood.

    `code` is stable and machine-readable; `str(error)` is for the person who sent the request.
    """

    code = "wire"


class MalformedMessage(WireError):
    """Not a protobuf message of the expected type."""

    code = "wire-malformed"


class UnsupportedValue(WireError):
    """A well-formed message with a part that is missing, unknown or out of range."""

    code = "wire-unsupported"


@dataclass(frozen=True, slots=True)
class BadValue:
    """One value that does not fit its column: where it stands, what it is, and why it does not fit.

    `forbidden`: it has the right type but breaks `between`, `oneof` or `regex`.
    """

    row: int
    value: object
    reason: str
    forbidden: bool = False


class BadColumn(WireError):
    """A column of a `log` or `query` body with values that do not fit its type.

    `bad` are the offending values in row order, `rows` the length of the column. `str(error)` names
    the column, the first value and its row, and counts the others.
    """

    code = "wire-bad-column"

    def __init__(self, column: str, bad: Sequence[BadValue], rows: int, text: str) -> None:
        super().__init__(text)
        self.column = column
        self.bad = tuple(bad)
        self.rows = rows


class UncastableColumn(BadColumn):
    """Values that cannot become the column's type, or nulls where none are allowed."""

    code = "wire-uncastable"


class ForbiddenValues(BadColumn):
    """Values of the right type that break `between`, `oneof` or `regex`."""

    code = "wire-forbidden-value"


class MissingColumn(WireError):
    """A declared column that the body does not have."""

    code = "wire-missing-column"


class RejectedRows(WireError):
    """A batch of rows that cannot enter a dataset; nothing of it was kept. `causes` has one error
    per column at fault.
    """

    code = "wire-rejected-rows"

    def __init__(self, text: str, causes: Sequence[WireError]) -> None:
        super().__init__(text)
        self.causes = tuple(causes)
