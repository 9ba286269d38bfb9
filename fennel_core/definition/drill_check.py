"""The definition server's look at drills that did not agree: in its log when they begin and end,
and in a gauge.
"""

from __future__ import annotations

from typing import Final

from fennel_core.connections.postgres import Pool
from fennel_core.definition.periodic import run_periodically
from fennel_core.snapshots import drills
from fennel_core.snapshots.drills import FailedDrill
from fennel_core.telemetry.logs import logger
from fennel_core.telemetry.metrics import gauge

log = logger(__name__)
FAILED: Final = gauge(
    "fennel_core_drills_failed",
    "Job partitions whose last drill did not agree: rebuilt, they would not be the same.",
)


class FailedDrillCheck:
    """Looks every `interval_s`."""

    def __init__(self, pool: Pool, interval_s: float) -> None:
        self._pool, self._interval_s = pool, interval_s
        self._known: list[FailedDrill] = []

    async def run(self) -> None:
        """For ever."""
        await run_periodically(self.once, "drills", self._interval_s)

    async def once(self) -> None:
        found = await drills.failed_drills(self._pool)
        before = {(each.job, each.part, each.at) for each in self._known}
        for each in found:
            if (each.job, each.part, each.at) not in before:
                log.error("drill failed", job=each.job, part=each.part, told=str(each))
        if self._known and not found:
            log.info("drills: no trouble any more")
        self._known = found
        FAILED.set(len(found))
