"""Failures of running user code. Standard library only: both environments import this module.

`ExecutorError` is the root. Callers of `client.Executors` react to two kinds of `CallFailed`:

- `UserCodeFailed` is caused by the code on these rows: dead-letter the rows, or fail the query with
  the text.
- The other classes say that the code could not be run to its end, whatever the rows: park the job
  or fail the request. A retry may help.

The classes from `CodeLoadFailed` on stay inside the executor environment and travel to the platform
as a reason of `protocol`. `str(error)` is the whole text for the author of the code.
"""

from __future__ import annotations

from typing import ClassVar


class ExecutorError(Exception):
    """Base class of every failure of the executors. `code` is stable and never reused."""

    code: ClassVar[str] = "executor-failed"


class CallFailed(ExecutorError):
    """A call has no result. `entity` is the place of the code, e.g. `Dataset.pipeline`."""

    code = "executor"

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


class ConnectionStale(ExecutorError):
    """The connection was closed before any response; the call did not run and can be sent again."""

    code = "connection-stale"


class LookupRefused(ExecutorError):
    """Raise it in a callback for an invalid request of user code, which sees it as a ValueError."""

    code = "lookup-refused"


class DefinitionsNotLoaded(ExecutorError):
    """A module of definitions could not be loaded; the text ends with the output of its code."""

    code = "definitions-not-loaded"


class ProtocolError(ExecutorError):
    """The other side sent a frame that this release does not understand, or a payload is too large.

    Platform and executors must be of one release.
    """

    code = "protocol-malformed"


class PeerClosed(ExecutorError):
    """The other side closed the connection; the worker drops the call."""

    code = "peer-closed"


class CodeLoadFailed(ExecutorError):
    """The module of user code could not be executed; `trace` is its traceback."""

    code = "code-load-failed"

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


class UserCodeRaised(ExecutorError):
    """User code raised `cause`."""

    code = "user-code-raised"

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause


class ResultInvalid(ExecutorError):
    """User code returned a result that its declaration forbids; the text is for its author."""

    code = "result-invalid"


class DefinitionsInvalid(ExecutorError):
    """The definitions cannot be committed as they are; the text says why."""

    code = "definitions-invalid"
