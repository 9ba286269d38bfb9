"""What the executors report of themselves to operators."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fennel_core.executors import protocol
from fennel_core.executors.internal_errors import PeerClosed, ProtocolError
from fennel_core.executors.responses import parse_header

ASK_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SandboxLayer:
    """One layer that confines user code; `detail` says what it is, or why it is missing."""

    name: str
    active: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """The layers that confine user code, and counts of workers and calls.

    `ended` counts ends of workers by reason (`fleet.EndReason`) since the start.
    """

    layers: tuple[SandboxLayer, ...]
    workers: int
    idle: int
    running: int
    waiting: int
    started: int
    ended: Mapping[str, int]


def parse_report(received: bytes) -> ExecutorReport:
    """Parse the header of a report; raises `ProtocolError`. The router wrote it, not user code."""
    header = parse_header(received)
    if header["op"] != "report":
        raise ProtocolError(str(header.get("message", "the executors sent no report")))
    values: dict[str, Any] = {name: header[name] for name in ExecutorReport.__slots__}
    return ExecutorReport(
        **values | {"layers": tuple(SandboxLayer(*each) for each in header["layers"])}
    )


def ask(path: Path) -> ExecutorReport:
    """Return the report of the executors on the socket `path`.

    Raises OSError, `PeerClosed` or `ProtocolError`.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ASK_WITHIN_S)
        sock.connect(str(path))
        sock.sendall(protocol.pack(b""))
        prefix = protocol.unpack_prefix(_receive(sock, protocol.PREFIX.size))
        return parse_report(_receive(sock, prefix.header_bytes))


def _receive(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(size - len(received))
        if not chunk:
            raise PeerClosed
        received += chunk
    return bytes(received)
