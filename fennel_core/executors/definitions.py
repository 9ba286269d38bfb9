"""Read definitions from a module or path, as the bytes that a client would have sent.

This serves commits that start in Airflow's form. Definitions are users' code, so they run in the
client's environment, in a separate process that gets none of the platform's settings and is killed
after `TIME_LIMIT_SECONDS`. They are as trusted as a DAG: users who may trigger a commit may run
code here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

from fennel_core.executors.collect import INVALID_EXIT_CODE
from fennel_core.executors.internal_errors import DefinitionsNotLoaded
from fennel_core.executors.launch import PACKAGE_ROOT, SINGLE_THREADED
from fennel_core.settings.model import Settings

TIME_LIMIT_SECONDS: Final = 120.0
"""A large project with its libraries loads in seconds; beyond this limit it waits for something."""
REQUEST_BYTES: Final = 64 * 1024 * 1024
REPORTED_CHARS: Final = 4_000
"""Length of the reported end of a failure's output, which is where Python names the error."""


async def read(
    settings: Settings,
    definitions: str,
    *,
    env: str | None,
    message: str,
    folder: Path = PACKAGE_ROOT,
    limit_s: float = TIME_LIMIT_SECONDS,
) -> tuple[bytes, str]:
    """Load `definitions` and return the SyncRequest's bytes and the output of the code.

    `definitions` is a module name, or a path relative to `folder`. Raises `DefinitionsNotLoaded`
    when the code raises, defines nothing, defines a name twice, or exceeds `limit_s`.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FENNEL_", "AIRFLOW_"))
    }
    python = (
        settings.executor_python
        if settings.executor_python.is_absolute()
        else PACKAGE_ROOT / settings.executor_python
    )
    with tempfile.TemporaryFile() as out:
        process = await asyncio.create_subprocess_exec(
            str(python),
            *(
                "-m",
                "fennel_core.executors.collect",
                definitions,
                env or "",
                message,
                str(out.fileno()),
            ),
            cwd=folder,
            env=kept | SINGLE_THREADED | {"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONUNBUFFERED": "1"},
            pass_fds=(out.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                _, printed = await process.communicate()
        except TimeoutError:
            raise DefinitionsNotLoaded(
                f"{definitions}: loading exceeded {limit_s:g} s and was stopped"
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        output = printed.decode(errors="replace").strip()
        if process.returncode != 0:
            reason = output[-REPORTED_CHARS:] or f"its process ended with {process.returncode}"
            raise DefinitionsNotLoaded(
                reason
                if process.returncode == INVALID_EXIT_CODE
                else f"{definitions}: the process that loaded it failed: {reason}"
            )
        out.seek(0)
        return out.read(REQUEST_BYTES), output
