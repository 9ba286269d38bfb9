"""A real executors' host for tests, in the client's environment.

Use it with `pytest_plugins = ["tests.support.executors"]`, or import the fixtures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fennel_core.executors import launch
from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync

CLIENT_PYTHON = Path(__file__).parents[2] / ".venv-executor" / "bin" / "python"
READY_WITHIN_S = 30.0


@contextmanager
def running_host(folder: Path, **limits: int) -> Iterator[Path]:
    """Run a host under `folder` and yield the path of its socket.

    `limits` are settings, e.g. `executor_processes=1`.
    """
    settings = Settings(data_dir=folder, run_dir=folder, executor_python=CLIENT_PYTHON, **limits)  # type: ignore[arg-type]  # fields by name
    with (folder / "executors.log").open("wb") as log:
        process = subprocess.Popen(
            launch.command(settings),
            env=launch.environment(settings, os.environ),
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


def written_by_the_client(definitions: Path, target: Path) -> bytes:
    """Run a module of client definitions with the client's interpreter: the bytes of the commit it
    writes.
    """
    subprocess.run([str(CLIENT_PYTHON), str(definitions), str(target)], check=True)
    return target.read_bytes()
