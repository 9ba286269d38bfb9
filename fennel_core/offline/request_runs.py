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
from pathlib import Path
from typing import Final, Protocol

from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.offline import request_row
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.request_row import OfflineRequest, RunSuperseded, requests_to_start
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import RequestStore
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
    """Starts runs of requests; a run has the id of its request and a number."""

    async def start(self, id_: str, number: int) -> None:
        """Start a run unless it exists. Raises `RunNotStarted` if it certainly will not begin."""
        ...

    async def alive(self, id_: str, number: int) -> bool:
        """Return False if the run does not exist or has ended, True if that is unknown."""
        ...


def run_name(id_: str, number: int) -> str:
    """Return the name of a run, in Airflow and in logs."""
    return f"offline-{id_}-{number}"


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

    async def start(self, id_: str, number: int) -> None:
        """See `RunStarter.start`."""
        reason = await self._airflow.trigger(DAG, run_name(id_, number), {"request_id": id_})
        if reason is not None:
            raise RunNotStarted(f"a run of offline query `{id_}` was not started: {reason}")

    async def alive(self, id_: str, number: int) -> bool:
        """See `RunStarter.alive`."""
        return await self._airflow.has_run(DAG, run_name(id_, number))


class InlineRuns:
    """Implement `RunStarter` with processes of this server, which end with it."""

    def __init__(self, settings: Settings) -> None:
        self._master, self._memory = settings.offline_master, settings.offline_memory
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, id_: str, number: int) -> None:
        """See `RunStarter.start`."""
        if await self.alive(id_, number):
            return
        for name in [name for name, process in self._running.items() if _has_ended(process)]:
            del self._running[name]
        options = ("--master", self._master, "--driver-memory", self._memory, *QUIET)
        submit = Path(sys.executable).parent / "spark-submit"
        paths = (str(job_file().parents[3]), os.environ.get("PYTHONPATH", ""))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            self._running[run_name(id_, number)] = await asyncio.create_subprocess_exec(
                str(submit), *options, str(job_file()), id_, env=env, start_new_session=True
            )
        except OSError as failed:
            raise RunNotStarted(f"{submit} cannot be run ({failed})") from failed

    async def alive(self, id_: str, number: int) -> bool:
        """See `RunStarter.alive`."""
        process = self._running.get(run_name(id_, number))
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


def _has_ended(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the process and those that it has started: the JVM, and workers of Python."""
    if not _has_ended(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


class OfflineRunLoop:
    """Starts due runs every `SEARCH_S`, and at once after `wake`."""

    def __init__(self, store: RequestStore, starter: RunStarter, at_once: int) -> None:
        self._store, self._starter, self._at_once = store, starter, at_once
        self._woken = asyncio.Event()

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
        """Start what is due now; what is refused is tried again later."""
        rows, now = await self._store.open_requests(), await self._store.now()
        for row in requests_to_start(rows, now, self._at_once):
            await self._start(row)

    async def _start(self, row: OfflineRequest) -> None:
        if row.starts and await self._starter.alive(row.id, row.starts):
            await self._store.change(row.id, request_row.still_starting)
            return
        try:
            started = await self._store.change(row.id, request_row.started)
        except RunSuperseded:
            return  # another server was faster
        if started is None or started.state is RequestState.FAILED:
            log.error("offline query failed: its runs were lost", request=row.id)
            return
        number = started.starts
        try:
            await self._starter.start(row.id, number)
        except RunNotStarted as refused:
            log.warning("offline query not started; retrying", request=row.id, reason=str(refused))
            await self._store.change(
                row.id, lambda found, now: request_row.start_refused(found, number, now)
            )
        else:
            log.info("offline query started", request=row.id, run=run_name(row.id, number))
