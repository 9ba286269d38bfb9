"""The command line and environment of the executors' host.

The host runs in the client's environment, which has none of the platform's packages, so it cannot
read `Settings`. The local launcher and the container's entry point pass the few values it needs
through the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fennel_core.executors import protocol
from fennel_core.executors.environment import allowed
from fennel_core.settings.model import Settings

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""The folder of the package, where the client's environment finds it."""


def command(settings: Settings) -> list[str]:
    """Return the argument list that runs the host."""
    return [str(settings.executor_python.absolute()), "-m", "fennel_core.executors.host"]


def environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the host's environment, which user code can read: allowed variables only."""
    return allowed(inherited) | {
        "PYTHONPATH": str(PACKAGE_ROOT),
        "PYTHONUNBUFFERED": "1",
        protocol.SOCKET_ENV: str(settings.executors_socket),
        protocol.PROCESSES_ENV: str(settings.executor_processes),
        protocol.TIME_LIMIT_ENV: str(settings.executor_time_limit_ms),
        protocol.MEMORY_LIMIT_ENV: str(settings.executor_memory_limit_bytes),
        protocol.CALLS_ENV: str(settings.executor_calls_per_process),
    }
