"""The two processes that the benchmarks of queries measure: a slot and a query server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running(slot: Any, server: Any, folder: Path) -> Iterator[None]:
    """Run the processes of a slot and of a query server; the slot is filled before."""
    try:
        slot.start()
        while not (folder / "slot.ready").exists():
            time.sleep(0.1)
        server.start()
        yield
    finally:
        slot.kill()
        if server.pid is not None:
            server.kill()
