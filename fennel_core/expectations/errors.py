"""Errors of expectations; `ExpectationError` is the root."""

from __future__ import annotations

from typing import ClassVar


class ExpectationError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "expectation"


class ExpectationInvalid(ExpectationError):
    """An expectation cannot be evaluated as it is declared; the text says what to change."""

    code = "expectation-argument"


def first_line(error: BaseException) -> str:
    """Return what an error of a library says, shortened for a message."""
    return str(error).splitlines()[0][:200] if str(error).strip() else type(error).__name__
