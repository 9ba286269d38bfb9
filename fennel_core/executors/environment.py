"""The environment variables of executors: a list of allowed ones. Standard library only.

User code can read the environment of its process, so none that is not on the list is passed on,
whatever started the executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fennel_core.executors import protocol

SINGLE_THREADED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
)
"""One call uses one core, and threads of a library do not survive a fork."""
HOME: Final = "/nonexistent"
"""Libraries look for their files below it and find none."""
INHERITED: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *(protocol.SOCKET_ENV, protocol.PROCESSES_ENV, protocol.TIME_LIMIT_ENV),
    *(protocol.MEMORY_LIMIT_ENV, protocol.CALLS_ENV, protocol.OWNER_ENV),
)
"""Variables that keep their values."""


def allowed(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of executors that are started from `inherited`."""
    kept = {name: inherited[name] for name in INHERITED if name in inherited}
    return kept | dict(SINGLE_THREADED) | {"HOME": HOME}
