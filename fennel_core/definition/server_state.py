"""What the routes share: the server's state and the principal of a request, as dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from fennel_core.connections import secrets, tokens
from fennel_core.connections.postgres import Pool
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


def server_state(request: Request) -> ServerState:
    """Return the state that `server.application` attached to the application."""
    state = request.app.state.server_state
    assert isinstance(state, ServerState)
    return state


State = Annotated[ServerState, Depends(server_state)]


async def principal(
    state: State,
    authorization: Annotated[str | None, Header()] = None,
    x_fennel_branch: Annotated[str, Header()] = MAIN_BRANCH,
) -> Principal:
    """Authenticate the request. Raises ApiError 401."""
    return Principal(
        await tokens.workspace_of(state.pool, state.settings, authorization),
        BranchName(x_fennel_branch),
    )


async def require_admin(
    state: State, authorization: Annotated[str | None, Header()] = None
) -> None:
    """Raise ApiError 401 unless the request has the administrator's token."""
    tokens.require_admin(state.settings, authorization)


CurrentPrincipal = Annotated[Principal, Depends(principal)]
