"""Failures between the platform and its executors that no client sees as an API error.

Standard library only: both environments import this module. The classes from `PeerClosed` on stay
inside the executor environment and travel to the platform as a failure reason of `protocol`.
"""

from __future__ import annotations

from fennel_core.executors.errors import ExecutorError


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


class ArrowRefused(ExecutorError):
    """Arrow data of user code is not what it was asked for; the text says why."""

    code = "arrow-refused"


class ResponseMalformed(ExecutorError):
    """A process of user code sent something that is no response."""

    code = "response-malformed"


class AnswerTooLarge(ExecutorError):
    """User code returned or requested more data than the platform holds in memory."""

    code = "answer-too-large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"it sent {size} bytes, more than the limit of {limit}; send fewer rows")


class SandboxUnavailable(ExecutorError):
    """This machine cannot confine user code, so the executors do not start; the text says why."""

    code = "sandbox-unavailable"


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
