"""Start the runs of requests for training data, oldest first, some of each workspace at a time.

The loop decides from the rows (`request_row.requests_to_start`), so it may run in several servers
and be restarted at any moment: a run that was started twice claims its request twice, and the later
claim fences the earlier one. A run whose lease has ended is asked for before another is started.

A run is the program `apps/spark_jobs/offline_query.py` under `spark-submit`: in the DAG
`offline_query` of Airflow, or as a process of this server without Airflow.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.offline import request_row
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_row import (
    OfflineRequest,
    RunLimits,
    RunSuperseded,
    requests_to_start,
)
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import RequestStore
from fennel_core.offline.run_watch import RunWatch, family_of
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger

DAG: Final = "offline_query"
QUIET: Final = ("--conf", "spark.log.level=WARN")
SEARCH_S: Final = 2.0
STOP_S: Final = 10.0
"""How long a process may take to stop before it is killed."""
log = logger(__name__)


class RunNotStarted(OfflineError):
    """The orchestrator did not accept a run, which certainly will not begin."""

    code = "offline-run-not-started"


class RunStarter(Protocol):
    """Starts runs of requests, by name (`request_row.run_name`)."""

    async def start(self, id_: str, name: str) -> None:
        """Start a run unless it exists. Raises `RunNotStarted` if it certainly will not begin."""
        ...

    async def alive(self, name: str) -> bool:
        """Return False if the run does not exist or has ended, True if that is unknown."""
        ...


def job_file() -> Path:
    """Return the program that `spark-submit` runs."""
    found = importlib.util.find_spec("fennel_core")
    assert found is not None, "this module is part of the package"
    assert found.origin is not None, "the package has a file"
    return Path(found.origin).parent / "apps" / "spark_jobs" / "offline_query.py"


class AirflowRuns:
    """Implement `RunStarter` with runs of the DAG `offline_query`."""

    def __init__(self, airflow: AirflowOrchestrator) -> None:
        self._airflow = airflow

    async def start(self, id_: str, name: str) -> None:
        """See `RunStarter.start`."""
        reason = await self._airflow.trigger(DAG, name, {"request_id": id_})
        if reason is not None:
            raise RunNotStarted(f"a run of offline query `{id_}` was not started: {reason}")

    async def alive(self, name: str) -> bool:
        """See `RunStarter.alive`."""
        return await self._airflow.has_run(DAG, name)


class InlineRuns:
    """Implement `RunStarter` with processes of this server, which end with it.

    Each has a Spark driver, so there are `offline_inline_at_once` at most, with those that were
    cancelled and have not ended yet.
    """

    def __init__(self, settings: Settings, store: RequestStore) -> None:
        self._master, self._memory = settings.offline_master, settings.offline_memory
        self._most = settings.offline_inline_at_once
        self._store = store
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watches: set[asyncio.Task[None]] = set()

    async def start(self, id_: str, name: str) -> None:
        """See `RunStarter.start`."""
        for ended in [name for name, process in self._running.items() if _has_ended(process)]:
            del self._running[ended]
        if name in self._running:
            return
        if len(self._running) >= self._most:
            raise RunNotStarted(
                f"{self._most} runs have not ended (FENNEL_OFFLINE_INLINE_AT_ONCE); wait for one"
            )
        options = ("--master", self._master, "--driver-memory", self._memory, *QUIET)
        submit = Path(sys.executable).parent / "spark-submit"
        paths = (str(job_file().parents[3]), os.environ.get("PYTHONPATH", ""))
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # `spark-submit` looks for Spark with it; the PATH may lead to another Python.
            "PYSPARK_PYTHON": sys.executable,
        }
        try:
            self._running[name] = await asyncio.create_subprocess_exec(
                str(submit), *options, str(job_file()), id_, env=env, start_new_session=True
            )
        except OSError as failed:
            raise RunNotStarted(f"{submit} cannot be run ({failed})") from failed
        watch = asyncio.create_task(self._watched(id_, self._running[name]))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watched(self, id_: str, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.Event()
        watch = RunWatch(self._store, id_, partial(family_of, process.pid)).run(ended)
        async with asyncio.TaskGroup() as both:
            both.create_task(watch)
            await process.wait()
            ended.set()

    async def alive(self, name: str) -> bool:
        """See `RunStarter.alive`."""
        process = self._running.get(name)
        return process is not None and not _has_ended(process)

    async def close(self) -> None:
        """Stop running processes; another server starts their requests again."""
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        for process in self._running.values():
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                _signal(process, signal.SIGKILL)
        await asyncio.gather(*self._watches)


def _has_ended(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the process and those that it has started: the JVM, and workers of Python."""
    if not _has_ended(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


class OfflineRunLoop:
    """Starts due runs every `SEARCH_S`, and at once after `wake`."""

    def __init__(self, store: RequestStore, starter: RunStarter, limits: RunLimits) -> None:
        self._store, self._starter, self._limits = store, starter, limits
        self._woken = asyncio.Event()
        # What was refused, until that is stored: Postgres may be away from both. Else the request
        # would wait for the lease of a run that has begun.
        self._refused: dict[str, OfflineRequest] = {}

    def wake(self) -> None:
        """Look for requests now."""
        self._woken.set()

    async def run(self) -> None:
        """Run without end."""
        while True:
            try:
                await self.start_due()
            # The supervisor's last line: one failed search must not end the loop.
            except Exception as failed:
                log.error("offline queries not started; retrying", exc_info=failed)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), SEARCH_S)
            self._woken.clear()

    async def start_due(self) -> None:
        """Start what is due now; what is refused is tried again later. Raises SystemUnavailable."""
        await self._store_refusals()
        rows, now = await self._store.open_requests(), await self._store.now()
        for row in requests_to_start(rows, now, self._limits):
            await self._start(row)

    async def _start(self, row: OfflineRequest) -> None:
        if row.newest_run is not None and await self._starter.alive(row.newest_run):
            await self._store.change(row.id, request_row.still_starting)
            return
        try:
            started = await self._store.change(row.id, request_row.started)
        except RunSuperseded:
            return  # another server was faster
        name = None if started is None else started.newest_run
        if started is None or name is None or started.state is RequestState.FAILED:
            log.error("offline query failed: its runs were lost", request=row.id)
            return
        try:
            await self._starter.start(row.id, name)
        except RunNotStarted as refused:
            log.warning("offline query not started; retrying", request=row.id, reason=str(refused))
            self._refused[row.id] = started
            await self._store_refusals()
        else:
            log.info("offline query started", request=row.id, run=name)

    async def _store_refusals(self) -> None:
        for asked in list(self._refused.values()):
            await self._store_refusal(asked)
            del self._refused[asked.id]

    async def _store_refusal(self, asked: OfflineRequest) -> None:
        await self._store.change(
            asked.id, lambda found, now: request_row.start_refused(found, asked, now)
        )
