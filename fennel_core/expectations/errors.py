"""Errors of expectations; `ExpectationError` is the root."""

from __future__ import annotations

from typing import ClassVar


class ExpectationError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "expectation"


class ExpectationInvalid(ExpectationError):
    """An expectation cannot be evaluated as it is declared; the text says what to change."""

    code = "expectation-argument"
