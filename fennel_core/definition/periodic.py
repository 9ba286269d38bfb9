"""Looks that the definition server takes again and again, for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fennel_core.telemetry.logs import logger

log = logger(__name__)


async def run_periodically(
    look: Callable[[], Awaitable[None]], what: str, interval_s: float
) -> None:
    """For ever, `interval_s` after the end of the last look; `what` is looked at, for the log of a
    look that failed.
    """
    while True:
        try:
            await look()
        # a supervisor's last line: the watch must outlive whatever it meets
        except Exception as failed:
            log.error(f"{what} could not be looked at", exc_info=failed)
        await asyncio.sleep(interval_s)
