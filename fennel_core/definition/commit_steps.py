"""The steps of a commit, as functions of its id.

    compile_commit → create_assets → switch → warm → destroy_assets     undo, after a failed step

Airflow's tasks and the inline orchestrator run the same steps. Each step reads the commit's row,
does what is left to do, and stores its outcome there, so it may be run again, by another process,
at any time. A step that fails leaves the commit rejected or undoing, with the error in its row, and
raises the same error so that the orchestrator shows where the commit stopped. `undo` then removes
what was created.

While a step runs, the commit's lease is renewed beside it (`ledger/lease.py`). The functions at the
end of this module are for callers without an event loop; they read the settings from the
environment.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, assert_never

from fennel_core.connections import postgres
from fennel_core.connections.audit_events import Action, audited_command
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.kafka import LATE_REQUEST_TRANSACTIONS
from fennel_core.connections.postgres import Pool
from fennel_core.connections.secrets import Sealer
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.connectors.store import ConnectorStore
from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.definition.commit_checker import CommitChecker
from fennel_core.definition.commit_report import CommitReport
from fennel_core.definition.commit_request import CommitRequest, store_commit
from fennel_core.definition.orchestrator import run_check
from fennel_core.definition.validation import CheckedDefinitions, compile_definitions
from fennel_core.definition.window_specs import RunProgram, client_program_runner
from fennel_core.ledger import planning
from fennel_core.ledger.commit_failure import fail_commit, reject_commit
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.creation import create_assets
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import BranchOccupied, CommitStepFailed, CommitUndone
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.lease import keep_lease
from fennel_core.ledger.lifecycle import COMMITTED, UNDONE, CommitState
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.reconcile import Reconciler, ReconcileResult, reconcile
from fennel_core.ledger.reservation import (
    BranchBusy,
    BranchMoved,
    ContentsMoved,
    branch_occupant,
    reserve,
)
from fennel_core.ledger.store import Commit, CommitOptions, LedgerTransaction
from fennel_core.ledger.switching import switch
from fennel_core.ledger.transitions import commit_row, stored_error
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.settings.model import Orchestrator, Settings
from fennel_core.telemetry.logs import logger, redact_text
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, CommitId, Millis, WorkspaceId

log = logger(__name__)
T = TypeVar("T")
DESTROY_SECONDS: Final = 30.0
"""How long a commit waits for the destruction of superseded assets (an engine stops a job within a
lease); reconcile finishes it after that.
"""
DESTROY_POLL_SECONDS: Final = 0.2
JOBS_START_SECONDS: Final = 3.0
"""How long a commit waits for jobs that its reads do not require: the rows that a client logs next
are then visible at once. They start in less than a second, on a busy machine in two.
"""
FAILURE_CHARS: Final = 500
"""Longest message of an unexpected failure that is stored in a commit's row."""


class CommitSteps:
    """The steps over a given context.

    `new_workspace_partitions`: of the topics and jobs of a workspace that has its first commit;
    every later commit uses the count of the workspace. `warm_seconds`: how long to wait for new
    jobs. `run_program` runs user code in the client's environment. `sealer` None: commits with
    plain secrets are refused. `settings` None: so are sources of files on S3.
    """

    def __init__(
        self,
        context: LedgerContext,
        run_program: RunProgram,
        *,
        new_workspace_partitions: int,
        warm_seconds: float,
        sealer: Sealer | None = None,
        settings: Settings | None = None,
        connectors: ConnectorStore | None = None,
    ) -> None:
        self.context = context
        self.checker = CommitChecker(context, run_program, sealer, settings, connectors)
        self._new_workspace_partitions = new_workspace_partitions
        self._warm_seconds = warm_seconds
        self._checked: dict[CommitId, CheckedDefinitions] = {}

    async def preview(self, request: CommitRequest) -> CommitReport:
        """Return the plan of a commit without changing anything."""
        checked = (await self.checker.check(request)).definitions
        known = await self.context.ledger.run(lambda tx: tx.partition_count(request.workspace))
        partitions = known or self._new_workspace_partitions
        definitions = checked.definitions
        compiled = await asyncio.to_thread(compile_definitions, definitions, partitions)
        contents = await planning.draft_contents(
            self.context, request.workspace, request.branch, compiled
        )
        if contents != compiled.source_contents:
            compiled = await asyncio.to_thread(
                compile_definitions, definitions, partitions, contents
            )
        plan = await planning.preview(
            self.context,
            request.workspace,
            request.branch,
            compiled,
            backfill=request.options.backfill,
            allow_data_loss=request.options.allow_data_loss,
            notices=checked.definitions.notices,
        )
        return CommitReport(plan)

    async def plan_lines(self, commit: CommitId) -> tuple[str, ...]:
        """Return the plan of a stored commit as lines, none before T1."""
        return CommitReport(await self.context.ledger.run(lambda tx: tx.plan(commit))).lines

    def remember(self, commit: CommitId, checked: CheckedDefinitions) -> None:
        """Keep checked definitions so that `compile_commit` need not check them again."""
        self._checked[commit] = checked

    def forget(self, commit: CommitId) -> None:
        """Drop remembered definitions; another process may have compiled the commit."""
        self._checked.pop(commit, None)

    async def compile_commit(self, commit: CommitId, waited_seconds: float | None = None) -> Commit:
        """Validate, compile and plan the definitions and run T1.

        While another commit of the branch is between T1 and T2, wait if `waited_seconds` is None.
        Otherwise return the row, which is still `received`: the caller waits without this process
        and calls again with the time that it has waited. Raises ApiError with all problems; the
        commit is then rejected.
        """
        async with self._step("compile", commit):
            row, body = await self.context.ledger.run(lambda tx: _stored_request(tx, commit))
            if row.state in UNDONE:
                raise stored_error(row)
            if row.state is not CommitState.RECEIVED:
                return row
            try:
                if waited_seconds is not None:
                    # Before validation, which takes seconds and would be repeated at every call.
                    other = await self.context.ledger.run(lambda tx: branch_occupant(tx, row))
                    if other is not None:
                        self._require_patience(row, other, waited_seconds)
                        return row
                checked = self._checked.pop(commit, None)
                if checked is None:
                    checked = await self.checker.check_stored(row, body)
                return await self._reserve(row, body, checked, waited_seconds)
            except ApiError as error:
                await reject_commit(self.context, commit, error)
                raise

    async def _reserve(
        self, row: Commit, body: bytes, checked: CheckedDefinitions, waited_seconds: float | None
    ) -> Commit:
        """Run T1; wait for other commits of the branch, and rebase onto what they changed.

        Raises ApiError with all problems, CommitConflict or BranchOccupied.
        """
        timings, began = self.context.timings, self.context.now()
        partitions = await self.context.ledger.run(
            lambda tx: tx.fix_partition_count(row.workspace, self._new_workspace_partitions)
        )
        compiled = await asyncio.to_thread(compile_definitions, checked.definitions, partitions)
        while True:
            outcome = await reserve(
                self.context,
                row.id,
                compiled,
                checked.definitions.body,
                base=checked.base,
                notices=checked.definitions.notices,
            )
            match outcome:
                case Commit():
                    return outcome
                case BranchMoved(target):
                    checked = await self.checker.rebase(row, body, target)
                    compiled = await asyncio.to_thread(
                        compile_definitions, checked.definitions, partitions
                    )
                case ContentsMoved(contents):
                    compiled = await asyncio.to_thread(
                        compile_definitions, checked.definitions, partitions, contents
                    )
                case BranchBusy(other):
                    waited = self.context.now() - began + (waited_seconds or 0.0)
                    self._require_patience(row, other, waited)
                    if waited_seconds is not None:
                        return row
                    await self.context.sleep(timings.branch_poll_seconds)
                case unreachable:
                    assert_never(unreachable)

    def _require_patience(self, row: Commit, other: CommitId, waited_seconds: float) -> None:
        """Raise BranchOccupied if the commit has waited too long for another one."""
        limit = self.context.timings.branch_wait_seconds
        if waited_seconds >= limit:
            raise BranchOccupied(row.branch, other, limit)

    async def create_assets(self, commit: CommitId) -> Commit:
        """Create the topics of the commit. Raises ApiError; the commit is then undoing."""
        async with self._step("create", commit):
            return await create_assets(self.context, commit)

    async def switch(self, commit: CommitId) -> Commit:
        """Run T2, the commit point. Raises ApiError; the commit is then undoing."""
        async with self._step("switch", commit):
            return await switch(self.context, commit)

    async def warm(self, commit: CommitId, seconds: float | None = None) -> Commit:
        """Wait for the new jobs, within a limit, and move reads; do nothing if they have moved.

        A commit that needs longer is left to reconcile: its lease ends with the wait.
        """
        limit = self._warm_seconds if seconds is None else seconds
        async with keep_lease(self.context, commit):
            await wait_and_serve(self.context, commit, seconds=limit)
        row = await self.context.ledger.run(lambda tx: commit_row(tx, commit))
        if row.state is CommitState.WARMING:
            await self.context.ledger.run(lambda tx: tx.extend_lease(commit, Millis(0)))
        return row

    async def destroy_assets(self, commit: CommitId) -> Commit:
        """Destroy the superseded assets, within a limit; nothing before reads have moved."""
        async with keep_lease(self.context, commit):
            return await self._destroy(commit)

    async def undo(self, commit: CommitId, error: ApiError | None = None) -> Commit:
        """Fail a commit before T2 and destroy what it created; do nothing after T2.

        `error` is stored in the commit unless it has one already.
        """
        async with keep_lease(self.context, commit):
            row = await fail_commit(self.context, commit, error or CommitUndone(commit))
            return row if row.state in COMMITTED else await self._destroy(commit)

    async def run(self, commit: CommitId) -> None:
        """Run all steps in order, and undo if one fails."""
        try:
            await self.compile_commit(commit)
            await self.create_assets(commit)
            await self.switch(commit)
        except ApiError:
            await self.undo(commit)
            raise
        except ConnectionsError as lost:
            # T2 may have been committed although its response was lost: then nothing is undone.
            row = await self.undo(commit, _step_failure(commit, "run", lost))
            if row.state not in COMMITTED:
                raise
        await self.warm(commit)
        await self.destroy_assets(commit)

    @asynccontextmanager
    async def _step(self, name: str, commit: CommitId) -> AsyncIterator[None]:
        """Keep the commit's lease during a step before T2, and store why it failed unexpectedly.

        A lost connection is not stored: the step is run again, by Airflow, or undone by reconcile.
        """
        async with keep_lease(self.context, commit):
            try:
                yield
            except (ApiError, ConnectionsError):
                raise
            # The outermost place that knows the commit: its row must say what happened.
            except Exception as bug:
                log.error("commit step crashed", commit=commit, step=name, exc_info=bug)
                error = _step_failure(commit, name, bug)
                await fail_commit(self.context, commit, error)
                raise error from bug

    async def _destroy(self, commit: CommitId) -> Commit:
        began = self.context.now()
        row = await self.context.ledger.run(lambda tx: commit_row(tx, commit))
        while row.state in (CommitState.SERVING, CommitState.UNDOING):
            await destroy_condemned(self.context, row.workspace)
            row = await self.context.ledger.run(lambda tx: commit_row(tx, commit))
            if (
                row.state not in (CommitState.SERVING, CommitState.UNDOING)
                or self.context.now() - began >= DESTROY_SECONDS
            ):
                break
            await self.context.sleep(DESTROY_POLL_SECONDS)
        return row


def _step_failure(commit: CommitId, step: str, failure: Exception) -> CommitStepFailed:
    """Return the failure as the error of the commit, without secrets."""
    text = redact_text(str(failure)).strip()[:FAILURE_CHARS] or "no message"
    return CommitStepFailed(commit, step, failure, text)


async def _stored_request(tx: LedgerTransaction, commit: CommitId) -> tuple[Commit, bytes]:
    """Return a commit, and its request if it was not compiled yet."""
    row = await commit_row(tx, commit)
    # A settled commit may be pruned, and its task may run again.
    return row, await tx.request(commit) if row.state is CommitState.RECEIVED else b""


def build_commit_steps(pool: Pool, settings: Settings) -> CommitSteps:
    """Return the steps over Postgres and Kafka."""
    timings = LedgerTimings(
        lease_ms=Millis(settings.commit_lease_ms),
        orphan_grace_ms=Millis(settings.orphan_grace_ms),
        commit_history_ms=Millis(settings.commit_history_s * 1000),
        first_warm_seconds=JOBS_START_SECONDS,
        late_request_ms=Millis(LATE_REQUEST_TRANSACTIONS * settings.transaction_timeout_ms),
    )
    context = LedgerContext(
        PostgresLedger(pool, Millis(settings.destroy_grace_ms)),
        KafkaTopicAdmin(settings),
        asyncio.sleep,
        timings,
        history_retention=settings.history_retention,
    )
    key_file = settings.secrets_key_file
    return CommitSteps(
        context,
        client_program_runner(settings),
        new_workspace_partitions=settings.partitions,
        warm_seconds=settings.warm_timeout_s,
        sealer=None if key_file is None else Sealer.from_file(key_file),
        settings=settings,
        connectors=PostgresConnectorStore(pool),
    )


# --- for callers without an event loop ------------------------------------------------------------


@asynccontextmanager
async def open_commit_steps(settings: Settings) -> AsyncIterator[CommitSteps]:
    """Open steps with their own connections."""
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="fennel-steps", size=2
    ) as pool:
        yield build_commit_steps(pool, settings)


def _run(work: Callable[[CommitSteps], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_commit_steps(Settings()) as steps:
            return await work(steps)

    return asyncio.run(main())


def submit_commit(
    workspace: str, branch: str, body: bytes, options: CommitOptions, actor: str
) -> str:
    """Validate and store a commit that did not come through the server; return its id.

    Raises ApiError with all problems.
    """
    request = CommitRequest(WorkspaceId(workspace), BranchName(branch), body, options)

    async def submit(steps: CommitSteps) -> str:
        await _open_dev_workspace(steps, request.workspace)
        valid = await steps.checker.check(request)
        new_id = CommitId(uuid.uuid4().hex)
        row = await store_commit(
            steps.context,
            request,
            new_id,
            valid.body,
            valid.digest,
            valid.definitions.base,
            valid.connectors,
        )
        return row.id

    dsn = Settings().postgres_dsn.get_secret_value()
    with audited_command(dsn, actor, Action.COMMIT, f"branch {branch}", request.workspace):
        return _run(submit)


def preview_commit(
    workspace: str, branch: str, body: bytes, options: CommitOptions
) -> tuple[str, ...]:
    """Return the plan of a commit as lines, without changing anything."""
    request = CommitRequest(WorkspaceId(workspace), BranchName(branch), body, options)

    async def preview(steps: CommitSteps) -> tuple[str, ...]:
        await _open_dev_workspace(steps, request.workspace)
        return (await steps.preview(request)).lines

    return _run(preview)


def workspace_of(commit_id: str) -> str:
    """Return the workspace of a stored commit; raises CommitNotFound."""

    async def find(steps: CommitSteps) -> str:
        row = await steps.context.ledger.run(lambda tx: commit_row(tx, CommitId(commit_id)))
        return row.workspace

    return _run(find)


async def _open_dev_workspace(steps: CommitSteps, workspace: WorkspaceId) -> None:
    """Create the workspace in development mode, as the token `dev-<name>` would."""
    if Settings().dev_tokens:
        await steps.context.ledger.run(lambda tx: tx.add_workspace(workspace))


def reconcile_all() -> ReconcileResult:
    """Run one reconcile pass, including the search for orphaned topics."""

    async def one_pass(steps: CommitSteps) -> ReconcileResult:
        settings = Settings()
        if settings.orchestrator is Orchestrator.INLINE:
            return await reconcile(steps.context)
        airflow = AirflowOrchestrator(settings)
        try:
            return await Reconciler(steps.context, run_check(airflow)).run_pass()
        finally:
            await airflow.close()

    return _run(one_pass)
