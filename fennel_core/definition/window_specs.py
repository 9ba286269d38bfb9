"""Complete a commit with the window aggregations that the client's protocol drops.

`wire/window_specs.py` determines which pipelines need it and generates a program that extracts the
aggregations. The program runs user code, so it runs in the executors, in a process that ends
afterwards. Its output is inserted into the commit's bytes before they are stored, so the program
runs once per commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fennel_core.definition.errors import CommitCodeNotRun, WindowSpecsUnavailable
from fennel_core.executors.calls import ProgramCall
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import (
    CallFailed,
    CodeImportFailed,
    ExecutorTimeout,
    ExecutorUnavailable,
)
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.entities import SyncRequest
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.window_specs import (
    extraction_program,
    insert_window_specs,
    pipelines_without_specs,
)

TIME_LIMIT_MS: Final = 30_000
"""A pipeline function only builds a tree."""
ERROR_CHARS: Final = 2_000
"""Longest part of the program's error output that is reported, from its end."""

RunProgram = Callable[[WorkspaceId, str], Awaitable[str]]
"""Runs a program in the executors, as code of a workspace, and returns its output.

Raises WindowSpecsUnavailable or CommitCodeNotRun.
"""


def client_program_runner(settings: Settings) -> RunProgram:
    """Return a function that runs programs in the executors."""

    async def run(workspace: WorkspaceId, program: str) -> str:
        call = ProgramCall(program, "groupby(…, window=…)")
        callbacks = Callbacks(workspace=workspace)
        async with Executors(settings.executors_socket, time_limit_ms=TIME_LIMIT_MS) as executors:
            try:
                output = await executors.run_program(
                    call, callbacks=callbacks, timeout_ms=TIME_LIMIT_MS
                )
            except CodeImportFailed as raised:
                raise _failed(raised.traceback.strip()[-ERROR_CHARS:] or str(raised)) from raised
            except ExecutorUnavailable as unavailable:
                raise CommitCodeNotRun(str(unavailable)) from unavailable
            except ExecutorTimeout as late:
                raise _failed(f"it did not end within {TIME_LIMIT_MS / 1000:g} s") from late
            except CallFailed as failed:
                raise _failed(str(failed)) from failed
        return output.decode(errors="replace")

    return run


async def add_window_specs(
    body: bytes,
    request: SyncRequest,
    base: SyncRequest | None,
    workspace: WorkspaceId,
    run: RunProgram,
) -> bytes:
    """Return `body`, which decodes to `request`, with the aggregations of its windowed groupbys.

    Returns `body` itself if nothing is missing. Raises WindowSpecsUnavailable or
    CommitCodeNotRun.
    """
    program = extraction_program(request, base)
    if program is None:
        return body
    try:
        return insert_window_specs(
            body, pipelines_without_specs(request, base), await run(workspace, program)
        )
    except UnsupportedValue as unusable:
        raise WindowSpecsUnavailable(str(unusable)) from unusable


def _failed(reason: str) -> WindowSpecsUnavailable:
    return WindowSpecsUnavailable(
        "the aggregations of `groupby(…, window=…)` are extracted by running the pipeline "
        f"function, which failed: {reason}"
    )
