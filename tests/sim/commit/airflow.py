"""A model of Airflow behind the production client of its REST API.

Runs wait for one of few workers. A task is a process of its own: if it dies, or if a system did not
respond, Airflow runs it again, up to three times; a permanent failure runs the task `undo`. A
commit whose branch is busy waits without a worker and is compiled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from functools import partial
from typing import Any, Final

import aiohttp

from fennel_core.connections.errors import ConnectionsError
from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import Commit
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId
from tests.sim.commit.processes import Crash, Fault, Process

WORKERS: Final = 2
ATTEMPTS: Final = 4
RETRY_SECONDS: Final = 3.0
DETECTION_SECONDS: Final = 10.0
"""How long it takes Airflow to notice that the process of a task died."""
TIME_OUT_SECONDS: Final = 1.0
BRANCH_POLL_SECONDS: Final = 3.0
Step = Callable[[CommitSteps, CommitId], Awaitable[Commit]]
TASKS_AFTER_COMPILE: Final[Mapping[str, Step]] = {
    "create_assets": CommitSteps.create_assets,
    "switch": CommitSteps.switch,
    "warm": CommitSteps.warm,
    "destroy_assets": CommitSteps.destroy_assets,
}


class ModelAirflow:
    """The scheduler and its workers."""

    def __init__(
        self,
        steps_in: Callable[[Process], CommitSteps],
        new_process: Callable[[str], Process],
        record: Callable[[str], None],
    ) -> None:
        self.states: dict[str, str] = {}
        self.loses_responses_until = 0.0
        self._steps_in, self._new_process, self._record = steps_in, new_process, record
        self._workers = asyncio.Semaphore(WORKERS)
        self._runs: set[asyncio.Task[None]] = set()

    def trigger(self, run: str, commit: CommitId) -> int:
        """Queue a run; 409 if it exists."""
        if run in self.states:
            return 409
        self.states[run] = "queued"
        # The scheduler is no part of the process that triggers.
        task = asyncio.get_running_loop().create_task(self._run(run, commit), context=Context())
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        return 200

    async def _run(self, run: str, commit: CommitId) -> None:
        compiled = await self._compile(run, commit)
        for name, step in TASKS_AFTER_COMPILE.items():
            if not compiled or not await self._task(f"{run}/{name}", step, commit):
                await self._task(f"{run}/undo", CommitSteps.undo, commit)
                self.states[run] = "failed"
                return
        self.states[run] = "success"

    async def _compile(self, run: str, commit: CommitId) -> bool:
        now = asyncio.get_running_loop().time
        began = now()
        while True:
            step = partial(CommitSteps.compile_commit, waited_seconds=now() - began)
            row = await self._task(f"{run}/compile", step, commit)
            if row is None or row.state is not CommitState.RECEIVED:
                return row is not None
            self._record(f"task {run}/compile waits for its branch")
            await asyncio.sleep(BRANCH_POLL_SECONDS)

    async def _task(self, name: str, step: Step, commit: CommitId) -> Commit | None:
        """Run a task until it succeeds; return None if it fails for good."""
        for _ in range(ATTEMPTS):
            async with self._workers:
                process = self._new_process(f"task {name}")
                task = process.spawn(step(self._steps_in(process), commit))
                await asyncio.wait([task])
                died, process.alive = not process.alive, False
            failure = Crash() if task.cancelled() else task.exception()
            if failure is None:
                return task.result()
            if isinstance(failure, ApiError):
                self._record(f"task {name} fails: {failure.code}")
                return None
            if not died and not isinstance(failure, ConnectionsError):
                raise failure
            await asyncio.sleep(DETECTION_SECONDS if died else RETRY_SECONDS)
        return None


class SimAirflowOrchestrator(AirflowOrchestrator):
    """The production client; only its HTTP call is replaced."""

    def __init__(self, airflow: ModelAirflow, process: Process) -> None:  # no session
        self._airflow, self._process = airflow, process

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        fault = await self._process.before(f"{method} of Airflow")
        if fault in (Fault.LOST_BEFORE, Fault.REFUSED):
            raise aiohttp.ClientConnectionError("refused")
        if method == "POST":
            assert body is not None
            status = self._airflow.trigger(body["dag_run_id"], body["conf"]["commit_id"])
            response: tuple[int, Any] = (status, {"detail": "exists"})
        else:
            state = self._airflow.states.get(path.rpartition("/")[2])
            response = (404, None) if state is None else (200, {"state": state})
        if asyncio.get_running_loop().time() < self._airflow.loses_responses_until:
            await asyncio.sleep(TIME_OUT_SECONDS)
            raise TimeoutError
        await self._process.after(fault, method, TimeoutError())
        return response
