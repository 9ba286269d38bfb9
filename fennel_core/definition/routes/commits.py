"""`POST /commit`."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from fennel_core.connections.asgi import read_body
from fennel_core.connections.audit_events import Action
from fennel_core.definition.commit_request import CommitRequest
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.errors import OrchestratorNotAllowed
from fennel_core.definition.json_messages import json_response
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Committer, ServerState, State
from fennel_core.ledger.store import CommitOptions
from fennel_core.settings.model import Orchestrator

ORCHESTRATOR_HEADER: Final = "X-Fennel-Orchestrator"
router = APIRouter(prefix=API, tags=["commit"])


@router.post("/commit")
async def commit(
    request: Request,
    state: State,
    principal: Committer,
    preview: Annotated[bool, Query(description="Return the plan without changes.")] = False,
    incremental: Annotated[
        bool, Query(description="Extend the branch's definitions instead of replacing them.")
    ] = False,
    backfill: Annotated[bool, Query(description="Allow recomputation from existing data.")] = True,
    allow_data_loss: Annotated[
        bool | None, Query(description="Confirm that accepted rows may be destroyed.")
    ] = None,
) -> Response:
    """Replace (or, if incremental, extend) the branch's definitions with a SyncRequest."""
    body = await read_body(request.scope, request.receive, state.settings.body_limit_bytes)
    allowed = state.settings.data_loss_allowed if allow_data_loss is None else allow_data_loss
    options = CommitOptions(incremental, backfill, allowed)
    commit_request = CommitRequest(principal.workspace, principal.branch, body, options)
    service = _commit_service(state, request)
    if preview:
        report = await service.steps.preview(commit_request)
    else:
        async with principal.audited(state, Action.COMMIT, f"branch {principal.branch}"):
            report = await service.commit(commit_request)
    state.wake_reconcile()
    return json_response(report.as_json())


def _commit_service(state: ServerState, request: Request) -> CommitService:
    """Return the configured service, or the inline one that a request in development selects."""
    selected = request.headers.get(ORCHESTRATOR_HEADER)
    if selected in (None, state.settings.orchestrator):
        return state.commits
    if selected == Orchestrator.INLINE and state.settings.dev_tokens:
        return state.inline_commits
    raise OrchestratorNotAllowed(ORCHESTRATOR_HEADER, str(selected))
