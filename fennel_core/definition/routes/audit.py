"""Read the audit log."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from fennel_core.connections import audit_events
from fennel_core.definition.json_messages import json_response
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Operator, ServerState, State
from fennel_core.vocab.ids import WorkspaceId

DEFAULT_ROWS: Final = 100

router = APIRouter(prefix=API, tags=["audit"])
Rows = Annotated[int, Query(ge=1, le=audit_events.PAGE_ROWS, description="At most so many.")]
Before = Annotated[int | None, Query(description="Only events with smaller ids.")]


@router.get("/audit")
async def of_workspace(
    state: State, principal: Administrator, n: Rows = DEFAULT_ROWS, before: Before = None
) -> Response:
    """Return the newest events of the workspace, newest first."""
    return await _page(state, principal.workspace, n, before)


@router.get("/operations/audit")
async def of_installation(
    state: State, _operator: Operator, n: Rows = DEFAULT_ROWS, before: Before = None
) -> Response:
    """Return the newest events of all workspaces and of the installation, newest first."""
    return await _page(state, None, n, before)


async def _page(
    state: ServerState, workspace: WorkspaceId | None, rows: int, before: int | None
) -> Response:
    events = await audit_events.read(state.pool, workspace, before=before, rows=rows)
    return json_response({"events": [event.as_json() for event in events]})
