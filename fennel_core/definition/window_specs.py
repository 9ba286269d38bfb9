"""What the client's protocol drops of windowed groupbys, brought back before a commit is checked.

Theory. `wire.window_specs` says which pipelines need it and writes a program; here the program
runs, in the client's environment and in a process of its own, because it is the user's code:
without the platform's settings in its environment, bounded in time and memory, and killed with
everything it started. Its answer goes into the commit's bytes, so it is run once per commit, by
whoever received it, and every later reader finds the aggregations where it looks for them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from fennel_core.executors.launch import PACKAGE_ROOT, SINGLE_THREADED
from fennel_core.settings.model import GIB, Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.wire.entities import SyncRequest
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.window_specs import (
    extraction_program,
    insert_window_specs,
    pipelines_without_specs,
)

TIME_LIMIT_SECONDS: Final = 30.0
"""Importing the client takes two; a pipeline function only builds a tree."""
WARM_PROCESS_BYTES: Final = 4 * GIB
"""Address space of the interpreter with the client's libraries, before the code does anything."""
TOLD_CHARS: Final = 2_000

RunProgram = Callable[[str], Awaitable[str]]
"""Runs a program in the client's environment and answers what it printed; ApiError when it
fails.
"""


def client_program_runner(settings: Settings) -> RunProgram:
    """Programs run as processes of the client's interpreter."""

    async def run(program: str) -> str:
        return await _run(settings, program)

    return run


async def add_window_specs(
    body: bytes, request: SyncRequest, standing: SyncRequest | None, run: RunProgram
) -> bytes:
    """`body` (which decodes to `request`) with the aggregations of its windowed groupbys; `body`
    itself when it has none to recover.
    """
    program = extraction_program(request, standing)
    if program is None:
        return body
    try:
        return insert_window_specs(
            body, pipelines_without_specs(request, standing), await run(program)
        )
    except UnsupportedValue as unusable:
        raise ApiError(400, "window-aggregations", str(unusable)) from unusable


async def _run(settings: Settings, program: str) -> str:
    limit = settings.executor_memory_limit_bytes + WARM_PROCESS_BYTES
    bounded = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n{program}"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FENNEL_", "AIRFLOW_"))
    }
    process = await asyncio.create_subprocess_exec(
        str(_python(settings)),
        "-",
        env=kept | SINGLE_THREADED,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIME_LIMIT_SECONDS):
            out, err = await process.communicate(bounded.encode())
    except TimeoutError:
        raise _failed(f"running it did not end within {TIME_LIMIT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        raise _failed(
            err.decode(errors="replace").strip()[-TOLD_CHARS:]
            or f"its process ended with {process.returncode}"
        )
    return out.decode(errors="replace")


def _python(settings: Settings) -> os.PathLike[str]:
    python = settings.executor_python
    return python if python.is_absolute() else PACKAGE_ROOT / python


def _failed(why: str) -> ApiError:
    return ApiError(
        400,
        "window-aggregations",
        "the aggregations of `groupby(…, window=…)` are learnt by running the "
        f"pipeline function, which failed: {why}",
    )
