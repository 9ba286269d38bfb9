"""The result of loading a project, on its way from a worker to the platform.

Standard library only: both environments import this module.
"""

from __future__ import annotations

import struct
from typing import Final

from fennel_core.executors.errors import ExecutorCrashed

OUTPUT: Final = struct.Struct(">I")
"""The length of the output of the code, before the output and the request."""


def join_collected(output: str, request: bytes) -> bytes:
    """Encode the output of the code and the request that commits what it defines."""
    printed = output.encode(errors="replace")
    return OUTPUT.pack(len(printed)) + printed + request


def split_collected(collected: bytes) -> tuple[str, bytes]:
    """Return output and request; raises `ExecutorCrashed` for anything else."""
    if len(collected) < OUTPUT.size:
        raise ExecutorCrashed("the process that loaded them sent no result", "definitions")
    (size,) = OUTPUT.unpack_from(collected)
    if size > len(collected) - OUTPUT.size:
        raise ExecutorCrashed("the process that loaded them sent a malformed result", "definitions")
    end = OUTPUT.size + size
    return collected[OUTPUT.size : end].decode(errors="replace"), collected[end:]
