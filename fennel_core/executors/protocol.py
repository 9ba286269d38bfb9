"""The frames between the platform and an executor process, and the names both sides use in them.

User code needs the client's environment (its pandas, numpy and pyarrow pins), so it runs in other
processes and each call crosses a Unix socket. A frame is a fixed prefix (version, header length,
payload length, time limit, whose call it is), a JSON header and an Arrow IPC stream. One connection
carries one call at a time: a call frame, then any number of request and reply frames (user code
looks up a dataset or reads a secret; the worker requests the text of the code), then one response.
The host reads only the prefix; payloads go straight to the worker.

Both environments import this module, so it uses the standard library only. Every change of the
frame increments `VERSION`.
"""

from __future__ import annotations

import struct
from typing import Final

from fennel_core.executors.internal_errors import ProtocolError

VERSION: Final = 3
PREFIX: Final = struct.Struct(">BIIIII")
"""version, header bytes, payload bytes, time limit in ms (0: the host's own), share, workspace."""
MAX_PAYLOAD_BYTES: Final = 1 << 30
MAX_HEADER_BYTES: Final = 64 << 20

ROW: Final = "__row"
"""Column of a result: the index of the input row of each output row."""
TS: Final = "__ts"
"""Column of timestamps: of an extractor's rows, or of a lookup's keys."""
FOUND: Final = "__found"
"""Column of a lookup's result: whether the key has a row."""
MARKS: Final = (ROW, TS, FOUND)

SOCKET_ENV: Final = "FENNEL_EXECUTORS_SOCKET"
PROCESSES_ENV: Final = "FENNEL_EXECUTOR_PROCESSES"
TIME_LIMIT_ENV: Final = "FENNEL_EXECUTOR_TIME_LIMIT_MS"
MEMORY_LIMIT_ENV: Final = "FENNEL_EXECUTOR_MEMORY_LIMIT_BYTES"
CALLS_ENV: Final = "FENNEL_EXECUTOR_CALLS_PER_PROCESS"

# Failure reasons in the header of a response.
RAISED: Final = "raised"  # user code raised
INVALID: Final = "invalid"  # user code returned something its declaration does not allow
IMPORT: Final = "import"  # the module of the code could not be executed
MEMORY: Final = "memory"
TIMEOUT: Final = "timeout"
CRASHED: Final = "crashed"
BUSY: Final = "busy"  # no worker became free in time
REFUSED: Final = "refused"  # the frame itself is not understood


def pack(
    header: bytes,
    payload: bytes = b"",
    time_limit_ms: int = 0,
    share: int = 0,
    workspace: int = 0,
) -> bytes:
    """Encode one frame; raises `ProtocolError` for a payload that is too large.

    Calls of one `share` take turns with those of others, and the calls of one `workspace` (a hash
    of its name) never occupy every process.
    """
    assert len(header) <= MAX_HEADER_BYTES, "the header of a frame is small"
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a payload of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}; "
            "send fewer rows"
        )
    prefix = PREFIX.pack(VERSION, len(header), len(payload), time_limit_ms, share, workspace)
    return prefix + header + payload


def unpack_prefix(prefix: bytes) -> tuple[int, int, int]:
    """Return header bytes, payload bytes and time limit in ms; raises `ProtocolError`."""
    version, header_bytes, payload_bytes, time_limit_ms, _, _ = PREFIX.unpack(prefix)
    if version != VERSION:
        raise ProtocolError(
            f"frame version {version} is not {VERSION}: platform and executors must "
            "be of one release"
        )
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a frame of {header_bytes} + {payload_bytes} bytes exceeds the limit")
    return header_bytes, payload_bytes, time_limit_ms


def share_of(prefix: bytes) -> tuple[int, int]:
    """Return the share and the workspace that a valid prefix names."""
    *_, share, workspace = PREFIX.unpack(prefix)
    return share, workspace
