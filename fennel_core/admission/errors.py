"""Errors of rows that are not admitted: what a client of `log` receives, and why a row is dead.

`AdmissionError` is the root.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fennel_core.vocab.errors import ClassifiedApiError


class AdmissionError(ClassifiedApiError):
    """Base class of every error of admission. `CODE` is stable and never reused."""

    CODE = "admission"


class LogBodyMalformed(AdmissionError):
    """The body of `log` is not JSON of the expected form. Fix the request."""

    STATUS = 400
    CODE = "log-malformed"


class RowLimitExceeded(AdmissionError):
    """The request has more rows than the setting FENNEL_LOG_ROWS. Split it."""

    STATUS = 413
    CODE = "too-many-rows"


class RowsRejected(AdmissionError):
    """Rows do not fit the source; nothing of the request was written for the caller's branch.

    `numbers` are their row numbers within the request, None where user code failed without naming
    a row. `kind` says what is wrong without values and row numbers, so it may be stored.
    """

    CODE = "rows-refused"

    def __init__(self, text: str, numbers: npt.NDArray[np.int64] | None, kind: str) -> None:
        super().__init__(text)
        self.numbers = numbers
        self.kind = kind


class SourceCodeFailed(AdmissionError):
    """The user code of a source could not be run to its end. `code` is that of the executor."""

    CODE = "source-code"

    def __init__(self, text: str, executor_code: str) -> None:
        super().__init__(text)
        self.code = executor_code


class SourceCodeUnavailable(SourceCodeFailed):
    """No executor ran the user code of a source in time; nothing was written. Retry."""

    STATUS = 503
