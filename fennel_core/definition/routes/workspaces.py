"""Create, list and delete workspaces, with the administrator's token."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Depends, Request, Response

from fennel_core.connections import workspaces
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import State, require_admin
from fennel_core.ledger.branches import drop_closed_workspace

DELETE_SECONDS: Final = 10.0
"""How long a request waits for the deletion of a workspace; reconcile finishes it after that."""
DELETE_POLL_SECONDS: Final = 0.2
FIELDS: Final = frozenset({"name"})
router = APIRouter(
    prefix=f"{API}/workspaces", tags=["workspace"], dependencies=[Depends(require_admin)]
)


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
async def create_workspace(request: Request, state: State) -> Response:
    """Create a workspace and return its token, which is not stored in clear and not shown again."""
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    name = required_string(body, "name")
    return json_response({"name": name, "token": await workspaces.create(state.pool, name)})


@router.post("/{name}/tokens")
async def add_token(name: str, state: State) -> Response:
    """Create an additional token for a workspace."""
    return json_response({"name": name, "token": await workspaces.add_token(state.pool, name)})


@router.delete("/{name}")
async def delete_workspace(name: str, state: State) -> Response:
    """Close a workspace and delete its data.

    `gone` in the response is false while engines are still stopping its jobs.
    """
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
