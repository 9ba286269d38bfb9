"""Report datasets whose lookups differ from a recompute: in the log, and as a gauge."""

from __future__ import annotations

from typing import Final

from fennel_core.connections.postgres import Pool
from fennel_core.definition.periodic import run_periodically
from fennel_core.integrity import findings
from fennel_core.integrity.findings import FailedIntegrityCheck
from fennel_core.telemetry.logs import logger
from fennel_core.telemetry.metrics import gauge

log = logger(__name__)
DIFFERING: Final = gauge(
    "fennel_core_integrity_differing",
    "Datasets whose lookups differed from a recompute from history when they were last checked.",
)


class IntegrityAlarm:
    """Reads the results of the last checks every `interval_s`."""

    def __init__(self, pool: Pool, interval_s: float) -> None:
        self._pool, self._interval_s = pool, interval_s
        self._known: list[FailedIntegrityCheck] = []

    async def run(self) -> None:
        """Run the check forever."""
        await run_periodically(self.check_once, "integrity", self._interval_s)

    async def check_once(self) -> None:
        """Log differences that were found since the last look and set the gauge."""
        failed = await findings.failed_checks(self._pool)
        known = {(each.job, each.at) for each in self._known}
        for each in failed:
            if (each.job, each.at) not in known:
                log.error(
                    "lookups differ from history",
                    workspace=each.workspace,
                    dataset=each.dataset,
                    job=each.job,
                    seed=each.seed,
                    reason=each.detail,
                )
        if self._known and not failed:
            log.info("lookups agree with history again")
        self._known = failed
        DIFFERING.set(len(failed))
