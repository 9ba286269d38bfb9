"""The frames between the platform and an executor process, and the names both sides use in them.

User code needs the client's environment (its pandas, numpy and pyarrow pins), so it runs in other
processes and each call crosses a Unix socket. A frame is a fixed prefix (version, header length,
payload length, time limit, whose call it is), a JSON header and an Arrow IPC stream. One connection
carries one call at a time: a call frame, then any number of request and reply frames (user code
looks up a dataset or reads a secret; the worker requests the text of the code), then one response.
The host reads only the prefix; payloads go straight to the worker. A connection belongs to the
scope of its first call, and a call of another scope is refused on it: a process of user code can
keep a duplicate of a connection that it was given.

Both environments import this module, so it uses the standard library only. Every change of the
frame increments `VERSION`.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from fennel_core.executors.internal_errors import ProtocolError

VERSION: Final = 7
PREFIX: Final = struct.Struct(">BIIII16s16s")
"""The fields of `FramePrefix` after the version."""
DIGEST_BYTES: Final = 16
NO_CALL: Final = bytes(DIGEST_BYTES)
"""Workspace and scope of frames that are no calls."""
MAX_PAYLOAD_BYTES: Final = 1 << 30
MAX_HEADER_BYTES: Final = 64 << 20

ROW: Final = "__row"
"""Column of a result: the index of the input row of each output row. Column of a lookup's keys, if
its code kept them: the labels of the timestamps, which are numbers of input rows unless the code
gave its rows other labels.
"""
TS: Final = "__ts"
"""Column of timestamps: of an extractor's rows, or of a lookup's keys."""
FOUND: Final = "__found"
"""Column of a lookup's result: whether the key has a row."""
MARKS: Final = (ROW, TS, FOUND)
REASON, MESSAGE, TRACE = "reason", "message", "trace"
"""Columns of the failures of single rows, beside `ROW`."""

SOCKET_ENV: Final = "FENNEL_EXECUTORS_SOCKET"
PROCESSES_ENV: Final = "FENNEL_EXECUTOR_PROCESSES"
TIME_LIMIT_ENV: Final = "FENNEL_EXECUTOR_TIME_LIMIT_MS"
MEMORY_LIMIT_ENV: Final = "FENNEL_EXECUTOR_MEMORY_LIMIT_BYTES"
CALLS_ENV: Final = "FENNEL_EXECUTOR_CALLS_PER_PROCESS"
OWNER_ENV: Final = "FENNEL_EXECUTORS_OWNER"
"""The descriptor of a socket to the process that the executors end with (`task_sandbox`)."""
READY: Final = b"R"
"""What the executors send to their owner when they listen; any other message is why they do not."""

# Failure reasons in the header of a response.
RAISED: Final = "raised"  # user code raised
INVALID: Final = "invalid"  # user code returned something its declaration does not allow
IMPORT: Final = "import"  # the module of the code could not be executed
MEMORY: Final = "memory"
TIMEOUT: Final = "timeout"
CRASHED: Final = "crashed"
BUSY: Final = "busy"  # no worker became free in time
REFUSED: Final = "refused"  # the frame itself is not understood
ROW_REASONS: Final = (RAISED, INVALID)
"""Reasons that single rows fail for."""


class FramePrefix(NamedTuple):
    """What the host reads of a call.

    Calls of one `share` take turns with those of others, and the calls of one `workspace` never
    occupy every process. Calls of one `scope` may run in the same process. Both are digests of
    names (`digest`). A frame without header and payload asks the host for its report, and with a
    scope also to replace the processes of that scope.
    """

    header_bytes: int
    payload_bytes: int
    time_limit_ms: int
    share: int
    workspace: bytes
    scope: bytes


def digest(*names: str) -> bytes:
    """Return a digest of names, which no choice of names can make collide."""
    return hashlib.sha256("\0".join(names).encode()).digest()[:DIGEST_BYTES]


def pack(
    header: bytes,
    payload: bytes = b"",
    time_limit_ms: int = 0,
    share: int = 0,
    workspace: bytes = NO_CALL,
    scope: bytes = NO_CALL,
) -> bytes:
    """Encode one frame; raises `ProtocolError` for a payload that is too large."""
    assert len(header) <= MAX_HEADER_BYTES, "the header of a frame is small"
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a payload of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}; "
            "send fewer rows"
        )
    prefix = PREFIX.pack(VERSION, len(header), len(payload), time_limit_ms, share, workspace, scope)
    return prefix + header + payload


def unpack_prefix(prefix: bytes) -> FramePrefix:
    """Return the fields of a prefix; raises `ProtocolError`."""
    version, *fields = PREFIX.unpack(prefix)
    if version != VERSION:
        raise ProtocolError(
            f"frame version {version} is not {VERSION}: platform and executors must "
            "be of one release"
        )
    read = FramePrefix(*fields)
    if read.header_bytes > MAX_HEADER_BYTES or read.payload_bytes > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a frame of {read.header_bytes} + {read.payload_bytes} bytes exceeds the limit"
        )
    return read
