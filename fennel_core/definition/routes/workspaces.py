"""Create, list and delete workspaces, with the token of an operator."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Depends, Request, Response

from fennel_core.connections import workspaces
from fennel_core.connections.audit_events import Action, audited
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Operator, State, operator
from fennel_core.ledger.branches import drop_closed_workspace

DELETE_SECONDS: Final = 10.0
"""How long a request waits for the deletion of a workspace; reconcile finishes it after that."""
DELETE_POLL_SECONDS: Final = 0.2
FIELDS: Final = frozenset({"name"})
router = APIRouter(prefix=f"{API}/workspaces", tags=["workspace"], dependencies=[Depends(operator)])


@router.get("")
async def list_workspaces(state: State) -> Response:
    """List all workspaces."""
    return json_response(
        {
            "workspaces": [
                {
                    "name": w.name,
                    "state": w.state,
                    "created_at": w.created_at.isoformat(),
                    "partitions": w.partitions,
                }
                for w in await workspaces.list_all(state.pool)
            ]
        }
    )


@router.post("")
async def create_workspace(request: Request, state: State, caller: Operator) -> Response:
    """Create a workspace and return its token, which is not stored in clear and not shown again."""
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    name = required_string(body, "name")
    action = audited(state.pool, caller.actor, Action.CREATE_WORKSPACE, f"workspace {name}", None)
    async with action:
        token = await workspaces.create(state.pool, name)
    return json_response({"name": name, "token": token})


@router.delete("/{name}")
async def delete_workspace(name: str, state: State, caller: Operator) -> Response:
    """Close a workspace and delete its data.

    `gone` in the response is false while engines are still stopping its jobs.
    """
    action = audited(state.pool, caller.actor, Action.DELETE_WORKSPACE, f"workspace {name}", None)
    async with action:
        workspace = await workspaces.mark_deleting(state.pool, name)
    context = state.ledger_context
    began = context.now()
    while (
        not (gone := await drop_closed_workspace(context, workspace))
        and context.now() - began < DELETE_SECONDS
    ):
        await context.sleep(DELETE_POLL_SECONDS)
    state.wake_reconcile()
    return json_response({"name": workspace, "gone": gone})
