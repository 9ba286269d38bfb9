"""`/sinks`: list, pause and resume the sinks of a workspace."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from fennel_core.connections.audit_events import Action
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Committer, Reader, State
from fennel_core.sinks.orders import SinkOrders
from fennel_core.vocab.ids import BranchName

FIELDS: Final = frozenset({"sink"})
_NAMED: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"sink": {"type": "string"}},
                    "required": ["sink"],
                    "additionalProperties": False,
                }
            }
        },
    }
}
router = APIRouter(prefix=f"{API}/sinks", tags=["sinks"])


def sink_orders(request: Request) -> SinkOrders:
    """Return the service that `apps.definition` attached to the application."""
    found = request.app.state.sink_orders
    assert isinstance(found, SinkOrders)
    return found


Orders = Annotated[SinkOrders, Depends(sink_orders)]
Branch = Annotated[str | None, Query(description="Only the sinks that this branch has.")]


@router.get("")
async def list_sinks(principal: Reader, orders: Orders, branch: Branch = None) -> Response:
    """List the sinks of the workspace: state, messages behind, and the last error."""
    wanted = None if branch is None else BranchName(branch)
    return json_response({"sinks": await orders.rows(principal.workspace, wanted)})


@router.post("/pause", openapi_extra=_NAMED)
async def pause(request: Request, state: State, principal: Committer, orders: Orders) -> Response:
    """Stop writing a sink, in every branch, until it is resumed."""
    name = await _named(request, state)
    async with principal.audited(state, Action.PAUSE_SINK, f"sink {name}"):
        await orders.pause(principal.workspace, name, principal.access.actor)
    return json_response({"sink": name, "state": "paused"})


@router.post("/resume", openapi_extra=_NAMED)
async def resume(request: Request, state: State, principal: Committer, orders: Orders) -> Response:
    """Write a paused sink on, from its position."""
    name = await _named(request, state)
    async with principal.audited(state, Action.RESUME_SINK, f"sink {name}"):
        await orders.resume(principal.workspace, name)
    return json_response({"sink": name, "state": "resumed"})


async def _named(request: Request, state: State) -> str:
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    return required_string(body, "sink")
