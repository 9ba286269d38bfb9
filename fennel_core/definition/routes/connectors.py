"""`/connectors`: add, rotate, test, show and remove the stored connectors of a workspace."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from fennel_core.connections.audit_events import Action
from fennel_core.definition.attached import attached
from fennel_core.definition.connector_orders import Allowances, ConnectorOrders
from fennel_core.definition.errors import JsonMalformed
from fennel_core.definition.json_messages import (
    json_body,
    json_response,
    object_body,
    optional_flag,
    required_string,
)
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Committer, Reader, State

NAMED: Final = {"connector": {"type": "string"}}
PROPERTIES: Final = {"properties": {"type": "object"}}
UNCHECKED: Final = {"unchecked": {"type": "boolean"}}
FLAGS: Final = ("replace", "moved", "unchecked")
ADD: Final = (
    NAMED
    | {"kind": {"type": "string"}}
    | PROPERTIES
    | {flag: {"type": "boolean"} for flag in FLAGS}
)
ROTATE: Final = NAMED | PROPERTIES | UNCHECKED
router = APIRouter(prefix=f"{API}/connectors", tags=["connectors"])
Orders = Annotated[ConnectorOrders, Depends(attached("connector_orders", ConnectorOrders))]


@router.get("")
async def list_connectors(principal: Reader, orders: Orders) -> Response:
    """List the connectors of the workspace without their secrets, and what uses them."""
    return json_response({"connectors": await orders.rows(principal.workspace)})


@router.get("/{name}")
async def show_connector(name: str, principal: Reader, orders: Orders) -> Response:
    """Return one connector without its secrets, and what uses it."""
    return json_response(await orders.row(principal.workspace, name))


@router.post("/add", openapi_extra=object_body(ADD, ("connector", "kind", "properties")))
async def add(request: Request, state: State, principal: Administrator, orders: Orders) -> Response:
    """Store a connector, or replace one, after it was tried with all that uses it."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(ADD))
    name, kind = required_string(body, "connector"), required_string(body, "kind")
    allowed = Allowances(**{flag: optional_flag(body, flag) for flag in FLAGS})
    given = _properties(body)
    async with principal.audited(state, Action.SET_CONNECTOR, f"connector {name}"):
        done = await orders.add(
            principal.workspace, name, kind, given, principal.access.actor, allowed
        )
    return json_response(done)


@router.post("/rotate", openapi_extra=object_body(ROTATE, ("connector", "properties")))
async def rotate(
    request: Request, state: State, principal: Administrator, orders: Orders
) -> Response:
    """Replace credentials of a connector, after they were tried with all that uses it."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(ROTATE))
    name, given = required_string(body, "connector"), _properties(body)
    allowed = Allowances(unchecked=optional_flag(body, "unchecked"))
    async with principal.audited(state, Action.ROTATE_CONNECTOR, f"connector {name}"):
        done = await orders.rotate(
            principal.workspace, name, given, principal.access.actor, allowed
        )
    return json_response(done)


@router.post("/test", openapi_extra=object_body(NAMED, NAMED))
async def test(request: Request, state: State, principal: Committer, orders: Orders) -> Response:
    """Reach all that a connector is used for; moves and stores nothing."""
    name = await _named(request, state)
    async with principal.audited(state, Action.TEST_CONNECTOR, f"connector {name}"):
        done = await orders.test(principal.workspace, name)
    return json_response(done)


@router.post("/remove", openapi_extra=object_body(NAMED, NAMED))
async def remove(
    request: Request, state: State, principal: Administrator, orders: Orders
) -> Response:
    """Remove a connector that no source and no sink has."""
    name = await _named(request, state)
    async with principal.audited(state, Action.DELETE_CONNECTOR, f"connector {name}"):
        await orders.remove(principal.workspace, name)
    return json_response({"connector": name, "removed": True})


async def _named(request: Request, state: State) -> str:
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(NAMED))
    return required_string(body, "connector")


def _properties(body: dict[str, Any]) -> dict[str, Any]:
    found = body.get("properties")
    if not isinstance(found, dict):
        raise JsonMalformed("`properties` is required in the request body and must be an object")
    return found
