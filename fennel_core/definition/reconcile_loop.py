"""Recovery as a task of the server: every few seconds, and at once when something was let go of.

Theory. Everything it does is decided by the ledgers (`ledger.reconcile`), so any number of servers
may run it. Looking for strays lists every topic of the cluster, so it is done rarely. An error of
one round (a database that is away) is logged and met again in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.reconcile import reconcile
from fennel_core.telemetry.logs import logger

STRAYS_EVERY: Final = 60
"""Rounds between two searches for strays."""
log = logger(__name__)


class ReconcileLoop:
    """`interval_s` between rounds."""

    def __init__(self, context: LedgerContext, interval_s: float) -> None:
        self._tools = context
        self._interval_s = interval_s
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Do not wait for the interval."""
        self._woken.set()

    async def run(self) -> None:
        """For ever."""
        rounds = 0
        while True:
            try:
                done = await reconcile(self._tools, orphans=rounds % STRAYS_EVERY == 0)
                if done.commits or done.orphans:
                    log.info("recovered", commits=list(done.commits), orphans=list(done.orphans))
            # a supervisor's last line: recovery must outlive whatever it meets
            except Exception as error:
                log.error("recovery failed", exc_info=error)
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._interval_s)
            self._woken.clear()
