"""A real executors' host for tests, in the client's environment."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from fennel_core.definition.window_specs import client_program_runner
from fennel_core.executors import launch
from fennel_core.executors.definitions import read
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId
from tests.support.polling import eventually_sync

CLIENT_PYTHON = Path(__file__).parents[2] / ".venv-executor" / "bin" / "python"
READY_WITHIN_S = 30.0


@dataclass(frozen=True)
class HostStart:
    """How a host is started: its interpreter, its user, further variables, and its module."""

    python: Path = CLIENT_PYTHON
    user: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None


@contextmanager
def running_host(folder: Path, start: HostStart | None = None, **limits: int) -> Iterator[Path]:
    """Run a host under `folder` and yield the path of its socket.

    `limits` are settings, e.g. `executor_processes=1`.
    """
    start = start or HostStart()
    settings = Settings(data_dir=folder, run_dir=folder, executor_python=start.python, **limits)  # type: ignore[arg-type]  # fields by name
    at_most = launch.ExecutorLimits.of(settings)
    command = launch.command(at_most)
    if start.module is not None:
        command = [*command[:-1], start.module]
    with (folder / "executors.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
            command,
            env={
                **launch.environment(at_most, settings.executors_socket, os.environ),
                **start.variables,
            },
            user=start.user,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:

            def listening() -> bool:
                assert process.poll() is None, (folder / "executors.log").read_text()
                return settings.executors_socket.exists()

            eventually_sync(listening, within_s=READY_WITHIN_S, what="the executors listen")
            yield settings.executors_socket
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


@pytest.fixture(scope="session")
def executors_socket() -> Iterator[Path]:
    """The socket of a host with two processes, shared by the session."""
    with (
        tempfile.TemporaryDirectory(prefix="fennel-ex-") as folder,
        running_host(Path(folder), executor_processes=2) as socket,
    ):
        yield socket


@cache
def shared_settings() -> Settings:
    """Return the settings of a host that is started now and runs until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="fennel-ex-")
    running = running_host(Path(folder.name), executor_processes=2)
    running.__enter__()
    atexit.register(folder.cleanup)
    atexit.register(running.__exit__, None, None, None)
    return Settings(data_dir=Path(folder.name), run_dir=Path(folder.name))


async def run_client_program(workspace: WorkspaceId, program: str) -> str:
    """Run a program of a commit in the shared host (a `window_specs.RunProgram`)."""
    settings = await asyncio.to_thread(shared_settings)
    return await client_program_runner(settings)(workspace, program)


async def commit_of(
    definitions: str, *, message: str = "test", folder: Path = launch.PACKAGE_ROOT
) -> bytes:
    """Return the commit of a module or file as the client sends it, made in the shared host."""
    settings = await asyncio.to_thread(shared_settings)
    body, _ = await read(
        settings,
        definitions,
        workspace=WorkspaceId("tests"),
        env=None,
        message=message,
        folder=folder,
    )
    return body


def written_by_the_client(definitions: Path, target: Path) -> bytes:
    """Run a module of client definitions with the client's interpreter: the bytes of the commit it
    writes.
    """
    subprocess.run([str(CLIENT_PYTHON), str(definitions), str(target)], check=True)  # noqa: S603  # a program of this test, and no shell
    return target.read_bytes()
