"""A commit as its client sees it: one call, one answer.

Theory. The server checks the request, stores it, hands its id to the orchestrator and waits for the
row. Success is told when reads have moved to the new version, because the client's next call
expects to see it; when that takes longer than the client is kept waiting, the answer says so, and
says the truth: after T2 the commit stands (200, reads follow), before T2 it is still under way
(504). Waiting polls the row, and now and then asks the orchestrator whether anybody is still at
work; a run that died without a word is taken back at once instead of at the end of its lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fennel_core.connections.errors import ConnectionsError
from fennel_core.definition.commit_request import CommitRequest, store_commit
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.errors import commit_error
from fennel_core.definition.orchestrator import CommitOrchestrator
from fennel_core.ledger import commit_protocol
from fennel_core.ledger.lifecycle import COMMITTED, UNDONE, CommitState
from fennel_core.ledger.store import Commit
from fennel_core.ledger.transitions import commit_row
from fennel_core.ledger.warming import is_blocked_by_parked_job
from fennel_core.telemetry.logs import bound, logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

log = logger(__name__)
POLL_SECONDS: Final = 0.05
ALIVE_EVERY: Final = 40
"""Polls between two questions to the orchestrator: two seconds."""
_BEFORE: Final = (CommitState.RECEIVED, CommitState.RESERVED, CommitState.CREATED)


@dataclass(frozen=True, slots=True)
class CommitService:
    """`now` in seconds; `timeout_seconds`: how long a client is kept waiting."""

    steps: CommitSteps
    orchestrator: CommitOrchestrator
    new_id: Callable[[], CommitId]
    now: Callable[[], float]
    timeout_seconds: float

    async def commit(self, request: CommitRequest) -> tuple[str, ...]:
        """Carry a commit out and answer its summary. ApiError with everything that is wrong, or
        with what became of it.
        """
        began = self.now()
        stored, definitions = await self.steps.validate(request)
        row = await store_commit(self.steps.context, request, self.new_id(), stored)
        standing = row.state in COMMITTED
        with bound(commit=row.id, workspace=request.workspace, branch=request.branch):
            if row.state in _BEFORE:
                self.steps.remember(row.id, definitions)
                row = await self._start(row)
            try:
                row = await self._wait(row)
            finally:
                self.steps.forget(row.id)
            log.info(
                "commit answered",
                state=str(row.state),
                code=row.error_code,
                seconds=round(self.now() - began, 3),
            )
        if standing:
            row = replace(
                row,
                summary=(
                    "nothing to do: the branch stands at these definitions since "
                    f"commit `{row.id}`",
                ),
            )
        return self._answer(row)

    async def _start(self, row: Commit) -> Commit:
        """Hand the commit over, unless a run of it is under way already."""
        if row.attempt and await self.orchestrator.alive(row.id, row.attempt):
            return row
        attempt = await self.steps.context.ledger.run(
            lambda tx: tx.next_attempt(row.id, row.attempt)
        )
        if attempt is None:
            return await self._read(
                row.id
            )  # the same commit was sent twice at once, and the other one started it
        try:
            await self.orchestrator.start(row.id, attempt)
        except ApiError as unavailable:
            await commit_protocol.reject_commit(self.steps.context, row.id, unavailable)
            raise
        return await self._read(row.id)

    async def _wait(self, row: Commit) -> Commit:
        """Until reads have moved or cannot, or the commit is undone, or the client has waited long
        enough.
        """
        deadline = self.now() + self.timeout_seconds
        polls = 0
        while (
            row.state in (*_BEFORE, CommitState.WARMING)
            and not is_blocked_by_parked_job(row)
            and self.now() < deadline
        ):
            await self.steps.context.sleep(POLL_SECONDS)
            polls += 1
            try:
                row = await self._read(row.id)
                if polls % ALIVE_EVERY == 0 and row.state in _BEFORE:
                    row = await self._look_after(row)
            except ConnectionsError:
                # the steps do not need us; ask again until the client has waited long enough
                continue
        return row

    async def _look_after(self, row: Commit) -> Commit:
        """While somebody is at it, keep recovery away: a run may wait long for a free worker. Take
        back what nobody carries on.
        """
        if await self.orchestrator.alive(row.id, row.attempt):
            await self.steps.context.ledger.run(
                lambda tx: tx.extend_lease(row.id, self.steps.context.timings.lease_ms)
            )
            return row
        row = await self._read(row.id)
        return await self.steps.undo(row.id) if row.state in _BEFORE else row

    async def _read(self, commit: CommitId) -> Commit:
        return await self.steps.context.ledger.run(lambda tx: commit_row(tx, commit))

    def _answer(self, row: Commit) -> tuple[str, ...]:
        if row.state in UNDONE:
            raise commit_error(
                row.error_code, row.error, f"commit `{row.id}` was taken back; nothing was changed"
            )
        if row.state in _BEFORE:
            raise ApiError(
                504,
                "commit-under-way",
                f"commit `{row.id}` is still under way ({row.state}) after "
                f"{self.timeout_seconds:g} s; send it again to go on waiting",
            )
        lines = row.summary
        if row.state is CommitState.WARMING:
            lines = (
                *lines,
                "! the new jobs have not caught up yet: the commit stands, reads "
                "stay on the version before until they have",
            )
        return lines
