"""From a module or path of definitions to the bytes a client would have sent: for commits that
start in Airflow's form.

Theory. The definitions are somebody's code, so they run in the client's environment, in a process
of their own that gets none of the platform's settings, and is killed after `TIME_LIMIT_SECONDS`.
They are as trusted as a DAG: whoever may trigger a commit runs code here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

from fennel_core.executors.collect import WRONG
from fennel_core.executors.launch import PACKAGE_ROOT, SINGLE_THREADED
from fennel_core.settings.model import Settings

TIME_LIMIT_SECONDS: Final = 120.0
"""Loading a large project with its libraries takes seconds; more than this is a definition that
waits for something.
"""
REQUEST_BYTES: Final = 64 * 1024 * 1024
TOLD_CHARS: Final = 4_000
"""How much of a failure's text is told: its end, where Python says what was wrong."""


class DefinitionsNotLoaded(Exception):
    """The definitions could not be read; the text ends with what their code said."""


async def read(
    settings: Settings,
    definitions: str,
    *,
    env: str | None,
    message: str,
    folder: Path = PACKAGE_ROOT,
    limit_s: float = TIME_LIMIT_SECONDS,
) -> tuple[bytes, str]:
    """Run `definitions` (module name, or path relative to `folder`) and return the SyncRequest's
    bytes and what the code printed.

    Raises DefinitionsError when the code raises, defines nothing, defines a name twice, or does not
    end within `limit_s`.
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
                f"{definitions}: loading it did not end within {limit_s:g} s, so it was stopped"
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        told = printed.decode(errors="replace").strip()
        if process.returncode != 0:
            said = told[-TOLD_CHARS:] or f"its process ended with {process.returncode}"
            raise DefinitionsNotLoaded(
                said
                if process.returncode == WRONG
                else f"{definitions}: the process that loaded it failed: {said}"
            )
        out.seek(0)
        return out.read(REQUEST_BYTES), told
