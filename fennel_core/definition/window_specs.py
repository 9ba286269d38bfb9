"""Complete a commit with the window aggregations that the client's protocol drops.

`wire/window_specs.py` determines which pipelines need it and generates a program that extracts the
aggregations. The program runs user code, so it runs in the client's environment, in its own process
group, without the platform's settings in its environment, with limits on time and memory. Its
output is inserted into the commit's bytes before they are stored, so the program runs once per
commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from fennel_core.definition.errors import WindowSpecsUnavailable
from fennel_core.executors.launch import PACKAGE_ROOT, SINGLE_THREADED
from fennel_core.settings.model import GIB, Settings
from fennel_core.wire.entities import SyncRequest
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.window_specs import (
    extraction_program,
    insert_window_specs,
    pipelines_without_specs,
)

TIME_LIMIT_SECONDS: Final = 30.0
"""Importing the client takes two seconds; a pipeline function only builds a tree."""
WARM_PROCESS_BYTES: Final = 4 * GIB
"""Address space of the interpreter after it has imported the client's libraries."""
ERROR_CHARS: Final = 2_000
"""Longest part of the program's error output that is reported, from its end."""

RunProgram = Callable[[str], Awaitable[str]]
"""Runs a program in the client's environment and returns its output.

Raises WindowSpecsUnavailable.
"""


def client_program_runner(settings: Settings) -> RunProgram:
    """Return a function that runs programs as processes of the client's interpreter."""

    async def run(program: str) -> str:
        return await _run(settings, program)

    return run


async def add_window_specs(
    body: bytes, request: SyncRequest, base: SyncRequest | None, run: RunProgram
) -> bytes:
    """Return `body`, which decodes to `request`, with the aggregations of its windowed groupbys.

    Returns `body` itself if nothing is missing. Raises WindowSpecsUnavailable.
    """
    program = extraction_program(request, base)
    if program is None:
        return body
    try:
        return insert_window_specs(body, pipelines_without_specs(request, base), await run(program))
    except UnsupportedValue as unusable:
        raise WindowSpecsUnavailable(str(unusable)) from unusable


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
        raise _failed(f"it did not end within {TIME_LIMIT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        raise _failed(
            err.decode(errors="replace").strip()[-ERROR_CHARS:]
            or f"its process exited with code {process.returncode}"
        )
    return out.decode(errors="replace")


def _python(settings: Settings) -> os.PathLike[str]:
    python = settings.executor_python
    return python if python.is_absolute() else PACKAGE_ROOT / python


def _failed(reason: str) -> WindowSpecsUnavailable:
    return WindowSpecsUnavailable(
        "the aggregations of `groupby(…, window=…)` are extracted by running the pipeline "
        f"function, which failed: {reason}"
    )
