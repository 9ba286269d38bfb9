"""What the routes share: the server's state and the principal of a request, as dependencies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from fennel_core.connections import secrets, tokens
from fennel_core.connections.api_errors import (
    NotAdministrator,
    TokenUnknown,
    WorkspaceNameInvalid,
)
from fennel_core.connections.audit_events import Action, audited
from fennel_core.connections.postgres import Pool
from fennel_core.connections.roles import Access, Permission
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.definition.commit_service import CommitService
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.reconcile import FailingItem
from fennel_core.settings.model import Settings
from fennel_core.snapshots.log_retention import RetentionAlarm
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, WorkspaceId


@dataclass(frozen=True, slots=True)
class ServerState:
    """The dependencies of the routes."""

    settings: Settings
    pool: Pool
    commits: CommitService
    inline_commits: CommitService
    """Runs commit steps in this process, for requests in development mode that select it."""
    sealer: secrets.Sealer | None
    """None: no key file is configured."""
    wake_reconcile: Callable[[], None]
    """Start the next reconcile pass now."""
    limits: WorkspaceLimits
    alarms: Callable[[], Sequence[RetentionAlarm]] = tuple
    """Return the result of the last check of needed records."""
    failing_items: Callable[[], Sequence[FailingItem]] = tuple
    """Return the items of reconcile whose last attempt failed."""

    @property
    def ledger_context(self) -> LedgerContext:
        """The context of ledger steps."""
        return self.commits.steps.context


@dataclass(frozen=True, slots=True)
class Principal:
    """The workspace that the token of a request opens, and the branch it selects."""

    workspace: WorkspaceId
    branch: BranchName
    access: Access

    def audited(
        self, state: ServerState, action: Action, subject: str
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that writes the two rows of the audit log around a call."""
        return audited(state.pool, self.access.actor, action, subject, self.workspace)


def server_state(request: Request) -> ServerState:
    """Return the state that `server.application` attached to the application."""
    state = request.app.state.server_state
    assert isinstance(state, ServerState)
    return state


State = Annotated[ServerState, Depends(server_state)]


def permitted(*permissions: Permission) -> Callable[..., AsyncIterator[Principal]]:
    """Return a dependency: the principal of a request whose token has one of `permissions`.

    The request counts against the limits of its workspace until its response is sent.
    """

    async def principal(
        state: State,
        authorization: Annotated[str | None, Header()] = None,
        x_fennel_branch: Annotated[str, Header()] = MAIN_BRANCH,
    ) -> AsyncIterator[Principal]:
        """Authenticate the request. Raises ApiError 401, 403 and 429."""
        access = await tokens.access_of(state.pool, state.settings, authorization)
        workspace = access.workspace_for(*permissions)
        with state.limits.entered(workspace):
            yield Principal(workspace, BranchName(x_fennel_branch), access)

    return principal


async def operator(state: State, authorization: Annotated[str | None, Header()] = None) -> Access:
    """Return the access of an operator's request; raises NotAdministrator for any other token."""
    try:
        access = await tokens.access_of(state.pool, state.settings, authorization)
    except (TokenUnknown, WorkspaceNameInvalid) as unknown:
        raise NotAdministrator from unknown
    access.require_operator()
    return access


Reader = Annotated[Principal, Depends(permitted(Permission.READ))]
Caller = Annotated[Principal, Depends(permitted(*Permission))]
"""A token of a workspace, whatever its role."""
Committer = Annotated[Principal, Depends(permitted(Permission.DEFINE))]
Administrator = Annotated[Principal, Depends(permitted(Permission.ADMINISTER))]
Operator = Annotated[Access, Depends(operator)]
