"""Who runs the steps of a commit: Airflow, or this process. Both run the same functions
(`commit_steps.py`).

Theory. An orchestrator is told a commit's id and nothing more; the steps read the rest from the
commit's row and write their outcome there, so the server waits for the row and not for the
orchestrator. `start` may be called again for a commit that is already under way (a client that
repeats itself); `alive` says whether somebody is still at it, so that a run that died without a
word is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from fennel_core.telemetry.logs import bound, logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId

log = logger(__name__)
STEP_NAMES: Final = ("compile_commit", "create_assets", "switch", "destroy_assets")


class CommitOrchestrator(Protocol):
    async def start(self, commit: CommitId, attempt: int) -> None:
        """See that the steps of the commit run. ApiError `orchestrator-unavailable` when they
        certainly will not.
        """
        ...

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        """Is somebody still at it? True when that cannot be learnt now."""
        ...


class InlineOrchestrator:
    """Runs the steps as a task of this process."""

    def __init__(self, run: Callable[[CommitId], Awaitable[None]]) -> None:
        self._run = run
        self._tasks: dict[CommitId, asyncio.Task[None]] = {}

    async def start(self, commit: CommitId, attempt: int) -> None:
        if commit not in self._tasks:
            task = asyncio.create_task(
                self._steps(commit), name=f"commit {commit} attempt {attempt}"
            )
            self._tasks[commit] = task
            task.add_done_callback(lambda _: self._tasks.pop(commit, None))

    async def alive(self, commit: CommitId, attempt: int) -> bool:  # noqa: ARG002  # one task per commit, whichever attempt it is
        return commit in self._tasks

    async def _steps(self, commit: CommitId) -> None:
        with bound(commit=commit):
            try:
                await self._run(commit)
            except ApiError as refused:
                log.info("commit refused", code=refused.code)
            # a task's last line: the commit stays for recovery, the log has the reason
            except Exception as bug:
                log.error("commit failed", exc_info=bug)

    async def close(self) -> None:
        """Wait for what is under way to stop; recovery finishes it elsewhere."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
