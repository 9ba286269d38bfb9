"""Failures of operators."""

from __future__ import annotations

from typing import ClassVar


class OperatorError(Exception):
    """Root of the failures of this package. `code` is stable."""

    code: ClassVar[str] = "operator"


class UnsupportedAggregation(OperatorError):
    """A step specification combines an aggregation, a window and an input for which no result is
    defined.

    Raised when the step is built, so the job fails before it reads anything. The text names the
    combination and what to use instead; the definition has to change.
    """

    code: ClassVar[str] = "unsupported-aggregation"


class UnsupportedWindow(OperatorError):
    """An operator does not accept this kind of window.

    Raised when the step is built. The definition has to use one of the windows that the text names.
    """

    code: ClassVar[str] = "unsupported-window"


class NoNativeStep(OperatorError):
    """A step was requested for what the engine awaits instead, such as user code.

    Raised by `build.build`: a caller checks `spec.has_native_step` first.
    """

    code: ClassVar[str] = "no-native-step"
