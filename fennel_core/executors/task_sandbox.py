"""Executors that belong to one task, for example a partition of a Spark job.

A task calls user code on many rows, on a machine that may have no service `executors`. It therefore
starts its own: the same router, template and confined workers, with the same check of code, limits
and validation of results. They listen on a socket in a private folder, get no variables of the task
but the allowed ones, and end with it: they hold one side of a socket pair whose other side only the
task has, so they end when the task closes it, exits or is killed.

    def preprocess(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with TaskSandbox.start(limits) as sandbox:
            for each in sandbox.run_batches(call, batches, callbacks=callbacks):
                yield from join(each.rows, each.result).to_batches()

    frame.mapInArrow(preprocess, schema)

`limits` are made by the driver (`ExecutorLimits.of`), hold no secrets, and name the interpreter of
the executor environment, which every machine of the cluster needs. To start takes as long as to
import the client's libraries (about two seconds), so give a task many rows. A task that raises is
retried by Spark, so do not swallow `CallFailed`. Use it from one thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from fennel_core.executors import launch, protocol
from fennel_core.executors.calls import CodeCall
from fennel_core.executors.client import NO_CALLBACKS, Callbacks, Executors
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.internal_errors import SandboxUnavailable
from fennel_core.executors.launch import ExecutorLimits

ROWS_PER_CALL: Final = 4096
"""Calls of a few thousand rows: the price of a call is then a small part of its work, and a result
of embeddings stays below the limit of a result.
"""
BYTES_PER_CALL: Final = 16 << 20
START_WITHIN_S: Final = 120.0
"""Importing the libraries takes seconds; on a machine whose tasks all start at once, longer."""
END_WITHIN_S: Final = 10.0
MESSAGE_BYTES: Final = 4096
PREFIX: Final = "fennel-task-"
RANDOM_CHARS: Final = 8
"""What `tempfile.mkdtemp` adds to it."""
SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket in Linux."""
FALLBACK: Final = "/tmp"  # noqa: S108  # a private folder is made in it


@dataclass(frozen=True, slots=True)
class CalledBatch:
    """Rows of one call and its result, in the layout of `Executors.run`."""

    rows: pa.Table
    result: pa.Table


class TaskSandbox:
    """Running executors of this task. Close it, or use it as a context manager."""

    def __init__(
        self, host: subprocess.Popen[bytes], owner: socket.socket, folder: Path, limits_ms: int
    ) -> None:
        self._host = host
        self._owner = owner
        self._folder = folder
        self._closed = False
        self.socket = _socket_in(folder)
        self._runner = asyncio.Runner()
        self._executors = Executors(self.socket, time_limit_ms=limits_ms)

    @classmethod
    def start(cls, limits: ExecutorLimits) -> TaskSandbox:
        """Start executors that run one call at a time.

        Raises `SandboxUnavailable` where this machine cannot confine user code, and
        `ExecutorUnavailable` if they do not start for another reason.
        """
        limits = replace(limits, processes=1)
        if not limits.python.exists():
            raise ExecutorUnavailable(
                f"no executor environment at {limits.python}; install it on this machine, or set "
                "FENNEL_EXECUTOR_PYTHON where the job is started",
                "executors",
            )
        folder = _private_folder()
        owner, owned = socket.socketpair()
        with owned:
            variables = launch.environment(limits, _socket_in(folder), os.environ)
            variables[protocol.OWNER_ENV] = str(owned.fileno())
            host = subprocess.Popen(  # noqa: S603  # a fixed list of arguments, and no shell
                launch.command(limits),
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(owned.fileno(),),
                # A signal to the group of the task would end them before they have cleaned up.
                process_group=0,
            )
        started = cls(host, owner, folder, limits.time_limit_ms)
        try:
            _await_ready(owner)
        except BaseException:
            started.close()
            raise
        return started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the executors and everything that they run; again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:  # Runs all, whatever fails, the last one first.
            closing.callback(self._end_host)
            closing.callback(self._runner.close)
            self._runner.run(self._executors.close())

    def _end_host(self) -> None:
        self._owner.close()
        try:
            self._host.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            # The kernel ends the template and the workers with it.
            self._host.kill()
            self._host.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self,
        call: CodeCall,
        rows: pa.Table | None,
        *,
        callbacks: Callbacks = NO_CALLBACKS,
        timeout_ms: int | None = None,
    ) -> pa.Table:
        """Return the result of one call on `rows`; see `Executors.run`, also for what is raised."""
        return self._runner.run(
            self._executors.run(call, rows, callbacks=callbacks, timeout_ms=timeout_ms)
        )

    def run_batches(
        self,
        call: CodeCall,
        batches: Iterable[pa.RecordBatch],
        *,
        callbacks: Callbacks = NO_CALLBACKS,
        timeout_ms: int | None = None,
    ) -> Iterator[CalledBatch]:
        """Yield the rows of `batches` in order, in tables of a few thousand, with their results.

        User code sees one table per call; `timeout_ms` bounds each call.
        """
        for rows in tables_of(batches):
            yield CalledBatch(
                rows, self.run(call, rows, callbacks=callbacks, timeout_ms=timeout_ms)
            )


def tables_of(
    batches: Iterable[pa.RecordBatch],
    most_rows: int = ROWS_PER_CALL,
    most_bytes: int = BYTES_PER_CALL,
) -> Iterator[pa.Table]:
    """Yield the rows of `batches` in order, in tables of `most_rows`, less for wide rows.

    Small batches are joined and large ones are cut; the last table is what is left. A single row
    may exceed `most_bytes`.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            # Bytes of a slice count its share of the buffers only.
            per_row = max(1, batch.nbytes // batch.num_rows)
            more = min(most_rows - rows, max(0, most_bytes - size) // per_row)
            if more == 0 and rows:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
                continue
            taken = batch.slice(start, max(1, more))
            waiting.append(taken)
            start += taken.num_rows
            rows += taken.num_rows
            size += per_row * taken.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _socket_in(folder: Path) -> Path:
    return folder / "executors.sock"


def _private_folder() -> Path:
    """Make a folder whose path is short enough for a socket in it, in /tmp if need be.

    Raises `ExecutorUnavailable`.
    """
    # The name that it has until it listens is no longer (`router.listen`).
    name = _socket_in(Path(tempfile.gettempdir(), PREFIX + "x" * RANDOM_CHARS))
    fits = len(os.fsencode(name)) <= SOCKET_PATH_BYTES
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=None if fits else FALLBACK))
    except OSError as refused:
        raise ExecutorUnavailable(
            f"no folder for the socket of executors could be made ({refused}); set TMPDIR to a "
            "folder with a short path that this task may write to",
            "executors",
        ) from refused


def _await_ready(owner: socket.socket) -> None:
    """Wait until the executors listen; raises `SandboxUnavailable` or `ExecutorUnavailable`."""
    owner.settimeout(START_WITHIN_S)
    try:
        message = owner.recv(MESSAGE_BYTES)
    except TimeoutError as late:
        raise ExecutorUnavailable(
            f"the executors of this task did not start within {START_WITHIN_S:g} s", "executors"
        ) from late
    if not message:
        raise ExecutorUnavailable(
            "the executors of this task ended while they started; their log is in the standard "
            "error of the task",
            "executors",
        )
    if message != protocol.READY:
        raise SandboxUnavailable(message.decode(errors="replace"))
