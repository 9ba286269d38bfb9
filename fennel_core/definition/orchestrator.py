"""The `CommitOrchestrator` protocol, and the implementation that runs steps in this process.

`airflow.py` has the other implementation. Both run the same steps (`commit_steps.py`). An
orchestrator receives the id of a commit and nothing else: the steps read the rest from the commit's
row and store their outcome there, so the server waits for the row and not for the orchestrator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from fennel_core.ledger.reconcile import IsRunning
from fennel_core.ledger.store import Commit
from fennel_core.telemetry.logs import bound, logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

log = logger(__name__)


class CommitOrchestrator(Protocol):
    """Runs the steps of commits."""

    async def start(self, commit: CommitId, attempt: int) -> None:
        """Start the steps of the commit, unless they run already.

        Raises OrchestratorUnavailable if they certainly will not run.
        """
        ...

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        """Return whether the steps are running or queued; True if that is unknown.

        It detects a run that ended without storing an outcome.
        """
        ...


def run_check(orchestrator: CommitOrchestrator) -> IsRunning:
    """Return the question of reconcile whether a commit has a run, for this orchestrator."""

    async def is_running(row: Commit) -> bool:
        return await orchestrator.alive(row.id, row.attempt)

    return is_running


class InlineOrchestrator:
    """Runs the steps as a task of this process."""

    def __init__(self, run: Callable[[CommitId], Awaitable[object]]) -> None:
        self._run = run
        self._tasks: dict[CommitId, asyncio.Task[None]] = {}

    async def start(self, commit: CommitId, attempt: int) -> None:
        """Start a task for the commit unless it has one."""
        if commit not in self._tasks:
            task = asyncio.create_task(
                self._run_logged(commit), name=f"commit {commit} attempt {attempt}"
            )
            self._tasks[commit] = task
            task.add_done_callback(lambda _: self._tasks.pop(commit, None))

    async def alive(self, commit: CommitId, attempt: int) -> bool:  # noqa: ARG002  # a commit has one task, whatever the attempt
        """Return whether the commit has a task."""
        return commit in self._tasks

    async def _run_logged(self, commit: CommitId) -> None:
        with bound(commit=commit):
            try:
                await self._run(commit)
            except ApiError as error:
                log.info("commit failed", code=error.code)
            # The supervisor's last line: the log has the reason, reconcile finishes the commit.
            except Exception as bug:
                log.error("commit crashed", exc_info=bug)

    async def close(self) -> None:
        """Cancel running steps; reconcile finishes their commits in another process."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
