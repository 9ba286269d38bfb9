"""What can go wrong when user code runs: one tree, so that a caller decides once what each branch
means for it.

Theory. `UserCodeError` is the code's own doing on these rows: poison rows go to the dead letters, a
query answers with the text. The rest says that the code could not be run to its end whatever the
rows: the caller parks the job or fails the request, and may try again. `code` is stable;
`str(error)` is the whole text for the person who wrote the code.
"""

from __future__ import annotations

from typing import assert_never

from fennel_core.executors import protocol
from fennel_core.executors.calls import (
    AssignCall,
    ExecutorCall,
    ExtractCall,
    FilterCall,
    TransformCall,
    WarmCall,
    entity_of,
)


class ExecutorError(Exception):
    """User code did not give a result. `entity` is the place of the code, `code` the stable name of
    what happened.
    """

    code = "executor"

    def __init__(self, text: str, entity: str) -> None:
        super().__init__(text)
        self.entity = entity


class UserCodeError(ExecutorError):
    """The code raised, or returned what its declaration does not allow. `message` is the bare
    message, `traceback` that of the code.
    """

    code = "user-code"

    def __init__(self, text: str, entity: str, message: str, traceback: str) -> None:
        super().__init__(text, entity)
        self.message = message
        self.traceback = traceback


class ImportFailed(ExecutorError):
    """The code's module could not be executed: a missing package, a name that is not defined."""

    code = "user-code-import"

    def __init__(self, text: str, entity: str, traceback: str) -> None:
        super().__init__(text, entity)
        self.traceback = traceback


class ExecutorCrashed(ExecutorError):
    """The process died under the call (a native crash, `os._exit`); another has taken its place."""

    code = "executor-crashed"


class ExecutorTimeout(ExecutorError):
    """The call took longer than its limit and its process was killed."""

    code = "executor-timeout"


class ExecutorOutOfMemory(ExecutorError):
    """The call wanted more memory than its limit allows."""

    code = "executor-memory"


class ExecutorUnavailable(ExecutorError):
    """No executor answered: not started, restarting, or all busy for longer than the call may take.
    Try again.
    """

    code = "executor-unavailable"


def raised_text(call: ExecutorCall, message: str) -> str:
    """The text for code that raised `message`; pinned by the client's tests (semantics of the
    mock).
    """
    match call:
        case TransformCall(code=code, entity=entity):
            return (
                f"Error in transform function `{_function(code.core_code)}` for pipeline "
                f"`{entity}`, {message}"
            )
        case FilterCall(code=code, entity=entity):
            return (
                f"Error in filter function `{_function(code.core_code)}` for pipeline "
                f"`{entity}`, {message}"
            )
        case AssignCall(column=column, entity=entity):
            return (
                f"Error in assign node for column `{column.name}` for pipeline "
                f"`{entity}`, {message}"
            )
        case ExtractCall(featureset=featureset, extractor=extractor):
            return (
                f"Extractor `{extractor}` in `{featureset}` failed to run with error: {message}. "
            )
        case WarmCall(entity=entity):
            return f"Error while loading the code of `{entity}`: {message}"
        case unreachable:
            assert_never(unreachable)


def failure(call: ExecutorCall, reason: str, message: str, traceback: str) -> ExecutorError:
    """The error for an answer whose header gives `reason`."""
    entity = entity_of(call)
    match reason:
        case protocol.RAISED:
            return UserCodeError(raised_text(call, message), entity, message, traceback)
        case protocol.INVALID:
            text = message if isinstance(call, ExtractCall) else raised_text(call, message)
            return UserCodeError(text, entity, message, traceback)
        case protocol.IMPORT:
            return ImportFailed(
                f"Error while executing code for {entity}: {message}", entity, traceback
            )
        case protocol.MEMORY:
            return ExecutorOutOfMemory(
                f"the code of `{entity}` ran out of memory: {message}", entity
            )
        case protocol.TIMEOUT:
            return ExecutorTimeout(f"the code of `{entity}` was stopped: {message}", entity)
        case protocol.CRASHED:
            return ExecutorCrashed(
                f"the process that ran the code of `{entity}` died: {message}", entity
            )
        case protocol.BUSY:
            return ExecutorUnavailable(f"the code of `{entity}` was not run: {message}", entity)
        case _:
            return ExecutorCrashed(f"the code of `{entity}` was not run: {message}", entity)


def _function(core_code: str) -> str:
    """The name of the author's function, `<lambda>` for a lambda."""
    for line in core_code.splitlines():
        head = line.strip()
        if head.startswith("def "):
            return head[4:].split("(", 1)[0].strip()
    return "<lambda>"
