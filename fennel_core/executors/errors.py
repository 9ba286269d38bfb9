"""Failures of running user code. Standard library only: both environments import this module.

`ExecutorError` is the root. Callers of `client.Executors` react to two kinds of `CallFailed`:

- `UserCodeFailed` is caused by the code on these rows: dead-letter the rows, or fail the query with
  the text.
- The other classes say that the code could not be run to its end, whatever the rows: park the job
  or fail the request. A retry may help.

`str(error)` is the whole text for the author of the code. Failures that never leave the executors
are in `internal_errors`.
"""

from __future__ import annotations

from typing import ClassVar


class ExecutorError(Exception):
    """Base class of every failure of the executors. `code` is stable and never reused."""

    code: ClassVar[str] = "executor"


class CallFailed(ExecutorError):
    """A call has no result. `entity` is the place of the code, e.g. `Dataset.pipeline`."""

    def __init__(self, text: str, entity: str) -> None:
        super().__init__(text)
        self.entity = entity


class UserCodeFailed(CallFailed):
    """The code raised, or returned a result that its declaration does not allow.

    `message` is the bare message, `traceback` that of the code.
    """

    code = "user-code"

    def __init__(self, text: str, entity: str, message: str, traceback: str) -> None:
        super().__init__(text, entity)
        self.message = message
        self.traceback = traceback


class CodeImportFailed(CallFailed):
    """The code's module could not be executed: a missing package, an undefined name."""

    code = "user-code-import"

    def __init__(self, text: str, entity: str, traceback: str) -> None:
        super().__init__(text, entity)
        self.traceback = traceback


class ExecutorCrashed(CallFailed):
    """The worker process died during the call (a native crash, `os._exit`) and was replaced."""

    code = "executor-crashed"


class ExecutorTimeout(CallFailed):
    """The call exceeded its time limit and its process was killed."""

    code = "executor-timeout"


class ExecutorOutOfMemory(CallFailed):
    """The call exceeded its memory limit."""

    code = "executor-memory"


class ExecutorUnavailable(CallFailed):
    """No executor responded: not started, restarting, or busy beyond the time limit. Retry."""

    code = "executor-unavailable"
