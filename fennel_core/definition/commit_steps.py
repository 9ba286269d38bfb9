"""The steps of a commit, as functions of its id.

    compile_commit → create_assets → switch → destroy_assets        undo, after a failed step

Airflow's tasks and the inline orchestrator run the same steps. Each step reads the commit's row,
does what is left to do, and stores its outcome there, so it may be run again, by another process,
at any time. A step that fails leaves the commit rejected or undoing, with the error in its row, and
raises the same error so that the orchestrator shows where the commit stopped. `undo` then removes
what was created.

`create_assets` and `switch` are `ledger.commit_protocol`'s functions themselves; the other steps
are methods of `CommitSteps`. The functions at the end of this module are for callers without an
event loop; they read the settings from the environment.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.definition.commit_request import CommitRequest, store_commit
from fennel_core.definition.validation import (
    ValidDefinitions,
    compile_definitions,
    decode_commit,
    validate_definitions,
)
from fennel_core.definition.window_specs import (
    RunProgram,
    add_window_specs,
    client_program_runner,
)
from fennel_core.ledger import commit_protocol
from fennel_core.ledger.commit_protocol import (
    create_assets,
    fail_commit,
    reject_commit,
    reserve,
    switch,
)
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import CommitUndone
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.lifecycle import UNDONE, CommitState
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.reconcile import ReconcileResult, reconcile
from fennel_core.ledger.store import Commit, CommitOptions, LedgerTransaction
from fennel_core.ledger.transitions import commit_row, locked_branch, stored_error
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.settings.model import Settings
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, CommitId, Millis, WorkspaceId

T = TypeVar("T")
DESTROY_SECONDS: Final = 30.0
"""How long a commit waits for the destruction of superseded assets (an engine stops a job within a
lease); reconcile finishes it after that.
"""
DESTROY_POLL_SECONDS: Final = 0.2


class CommitSteps:
    """The steps over a given context.

    `new_workspace_partitions`: of the topics and jobs of a workspace that has its first commit;
    every later commit uses the count of the workspace. `warm_seconds`: how long to wait for new
    jobs. `run_program` runs user code in the client's environment.
    """

    def __init__(
        self,
        context: LedgerContext,
        run_program: RunProgram,
        *,
        new_workspace_partitions: int,
        warm_seconds: float,
    ) -> None:
        self.context = context
        self._run_program = run_program
        self._new_workspace_partitions = new_workspace_partitions
        self._warm_seconds = warm_seconds
        self._validated: dict[CommitId, ValidDefinitions] = {}

    async def validate(self, request: CommitRequest) -> tuple[bytes, ValidDefinitions]:
        """Validate a commit against its branch; return the body to store and the definitions.

        Raises ApiError with all problems.
        """

        async def base(tx: LedgerTransaction) -> bytes | None:
            branch = await locked_branch(tx, request.workspace, request.branch)
            return await _definitions_of(tx, branch.target)

        return await self._validate(
            request.body, await self.context.ledger.run(base), request.options
        )

    async def _validate(
        self, body: bytes, base: bytes | None, options: CommitOptions
    ) -> tuple[bytes, ValidDefinitions]:
        received = await asyncio.to_thread(decode_commit, body)
        before = None if base is None else await asyncio.to_thread(decode_commit, base)
        completed = await add_window_specs(
            body, received.request, None if before is None else before.request, self._run_program
        )
        if completed is not body:
            received = await asyncio.to_thread(decode_commit, completed)
        return completed, await asyncio.to_thread(
            validate_definitions, received, before, incremental=options.incremental
        )

    async def preview(self, request: CommitRequest) -> tuple[str, ...]:
        """Return the plan of a commit as lines, without changing anything."""
        _, definitions = await self.validate(request)
        known = await self.context.ledger.run(lambda tx: tx.partition_count(request.workspace))
        compiled = await asyncio.to_thread(
            compile_definitions, definitions, known or self._new_workspace_partitions
        )
        return await commit_protocol.preview(
            self.context,
            request.workspace,
            request.branch,
            compiled,
            backfill=request.options.backfill,
            notices=definitions.notices,
        )

    def remember(self, commit: CommitId, definitions: ValidDefinitions) -> None:
        """Keep validated definitions so that `compile_commit` need not validate them again."""
        self._validated[commit] = definitions

    def forget(self, commit: CommitId) -> None:
        """Drop remembered definitions; another process may have compiled the commit."""
        self._validated.pop(commit, None)

    async def compile_commit(self, commit: CommitId) -> Commit:
        """Validate, compile and plan the definitions and run T1.

        Raises ApiError with all problems; the commit is then rejected.
        """
        row, body, base = await self.context.ledger.run(lambda tx: _stored_request(tx, commit))
        if row.state in UNDONE:
            raise stored_error(row)
        if row.state is not CommitState.RECEIVED:
            return row
        try:
            definitions = self._validated.pop(commit, None)
            if definitions is None:
                _, definitions = await self._validate(body, base, row.options)
            partitions = await self.context.ledger.run(
                lambda tx: tx.fix_partition_count(row.workspace, self._new_workspace_partitions)
            )
            compiled = await asyncio.to_thread(compile_definitions, definitions, partitions)
            return await reserve(
                self.context, commit, compiled, definitions.body, definitions.notices
            )
        except ApiError as error:
            await reject_commit(self.context, commit, error)
            raise

    async def destroy_assets(self, commit: CommitId) -> Commit:
        """Wait for the new jobs, move reads, and destroy the superseded assets, within a limit."""
        await wait_and_serve(self.context, commit, seconds=self._warm_seconds)
        return await self._destroy(commit)

    async def undo(self, commit: CommitId) -> Commit:
        """Fail a commit before T2 and destroy what it created; do nothing after T2."""
        row = await self.context.ledger.run(lambda tx: commit_row(tx, commit))
        if row.state is CommitState.RECEIVED:
            await reject_commit(self.context, commit, CommitUndone(commit))
        elif row.state in (CommitState.RESERVED, CommitState.CREATED):
            await fail_commit(self.context, commit, CommitUndone(commit))
        return await self._destroy(commit)

    async def run(self, commit: CommitId) -> None:
        """Run all steps in order, and undo if one fails."""
        try:
            await self.compile_commit(commit)
            await create_assets(self.context, commit)
            await switch(self.context, commit)
        except ApiError:
            await self.undo(commit)
            raise
        await self.destroy_assets(commit)

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


async def _definitions_of(tx: LedgerTransaction, commit: CommitId | None) -> bytes | None:
    """Return the SyncRequest of a version, None for an empty branch."""
    return None if commit is None else await tx.merged(commit)


async def _stored_request(
    tx: LedgerTransaction, commit: CommitId
) -> tuple[Commit, bytes, bytes | None]:
    """Return the commit's row, its stored body and the SyncRequest of its base."""
    row = await commit_row(tx, commit)
    return row, await tx.request(commit), await _definitions_of(tx, row.base)


def build_commit_steps(pool: Pool, settings: Settings) -> CommitSteps:
    """Return the steps over Postgres and Kafka."""
    timings = LedgerTimings(
        lease_ms=Millis(settings.commit_lease_ms), orphan_grace_ms=Millis(settings.orphan_grace_ms)
    )
    context = LedgerContext(PostgresLedger(pool), KafkaTopicAdmin(settings), asyncio.sleep, timings)
    return CommitSteps(
        context,
        client_program_runner(settings),
        new_workspace_partitions=settings.partitions,
        warm_seconds=settings.warm_timeout_s,
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
    workspace: str, branch: str, body: bytes, *, incremental: bool = False, backfill: bool = True
) -> str:
    """Validate and store a commit that did not come through the server; return its id.

    Raises ApiError with all problems.
    """
    request = CommitRequest(
        WorkspaceId(workspace), BranchName(branch), body, CommitOptions(incremental, backfill)
    )

    async def submit(steps: CommitSteps) -> str:
        await _open_dev_workspace(steps, request.workspace)
        stored_body, _ = await steps.validate(request)
        new_id = CommitId(uuid.uuid4().hex)
        return (await store_commit(steps.context, request, new_id, stored_body)).id

    return _run(submit)


def preview_commit(
    workspace: str, branch: str, body: bytes, *, incremental: bool = False, backfill: bool = True
) -> tuple[str, ...]:
    """Return the plan of a commit as lines, without changing anything."""
    request = CommitRequest(
        WorkspaceId(workspace), BranchName(branch), body, CommitOptions(incremental, backfill)
    )

    async def preview(steps: CommitSteps) -> tuple[str, ...]:
        await _open_dev_workspace(steps, request.workspace)
        return await steps.preview(request)

    return _run(preview)


async def _open_dev_workspace(steps: CommitSteps, workspace: WorkspaceId) -> None:
    """Create the workspace in development mode, as the token `dev-<name>` would."""
    if Settings().dev_tokens:
        await steps.context.ledger.run(lambda tx: tx.add_workspace(workspace))


def reconcile_all() -> ReconcileResult:
    """Run one reconcile pass, including the search for orphaned topics."""
    return _run(lambda steps: reconcile(steps.context))
