"""`/sinks`: list, pause, resume and rewind the sinks of a workspace."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from fennel_core.connections.audit_events import Action
from fennel_core.definition.attached import attached
from fennel_core.definition.json_messages import (
    json_body,
    json_response,
    object_body,
    optional_flag,
    required_string,
)
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Committer, Reader, State
from fennel_core.sinks.orders import SinkOrders
from fennel_core.sinks.rewinds import SinkRewinds
from fennel_core.vocab.ids import BranchName

NAMED: Final = {"sink": {"type": "string"}}
FLAGS: Final = ("duplicates_rows", "dry_run")
REWIND: Final = NAMED | {"to": {"type": "string"}} | {f: {"type": "boolean"} for f in FLAGS}
router = APIRouter(prefix=f"{API}/sinks", tags=["sinks"])


Orders = Annotated[SinkOrders, Depends(attached("sink_orders", SinkOrders))]
Rewinds = Annotated[SinkRewinds, Depends(attached("sink_rewinds", SinkRewinds))]
Branch = Annotated[str | None, Query(description="Only the sinks that this branch has.")]


@router.get("")
async def list_sinks(principal: Reader, orders: Orders, branch: Branch = None) -> Response:
    """List the sinks of the workspace: state, messages behind, and the last error."""
    wanted = None if branch is None else BranchName(branch)
    return json_response({"sinks": await orders.rows(principal.workspace, wanted)})


@router.post("/pause", openapi_extra=object_body(NAMED, NAMED))
async def pause(request: Request, state: State, principal: Committer, orders: Orders) -> Response:
    """Stop writing a sink, in every branch, until it is resumed."""
    name = await _named(request, state)
    async with principal.audited(state, Action.PAUSE_SINK, f"sink {name}"):
        await orders.pause(principal.workspace, name, principal.access.actor)
    return json_response({"sink": name, "state": "paused"})


@router.post("/resume", openapi_extra=object_body(NAMED, NAMED))
async def resume(request: Request, state: State, principal: Committer, orders: Orders) -> Response:
    """Write a paused sink on, from its position."""
    name = await _named(request, state)
    async with principal.audited(state, Action.RESUME_SINK, f"sink {name}"):
        await orders.resume(principal.workspace, name)
    return json_response({"sink": name, "state": "resumed"})


@router.post("/rewind", openapi_extra=object_body(REWIND, ("sink", "to")))
async def rewind(
    request: Request, state: State, principal: Administrator, rewinds: Rewinds
) -> Response:
    """Order that a sink is written again from a place on; the response has the messages."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(REWIND))
    name, to = required_string(body, "sink"), required_string(body, "to")
    flags = {flag: optional_flag(body, flag) for flag in FLAGS}
    said = "".join(f", {flag}" for flag, yes in flags.items() if yes)
    async with principal.audited(state, Action.REWIND_SINK, f"sink {name}, to {to}{said}"):
        done = await rewinds.run(principal.workspace, name, to, **flags)
    return json_response(done)


async def _named(request: Request, state: State) -> str:
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(NAMED))
    return required_string(body, "sink")
