"""Run the definition server's checks periodically."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fennel_core.telemetry.logs import logger

log = logger(__name__)


async def run_periodically(
    check: Callable[[], Awaitable[None]], name: str, interval_s: float
) -> None:
    """Run `check` forever, `interval_s` after the previous run ended; `name` is for the log."""
    while True:
        try:
            await check()
        # The supervisor's last line: one failed run must not end the loop.
        except Exception as error:
            log.error("periodic check failed", check=name, exc_info=error)
        await asyncio.sleep(interval_s)
