"""What the steps of one task need, opened with the task and closed with it.

User code runs in executors of the task (`executors.task_sandbox`), which start with the first call:
most tasks have no user code. State that spills goes to a folder of the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import polars as pl
import pyarrow as pa

from fennel_core.connections import postgres
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.secrets import Sealer
from fennel_core.executors.calls import EachRowCall, ExtractCall
from fennel_core.executors.client import Callbacks
from fennel_core.executors.errors import CallFailed
from fennel_core.executors.launch import ExecutorLimits
from fennel_core.executors.results import failures_of, frame_of
from fennel_core.executors.task_sandbox import TaskSandbox
from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.code_lookups import CallLookups
from fennel_core.offline.lookup_groups import Erasures
from fennel_core.offline.scratch import ScratchStore, open_spill
from fennel_core.offline.task_folders import task_folder
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import WorkspaceId


class TaskTools(Protocol):
    """Opens tools in a task; it is pickled to the task."""

    def open(self, erasures: Erasures) -> AbstractContextManager[StepTools]:
        """Return the tools of a task."""
        ...


class TaskSecrets:
    """Reads secrets of a workspace for user code; each is read once per task, and audited."""

    def __init__(self, settings: Settings, workspace: WorkspaceId, version: str) -> None:
        self._settings, self._workspace, self._version = settings, workspace, version
        self._known: dict[str, str | None] = {}

    async def read(self, name: str) -> str | None:
        """Return the value, None if there is none; raises SystemUnavailable."""
        if name not in self._known:
            dsn = self._settings.postgres_dsn.get_secret_value()
            key_file = self._settings.secrets_key_file
            sealer = None if key_file is None else Sealer.from_file(key_file)
            async with postgres.pool(dsn, name="fennel-offline-secrets", size=1) as pool:
                found = await SecretUses(pool, sealer).read(self._workspace, self._version, name)
            self._known[name] = found
        return self._known[name]


class SandboxExtractors:
    """Runs extractors in executors of this task, which the first call starts in `stack`."""

    def __init__(self, limits: ExecutorLimits, callbacks: Callbacks, stack: ExitStack) -> None:
        self._limits, self._callbacks, self._stack = limits, callbacks, stack
        self._sandbox: TaskSandbox | None = None

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        """See `ExtractorRunner.run`; also raises what `TaskSandbox.start` raises."""
        callbacks = replace(self._callbacks, lookup=lookups)
        return frame_of(call, self._started().run(call, rows, callbacks=callbacks))

    def failing_rows(self, call: ExtractCall, rows: pa.Table) -> list[tuple[int, CallFailed]]:
        """See `ExtractorRunner.failing_rows`; also raises what `TaskSandbox.start` raises."""
        each = EachRowCall(call)
        failures = self._started().run(each, rows, callbacks=self._callbacks)
        return list(failures_of(each, failures))

    def _started(self) -> TaskSandbox:
        if self._sandbox is None:
            self._sandbox = self._stack.enter_context(TaskSandbox.start(self._limits))
        return self._sandbox


@dataclass(frozen=True, slots=True)
class PlatformTools:
    """Tools for the code of one version of a workspace; see `Callbacks.version`."""

    settings: Settings
    workspace: WorkspaceId
    version: str

    @contextmanager
    def open(self, erasures: Erasures) -> Iterator[StepTools]:
        """See `TaskTools.open`."""
        with ExitStack() as stack:
            folder = stack.enter_context(task_folder("offline"))
            secrets = TaskSecrets(self.settings, self.workspace, self.version)
            callbacks = Callbacks(
                secret=secrets.read, workspace=self.workspace, version=self.version
            )
            limits = ExecutorLimits.of(self.settings)

            def open_scratch() -> ScratchStore:
                store = ScratchStore(lambda: open_spill(folder))
                stack.callback(store.clear)
                return store

            yield StepTools(erasures, SandboxExtractors(limits, callbacks, stack), open_scratch)
