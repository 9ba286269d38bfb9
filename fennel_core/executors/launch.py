"""The command line and environment of the executors' host.

The host runs in the client's environment, which has none of the platform's packages, so it cannot
read `Settings`. The local launcher, the container's entry point and tasks of Spark pass the few
values it needs through the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fennel_core.executors import protocol
from fennel_core.executors.environment import allowed
from fennel_core.settings.model import Settings

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""The folder of the package, where the client's environment finds it."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """What one call may use, and the interpreter of the executor environment. Holds no secrets, so
    it can be sent to other machines.
    """

    python: Path
    processes: int
    time_limit_ms: int
    memory_bytes: int
    calls_per_process: int

    @classmethod
    def of(cls, settings: Settings) -> ExecutorLimits:
        return cls(
            settings.executor_python.absolute(),
            settings.executor_processes,
            settings.executor_time_limit_ms,
            settings.executor_memory_limit_bytes,
            settings.executor_calls_per_process,
        )


def command(limits: ExecutorLimits) -> list[str]:
    """Return the argument list that runs the host."""
    return [str(limits.python), "-m", "fennel_core.executors.host"]


def environment(
    limits: ExecutorLimits, socket: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the host's environment, which user code can read: allowed variables only."""
    return allowed(inherited) | {
        "PYTHONPATH": str(PACKAGE_ROOT),
        "PYTHONUNBUFFERED": "1",
        protocol.SOCKET_ENV: str(socket),
        protocol.PROCESSES_ENV: str(limits.processes),
        protocol.TIME_LIMIT_ENV: str(limits.time_limit_ms),
        protocol.MEMORY_LIMIT_ENV: str(limits.memory_bytes),
        protocol.CALLS_ENV: str(limits.calls_per_process),
    }
