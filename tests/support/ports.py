"""Free TCP ports for servers that tests start.

They are below the range from which Linux takes the local ports of connections (32768 and up): a
port of that range can be taken by any program before the server that it was chosen for listens.
"""

from __future__ import annotations

import secrets
import socket
from typing import Final

LOWEST: Final = 10_000
HIGHEST: Final = 32_000
APART: Final = 30
"""Services derive further ports from their own, at most this far away."""


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, `APART` from each other."""
    width = APART * count
    while True:
        start = LOWEST + secrets.randbelow(HIGHEST - LOWEST - width)
        if all(_is_free(port) for port in range(start, start + width)):
            return list(range(start, start + width, APART))


def free_port() -> int:
    """Return a port that is free now."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
