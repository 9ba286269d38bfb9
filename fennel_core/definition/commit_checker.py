"""Validate a commit against a version of its branch, and rebase it when the branch has moved.

A result names the version that it was computed from (`CheckedDefinitions.base`), and T1 accepts it
only while the branch is still at that version. Validation takes seconds (it may run user code) and
holds no lock, so it may have to be repeated; `graph/rebase.py` says what a repetition preserves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.secrets import Sealer
from fennel_core.connectors.references import Stored, resolved_catalog, stored_references
from fennel_core.connectors.store import ConnectorStore, connectors_of
from fennel_core.definition.commit_request import CommitRequest, digest_of
from fennel_core.definition.connector_check import connector_problems
from fennel_core.definition.errors import WindowSpecsUnavailable
from fennel_core.definition.external_uses import ExternalUses, added_uses, use_problems
from fennel_core.definition.sealed_request import seal_request
from fennel_core.definition.validation import (
    CheckedDefinitions,
    DecodedCommit,
    decode_commit,
    decode_received,
    problems_error,
    rebase_definitions,
    validate_definitions,
    window_specs_error,
)
from fennel_core.definition.window_specs import RunProgram, add_window_specs
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.store import Commit, LedgerTransaction
from fennel_core.ledger.transitions import open_branch
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId
from fennel_core.wire.connectors import NamedReference


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A valid request: the body to store, without plain secrets, and its definitions.

    `digest` is equal for equal requests. `connectors`: the stored ones that the new version uses.
    """

    body: bytes
    digest: str
    definitions: CheckedDefinitions
    connectors: Collection[NamedReference]


class CommitChecker:
    """Validates commits. `run_program` runs user code in the client's environment.

    `sealer` None: commits with plain secrets are refused. `settings` None: so are files on S3.
    `connectors` None: no connector is stored.
    """

    def __init__(
        self,
        context: LedgerContext,
        run_program: RunProgram,
        sealer: Sealer | None = None,
        settings: Settings | None = None,
        connectors: ConnectorStore | None = None,
    ) -> None:
        self._context = context
        self._run_program = run_program
        self._sealer = sealer
        self._settings = settings
        self._connectors = connectors

    async def check(self, request: CommitRequest) -> CheckedRequest:
        """Validate a request against its branch, and reach the sources that it adds.

        Raises ApiError with all problems.
        """

        async def base(tx: LedgerTransaction) -> tuple[CommitId | None, bytes | None]:
            branch = await open_branch(tx, request.workspace, request.branch)
            return branch.target, await _definitions_of(tx, branch.target)

        target, body = await self._context.ledger.run(base)
        before = await _decoded(body)
        sealed = await asyncio.to_thread(
            seal_request, request.body, request.workspace, self._sealer
        )
        incremental = request.options.incremental
        received = await asyncio.to_thread(
            decode_received, sealed.stored, before, incremental=incremental
        )
        try:
            completed = await add_window_specs(
                sealed.stored,
                received.request,
                None if before is None else before.request,
                request.workspace,
                self._run_program,
            )
        except WindowSpecsUnavailable as failure:
            raise await asyncio.to_thread(
                window_specs_error, failure, received, before, incremental=incremental
            ) from failure
        if completed is not sealed.stored:
            received = await asyncio.to_thread(decode_commit, completed)
        definitions = await asyncio.to_thread(
            validate_definitions, received, before, incremental=incremental
        )
        stored = await self._stored(request.workspace)
        earlier = None if before is None else before.request
        await self._reach(added_uses(definitions.graph, earlier, stored), stored, request)
        digest = digest_of(request, sealed.comparable)
        graph = definitions.graph
        used = stored_references((*graph.sources, *graph.sinks), stored)
        return CheckedRequest(completed, digest, CheckedDefinitions(target, definitions), used)

    async def _stored(self, workspace: WorkspaceId) -> Stored:
        if self._connectors is None:
            return {}
        return connectors_of(await self._connectors.of(workspace))

    async def _reach(self, added: ExternalUses, stored: Stored, request: CommitRequest) -> None:
        """Check that streams can be read and sinks written. Raises ApiError with all problems."""
        if not added:
            return

        async def catalogs(tx: LedgerTransaction) -> dict[BranchName, bytes]:
            found: dict[BranchName, bytes] = {}
            for branch in await tx.branches(request.workspace):
                if branch.name != request.branch and branch.target is not None:
                    encoded = await tx.catalog(branch.target)
                    assert encoded is not None, "a target has a catalog"
                    found[branch.name] = encoded
            return found

        others = {
            name: resolved_catalog(stored_names.loads(encoded, Catalog), stored)
            for name, encoded in (await self._context.ledger.run(catalogs)).items()
        }
        problems = [
            *connector_problems(added.definitions, stored),
            *await use_problems(
                added.with_address(), others, request.workspace, self._sealer, self._settings
            ),
        ]
        if problems:
            raise problems_error(problems)

    async def check_stored(self, row: Commit, body: bytes) -> CheckedDefinitions:
        """Validate a stored commit against the version that it was validated against first.

        Raises ApiError with all problems.
        """
        before = await self._version(row.base)
        received = await asyncio.to_thread(decode_commit, body)
        definitions = await asyncio.to_thread(
            validate_definitions, received, before, incremental=row.options.incremental
        )
        return CheckedDefinitions(row.base, definitions)

    async def rebase(self, row: Commit, body: bytes, target: CommitId | None) -> CheckedDefinitions:
        """Validate a stored commit against `target`, which is the branch's version now.

        Raises CommitConflict, and ApiError with all problems.
        """
        base, before = await self._version(row.base), await self._version(target)
        received = await asyncio.to_thread(decode_commit, body)
        definitions = await asyncio.to_thread(
            rebase_definitions,
            received,
            base,
            before,
            incremental=row.options.incremental,
            branch=row.branch,
        )
        return CheckedDefinitions(target, definitions)

    async def _version(self, commit: CommitId | None) -> DecodedCommit | None:
        return await _decoded(
            await self._context.ledger.run(lambda tx: _definitions_of(tx, commit))
        )


async def _definitions_of(tx: LedgerTransaction, commit: CommitId | None) -> bytes | None:
    """Return the SyncRequest of a version, None for an empty branch."""
    return None if commit is None else await tx.merged(commit)


async def _decoded(body: bytes | None) -> DecodedCommit | None:
    return None if body is None else await asyncio.to_thread(decode_commit, body)
