"""Translate the failure reason of a response into an exception with the text its author sees."""

from __future__ import annotations

from typing import assert_never

from fennel_core.executors import protocol
from fennel_core.executors.calls import (
    AssignCall,
    CollectCall,
    EachRowCall,
    ExecutorCall,
    ExtractCall,
    FilterCall,
    ProgramCall,
    TransformCall,
    WarmCall,
    entity_of,
)
from fennel_core.executors.errors import (
    CallFailed,
    CodeImportFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    ExecutorUnavailable,
    UserCodeFailed,
)


def raised_text(call: ExecutorCall, message: str) -> str:
    """Return the text for code that raised `message`; the client's tests check it."""
    match call:
        case EachRowCall(of=of):
            return raised_text(of, message)
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
        case ProgramCall(entity=entity) | CollectCall(entity=entity):
            return f"Error in `{entity}`: {message}"
        case unreachable:
            assert_never(unreachable)


def call_failure(call: ExecutorCall, reason: str, message: str, traceback: str) -> CallFailed:
    """Return the exception for a response whose header gives `reason`."""
    if isinstance(call, EachRowCall):
        call = call.of
    entity = entity_of(call)
    match reason:
        case protocol.RAISED:
            return UserCodeFailed(raised_text(call, message), entity, message, traceback)
        case protocol.INVALID:
            text = message if isinstance(call, ExtractCall) else raised_text(call, message)
            return UserCodeFailed(text, entity, message, traceback)
        case protocol.IMPORT:
            return CodeImportFailed(
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
    """Return the name of the author's function, `<lambda>` for a lambda."""
    for line in core_code.splitlines():
        head = line.strip()
        if head.startswith("def "):
            return head[4:].split("(", 1)[0].strip()
    return "<lambda>"
