"""Run reconcile passes as a task of the definition server.

A pass runs every few seconds, and at once after a request that released assets. The ledgers decide
what a pass does (`ledger/reconcile.py`), so any number of servers may run this loop. The search for
orphaned topics lists every topic of the cluster and is therefore rare, like the pruning of old
rows. An item that fails stops no other item. A pass that cannot read its items, for example because
the database is unavailable, is logged; the next pass does its work.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.reconcile import FailingItem, IsRunning, Reconciler, nothing_runs
from fennel_core.telemetry.logs import logger

ORPHAN_SEARCH_PASSES: Final = 60
"""Search for orphaned topics in one of this many passes."""
PRUNING_PASSES: Final = 900
"""Prune the ledgers in the last of this many passes."""
log = logger(__name__)


class ReconcileLoop:
    """Runs a pass every `interval_s`."""

    def __init__(
        self,
        context: LedgerContext,
        interval_s: float,
        is_running: IsRunning = nothing_runs,
        *,
        pruning_passes: int = PRUNING_PASSES,
    ) -> None:
        self._reconciler = Reconciler(context, is_running)
        self._interval_s = interval_s
        self._pruning_passes = pruning_passes
        self._woken = asyncio.Event()

    def failing(self) -> tuple[FailingItem, ...]:
        """Return the items whose last attempt failed."""
        return self._reconciler.failing()

    def wake(self) -> None:
        """Start the next pass now."""
        self._woken.set()

    async def run(self) -> None:
        """Run passes forever."""
        passes = 0
        while True:
            try:
                result = await self._reconciler.run_pass(
                    orphans=passes % ORPHAN_SEARCH_PASSES == 0,
                    pruning=passes % self._pruning_passes == self._pruning_passes - 1,
                )
                if result.commits or result.orphans:
                    log.info("reconciled", commits=result.commits, orphans=list(result.orphans))
            # The supervisor's last line: one failed pass must not end the loop.
            except Exception as error:
                log.error("reconcile failed", exc_info=error)
            passes += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._interval_s)
            self._woken.clear()
