"""Report failed drills: in the log when they begin and end, and as a gauge."""

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
    "Job partitions whose last drill failed: a rebuilt state would differ from the live one.",
)


class FailedDrillCheck:
    """Reads the results of the last drills every `interval_s`."""

    def __init__(self, pool: Pool, interval_s: float) -> None:
        self._pool, self._interval_s = pool, interval_s
        self._known: list[FailedDrill] = []

    async def run(self) -> None:
        """Run the check forever."""
        await run_periodically(self.check_once, "drills", self._interval_s)

    async def check_once(self) -> None:
        """Log drills that failed since the last check and set the gauge."""
        failed = await drills.failed_drills(self._pool)
        known = {(each.job, each.part, each.at) for each in self._known}
        for each in failed:
            if (each.job, each.part, each.at) not in known:
                log.error("drill failed", job=each.job, part=each.part, reason=str(each))
        if self._known and not failed:
            log.info("drills succeed again")
        self._known = failed
        FAILED.set(len(failed))
