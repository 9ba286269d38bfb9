"""Read, set and delete the secrets of a workspace."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from fennel_core.connections import secrets
from fennel_core.connections.audit_events import Action
from fennel_core.definition.errors import (
    SecretInvalid,
    SecretNotFound,
    SecretSealed,
    SecretsNotConfigured,
    SecretUndefined,
)
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Principal, ServerState, State

FIELDS: Final = frozenset({"value"})
router = APIRouter(prefix=f"{API}/secret", tags=["secret"])


@router.get("/{name:path}")
async def get_secret(name: str, state: State, principal: Administrator) -> Response:
    """Return the value of a secret."""
    async with principal.audited(state, Action.READ_SECRET, f"secret {name}"):
        try:
            value = await secrets.get(state.pool, _sealer(state), principal.workspace, name)
        except secrets.SecretUnreadable as unreadable:
            raise SecretSealed(str(unreadable)) from unreadable
        if value is None:
            raise SecretUndefined(name)
    return json_response({"value": value})


@router.post("/{name:path}")
async def add_secret(
    name: str, request: Request, state: State, principal: Administrator
) -> Response:
    """Set a secret, whether or not it exists."""
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    await _put_secret(name, body, state, principal)
    return json_response({})


@router.patch("/{name:path}")
async def update_secret(
    name: str, request: Request, state: State, principal: Administrator
) -> Response:
    """Change an existing secret."""
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    await _put_secret(name, body, state, principal, must_exist=True)
    return json_response({})


@router.delete("/{name:path}")
async def delete_secret(name: str, state: State, principal: Administrator) -> Response:
    """Delete a secret."""
    async with principal.audited(state, Action.DELETE_SECRET, f"secret {name}"):
        if not await secrets.delete(state.pool, principal.workspace, name):
            raise SecretNotFound(name)
    return json_response({})


async def _put_secret(
    name: str,
    body: dict[str, Any],
    state: ServerState,
    principal: Principal,
    *,
    must_exist: bool = False,
) -> None:
    value, workspace = required_string(body, "value"), principal.workspace
    async with principal.audited(state, Action.SET_SECRET, f"secret {name}"):
        if must_exist and name not in await secrets.names(state.pool, workspace):
            raise SecretNotFound(name)
        try:
            await secrets.put(state.pool, _sealer(state), workspace, name, value)
        except ValueError as invalid:
            raise SecretInvalid(str(invalid)) from invalid


def _sealer(state: ServerState) -> secrets.Sealer:
    if state.sealer is None:
        raise SecretsNotConfigured
    return state.sealer
