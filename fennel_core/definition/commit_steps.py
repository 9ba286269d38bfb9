"""The steps of a commit, as functions of its id: what Airflow's tasks call, and what the inline
orchestrator runs.

Theory. Each step reads the commit's row, does what is owed there and writes its outcome back, so it
may be run again, by another process, at any time. A step that fails leaves the commit undoing or
rejected, with its error in the row, and raises the same error, so that an orchestrator shows where
it stopped; `undo` then takes back what was made. `run` is the whole way at once.

    compile_commit → create_assets → switch → destroy_assets          undo (after a failure of the
    first three)

The plain functions at the end are for callers without an event loop: settings come from the
environment.
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
from fennel_core.definition.window_specs import RunProgram, add_window_specs, client_program_runner
from fennel_core.ledger import commit_protocol
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
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
"""How long a commit waits for its leavings to be destroyed (an engine lets go of a job within a
lease); recovery does the rest.
"""
DESTROY_POLL_SECONDS: Final = 0.2


class CommitSteps:
    """The steps over given tools. `partitions`: of every new topic and job. `warm_seconds`: how
    long to wait for new jobs.

    `run_program` runs user code in the client's environment.
    """

    def __init__(
        self,
        context: LedgerContext,
        run_program: RunProgram,
        *,
        partitions: int,
        warm_seconds: float,
    ) -> None:
        self.context = context
        self._run_program = run_program
        self._partitions = partitions
        self._warm_seconds = warm_seconds
        self._checked: dict[CommitId, ValidDefinitions] = {}

    async def validate(self, request: CommitRequest) -> tuple[bytes, ValidDefinitions]:
        """Decode and validate a commit against what its branch has; answers the body to store, and
        what it defines.

        ApiError with everything that is wrong.
        """

        async def base(tx: LedgerTransaction) -> bytes | None:
            branch = await locked_branch(tx, request.workspace, request.branch)
            return await _definitions_of(tx, branch.target)

        return await self._check(request.body, await self.context.ledger.run(base), request.options)

    async def _check(
        self, body: bytes, standing: bytes | None, options: CommitOptions
    ) -> tuple[bytes, ValidDefinitions]:
        received = await asyncio.to_thread(decode_commit, body)
        before = None if standing is None else await asyncio.to_thread(decode_commit, standing)
        whole = await add_window_specs(
            body, received.request, None if before is None else before.request, self._run_program
        )
        if whole is not body:
            received = await asyncio.to_thread(decode_commit, whole)
        return whole, await asyncio.to_thread(
            validate_definitions, received, before, incremental=options.incremental
        )

    async def preview(self, request: CommitRequest) -> tuple[str, ...]:
        """What the commit would do, as lines; nothing is changed."""
        _, definitions = await self.validate(request)
        wanted = await asyncio.to_thread(compile_definitions, definitions, self._partitions)
        return await commit_protocol.preview(
            self.context,
            request.workspace,
            request.branch,
            wanted,
            backfill=request.options.backfill,
        )

    def remember(self, commit: CommitId, definitions: ValidDefinitions) -> None:
        """Spare `compile_commit` of this process the second decoding of a request that was just
        checked.
        """
        self._checked[commit] = definitions

    def forget(self, commit: CommitId) -> None:
        """Whoever compiles it has done so, or is another process."""
        self._checked.pop(commit, None)

    async def compile_commit(self, commit: CommitId) -> Commit:
        """Definitions → plan → T1. ApiError when they are wrong, with all that is wrong; the commit
        is then rejected.
        """
        row, body, before = await self.context.ledger.run(lambda tx: _sources(tx, commit))
        if row.state in UNDONE:
            raise stored_error(row)
        if row.state is not CommitState.RECEIVED:
            return row
        try:
            definitions = self._checked.pop(commit, None)
            if definitions is None:
                _, definitions = await self._check(body, before, row.options)
            wanted = await asyncio.to_thread(compile_definitions, definitions, self._partitions)
            return await commit_protocol.reserve(self.context, commit, wanted, definitions.body)
        except ApiError as wrong:
            await commit_protocol.reject_commit(self.context, commit, wrong)
            raise

    async def create_assets(self, commit: CommitId) -> Commit:
        """Make the topics. ApiError when one is refused; the commit is then undoing."""
        return await commit_protocol.create_assets(self.context, commit)

    async def switch(self, commit: CommitId) -> Commit:
        """T2. ApiError when the branch moved meanwhile; the commit is then undoing."""
        return await commit_protocol.switch(self.context, commit)

    async def destroy_assets(self, commit: CommitId) -> Commit:
        """Wait until the new jobs have caught up, let reads move, then destroy what nobody holds
        any more; bounded in time.
        """
        await wait_and_serve(self.context, commit, seconds=self._warm_seconds)
        return await self._destroy(commit)

    async def undo(self, commit: CommitId) -> Commit:
        """Take back what a failed commit made; does nothing after T2."""
        row = await self.context.ledger.run(lambda tx: commit_row(tx, commit))
        abandoned = ApiError(
            500,
            "commit-undone",
            f"commit `{commit}` was taken back because a step of it failed; nothing was changed",
        )
        if row.state is CommitState.RECEIVED:
            await commit_protocol.reject_commit(self.context, commit, abandoned)
        elif row.state in (CommitState.RESERVED, CommitState.CREATED):
            await commit_protocol.fail_commit(self.context, commit, abandoned)
        return await self._destroy(commit)

    async def run(self, commit: CommitId) -> None:
        """All steps, one after the other, and undo when one fails."""
        try:
            await self.compile_commit(commit)
            await self.create_assets(commit)
            await self.switch(commit)
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
    """The SyncRequest a version stands for."""
    return None if commit is None else await tx.merged(commit)


async def _sources(tx: LedgerTransaction, commit: CommitId) -> tuple[Commit, bytes, bytes | None]:
    row = await commit_row(tx, commit)
    return row, await tx.request(commit), await _definitions_of(tx, row.base)


def build_commit_steps(pool: Pool, settings: Settings) -> CommitSteps:
    """The steps over the real Postgres and Kafka."""
    timings = LedgerTimings(
        lease_ms=Millis(settings.commit_lease_ms), orphan_grace_ms=Millis(settings.orphan_grace_ms)
    )
    context = LedgerContext(PostgresLedger(pool), KafkaTopicAdmin(settings), asyncio.sleep, timings)
    return CommitSteps(
        context,
        client_program_runner(settings),
        partitions=settings.partitions,
        warm_seconds=settings.warm_timeout_s,
    )


# --- for callers without an event loop ------------------------------------------------------------


@asynccontextmanager
async def open_commit_steps(settings: Settings) -> AsyncIterator[CommitSteps]:
    """Steps with connections of their own."""
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
    """Check and store a commit that did not come through the server; answers its id. ApiError when
    it is wrong.
    """
    request = CommitRequest(
        WorkspaceId(workspace), BranchName(branch), body, CommitOptions(incremental, backfill)
    )

    async def work(steps: CommitSteps) -> str:
        await _open_in_development(steps, request.workspace)
        stored, _ = await steps.validate(request)
        return (await store_commit(steps.context, request, CommitId(uuid.uuid4().hex), stored)).id

    return _run(work)


def preview_commit(
    workspace: str, branch: str, body: bytes, *, incremental: bool = False, backfill: bool = True
) -> tuple[str, ...]:
    """What such a commit would do, as lines."""
    request = CommitRequest(
        WorkspaceId(workspace), BranchName(branch), body, CommitOptions(incremental, backfill)
    )

    async def work(steps: CommitSteps) -> tuple[str, ...]:
        await _open_in_development(steps, request.workspace)
        return await steps.preview(request)

    return _run(work)


async def _open_in_development(steps: CommitSteps, workspace: WorkspaceId) -> None:
    """Where a token `dev-<name>` would make the workspace by opening it, so does a commit that
    names it.
    """
    if Settings().dev_tokens:
        await steps.context.ledger.run(lambda tx: tx.add_workspace(workspace))


def compile_commit(commit_id: str) -> Commit:
    """See `CommitSteps.compile_commit`."""
    return _run(lambda steps: steps.compile_commit(CommitId(commit_id)))


def create_assets(commit_id: str) -> Commit:
    """See `CommitSteps.create_assets`."""
    return _run(lambda steps: steps.create_assets(CommitId(commit_id)))


def switch(commit_id: str) -> Commit:
    """See `CommitSteps.switch`."""
    return _run(lambda steps: steps.switch(CommitId(commit_id)))


def destroy_assets(commit_id: str) -> Commit:
    """See `CommitSteps.destroy_assets`."""
    return _run(lambda steps: steps.destroy_assets(CommitId(commit_id)))


def undo(commit_id: str) -> Commit:
    """See `CommitSteps.undo`."""
    return _run(lambda steps: steps.undo(CommitId(commit_id)))


def reconcile_all() -> ReconcileResult:
    """One round of recovery over everything, strays included."""
    return _run(lambda steps: reconcile(steps.context))
