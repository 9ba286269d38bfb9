"""Serve one commit request: check it, store it, start its steps and wait for the outcome.

The service responds with success when reads have moved to the new version, because the client's
next call expects to see it. If that takes longer than a client waits, the response depends on the
commit point: after T2 the commit succeeded (200, reads move later), before T2 it is still running
(504). The service reads the commit's row when the database reports a change of it, and every few
seconds in case a report was lost. Every few seconds it also asks the orchestrator whether the steps
are still running: a run that ended without an outcome is undone then rather than at the end of the
commit's lease. After T2 the service warms the commit in its own process if the orchestrator takes
long to begin a step: then a client does not wait for one more task, which finds that reads have
moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fennel_core.connections.errors import ConnectionsError
from fennel_core.definition.commit_changes import CommitChanges, CommitWatch
from fennel_core.definition.commit_report import (
    CommitReport,
    committed_report,
    unchanged_report,
)
from fennel_core.definition.commit_request import CommitRequest, store_commit
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.errors import CommitStillRunning
from fennel_core.definition.orchestrator import CommitOrchestrator
from fennel_core.ledger.commit_failure import reject_commit
from fennel_core.ledger.lifecycle import COMMITTED, UNDONE, CommitState
from fennel_core.ledger.store import Commit
from fennel_core.ledger.transitions import commit_row, stored_error
from fennel_core.ledger.warming import is_blocked_by_parked_job
from fennel_core.telemetry.logs import bound, logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

log = logger(__name__)
POLL_SECONDS: Final = 2.0
"""Longest time between two reads of a commit's row; the report of a change may be lost."""
ALIVE_CHECK_SECONDS: Final = 5.0
"""Time between two `alive` requests to the orchestrator, so that many waiting clients do not keep
Airflow's API busy. It is shorter if leases are, because an answer extends the lease.
"""
ALIVE_CHECKS_PER_LEASE: Final = 3
_BEFORE_T2: Final = (CommitState.RECEIVED, CommitState.RESERVED, CommitState.CREATED)


@dataclass(frozen=True, slots=True)
class CommitService:
    """Serves commit requests.

    `now` returns seconds of a monotonic clock. `timeout_seconds`: how long a client waits.
    `warming` runs the step `warm` in this process; None: the orchestrator begins it at once.
    """

    steps: CommitSteps
    orchestrator: CommitOrchestrator
    new_id: Callable[[], CommitId]
    now: Callable[[], float]
    timeout_seconds: float
    changes: CommitChanges
    warming: CommitOrchestrator | None = None

    async def commit(self, request: CommitRequest) -> CommitReport:
        """Run a commit and return its report.

        Raises ApiError with all problems of the definitions, or with the error of a failed step.
        """
        began = self.now()
        valid = await self.steps.checker.check(request)
        checked = valid.definitions
        row = await store_commit(
            self.steps.context,
            request,
            self.new_id(),
            valid.body,
            valid.digest,
            checked.base,
            valid.connectors,
        )
        is_current = row.state in COMMITTED
        with bound(commit=row.id, workspace=request.workspace, branch=request.branch):
            try:
                with self.changes.watch(row.id) as watch:
                    if row.state in _BEFORE_T2:
                        if row.base == checked.base:
                            self.steps.remember(row.id, checked)
                        row = await self._start(row)
                    row = await self._wait(row, watch)
            finally:
                self.steps.forget(row.id)
            log.info(
                "commit finished",
                state=str(row.state),
                code=None if row.error is None else row.error.code,
                seconds=round(self.now() - began, 3),
            )
        return unchanged_report(row) if is_current else await self._report(row)

    async def _start(self, row: Commit) -> Commit:
        """Hand the commit to the orchestrator, unless a run of it is alive."""
        if row.attempt and await self.orchestrator.alive(row.id, row.attempt):
            return row
        attempt = await self.steps.context.ledger.run(
            lambda tx: tx.next_attempt(row.id, row.attempt)
        )
        if attempt is None:
            # The same commit was sent twice at once, and the other request started it.
            return await self._read(row.id)
        try:
            await self.orchestrator.start(row.id, attempt)
        except ApiError as error:
            # The orchestrator may have started the run although its response was lost.
            row = await reject_commit(self.steps.context, row.id, error)
            if row.state is CommitState.REJECTED:
                raise
            return row
        return await self._read(row.id)

    async def _wait(self, row: Commit, watch: CommitWatch) -> Commit:
        """Wait until reads have moved or cannot move, the commit failed, or the time is up."""
        now, lease_seconds = self.now(), self.steps.context.timings.lease_ms / 1000
        alive_check_seconds = min(ALIVE_CHECK_SECONDS, lease_seconds / ALIVE_CHECKS_PER_LEASE)
        deadline, next_alive_check = now + self.timeout_seconds, now + alive_check_seconds
        warms = False
        while (
            row.state in (*_BEFORE_T2, CommitState.WARMING)
            and not is_blocked_by_parked_job(row)
            and (now := self.now()) < deadline
        ):
            await watch.wait(min(POLL_SECONDS, deadline - now))
            try:
                row = await self._read(row.id)
                if row.state is CommitState.WARMING and self.warming is not None and not warms:
                    await self.warming.start(row.id, row.attempt)
                    warms = True
                if row.state in _BEFORE_T2 and self.now() >= next_alive_check:
                    next_alive_check = self.now() + alive_check_seconds
                    row = await self._check_alive(row)
            except ConnectionsError:
                # The steps run without this process; read again until the time is up.
                continue
        return row

    async def _check_alive(self, row: Commit) -> Commit:
        """Extend the lease of a commit whose run is alive; undo a commit whose run has ended.

        The lease keeps reconcile away from a run that waits long for a free Airflow worker.
        """
        context = self.steps.context
        if await self.orchestrator.alive(row.id, row.attempt):
            await context.ledger.run(lambda tx: tx.extend_lease(row.id, context.timings.lease_ms))
            return row
        row = await self._read(row.id)
        return await self.steps.undo(row.id) if row.state in _BEFORE_T2 else row

    async def _read(self, commit: CommitId) -> Commit:
        return await self.steps.context.ledger.run(lambda tx: commit_row(tx, commit))

    async def _report(self, row: Commit) -> CommitReport:
        if row.state in UNDONE:
            raise stored_error(row)
        if row.state in _BEFORE_T2:
            raise CommitStillRunning(row.id, row.state, self.timeout_seconds)
        plan = await self.steps.context.ledger.run(lambda tx: tx.plan(row.id))
        return committed_report(row, plan)
