"""List, issue, rotate and revoke tokens.

The same four calls exist for three owners: the caller's own workspace (role `admin`), any
workspace, and the installation (both with the role `operator`).
"""

# Without postponed annotations: those of routes that a function makes name its parameters.

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from fennel_core.connections import token_store
from fennel_core.connections.audit_events import Action, audited
from fennel_core.connections.roles import Access, Role
from fennel_core.connections.token_store import (
    LONGEST_LIFETIME_S,
    LONGEST_OVERLAP_S,
    LONGEST_READ_TOKEN_S,
    READ_TOKEN_S,
    IssuedToken,
)
from fennel_core.connections.workspaces import checked_name
from fennel_core.definition.errors import JsonMalformed
from fennel_core.definition.json_messages import json_body, json_response
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Caller, Operator, ServerState, State
from fennel_core.vocab.ids import WorkspaceId

ISSUE_FIELDS: Final = frozenset({"name", "role", "lifetime_s"})
ROTATE_FIELDS: Final = frozenset({"overlap_s"})
READ_FIELDS: Final = frozenset({"lifetime_s"})


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The owner of the tokens of a call, None for the installation; and who makes the call."""

    workspace: WorkspaceId | None
    caller: Access

    def audited(
        self, state: ServerState, action: Action, subject: str
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that writes the two rows of the audit log around a call."""
        return audited(state.pool, self.caller.actor, action, subject, self.workspace)


OwnerOf = Callable[..., Awaitable[TokenOwner]]


async def own_workspace(principal: Administrator) -> TokenOwner:
    """Return the caller's workspace."""
    return TokenOwner(principal.workspace, principal.access)


async def named_workspace(name: str, caller: Operator) -> TokenOwner:
    """Return the workspace in the path."""
    return TokenOwner(checked_name(name), caller)


async def installation(caller: Operator) -> TokenOwner:
    """Return the owner of operators' tokens."""
    return TokenOwner(None, caller)


def token_routes(prefix: str, owner_of: OwnerOf, default: Role) -> APIRouter:
    """Return the four calls below `prefix`. `default`: the role of a token that names none."""
    router = APIRouter(prefix=prefix, tags=["token"])
    Owner = Annotated[TokenOwner, Depends(owner_of)]  # a type

    @router.get("")
    async def list_tokens(state: State, owner: Owner) -> Response:
        """List tokens, without their values."""
        found = await token_store.list_tokens(state.pool, owner.workspace)
        listed = [
            {
                "id": each.id,
                "name": each.name,
                "role": each.role,
                "created_at": _time(each.created_at),
                "expires_at": _time(each.expires_at),
                "last_used_at": _time(each.last_used_at),
                "is_read_token": each.is_read_token,
            }
            for each in found
        ]
        return json_response({"tokens": listed})

    @router.post("")
    async def issue(request: Request, state: State, owner: Owner) -> Response:
        """Issue a token; the response shows it once."""
        body = await json_body(request, state.settings.body_limit_bytes, ISSUE_FIELDS)
        role = token_store.checked_role(
            _text(body, "role", default), of_workspace=owner.workspace is not None
        )
        name = token_store.checked_token_name(_text(body, "name", ""))
        lifetime_s = _seconds(body, "lifetime_s", None, LONGEST_LIFETIME_S)
        async with owner.audited(state, Action.ISSUE_TOKEN, f"role {role}, name {name}"):
            made = await token_store.issue(state.pool, owner.workspace, role, name, lifetime_s)
        return json_response(_issued(made, owner.workspace))

    @router.post("/{id_}/rotate")
    async def rotate(id_: str, request: Request, state: State, owner: Owner) -> Response:
        """Issue a token like this one, which expires after the overlap."""
        body = await json_body(request, state.settings.body_limit_bytes, ROTATE_FIELDS)
        overlap_s = _seconds(body, "overlap_s", 0.0, LONGEST_OVERLAP_S)
        assert overlap_s is not None, "it has a default"
        async with owner.audited(state, Action.ROTATE_TOKEN, f"token {id_}"):
            made = await token_store.rotate(state.pool, owner.workspace, id_, overlap_s)
        return json_response(_issued(made, owner.workspace))

    @router.delete("/{id_}")
    async def revoke(id_: str, state: State, owner: Owner) -> Response:
        """Revoke a token and the read tokens that it issued."""
        async with owner.audited(state, Action.REVOKE_TOKEN, f"token {id_}"):
            await token_store.revoke(state.pool, owner.workspace, id_)
        return json_response({})

    return router


read_tokens = APIRouter(prefix=f"{API}/tokens", tags=["token"])


@read_tokens.post("/read")
async def issue_read_token(request: Request, state: State, caller: Caller) -> Response:
    """Issue a short-lived token that only reads, for a program that reads DataFrames."""
    body = await json_body(request, state.settings.body_limit_bytes, READ_FIELDS)
    lifetime_s = _seconds(body, "lifetime_s", READ_TOKEN_S, LONGEST_READ_TOKEN_S)
    assert lifetime_s is not None, "it has a default"
    async with caller.audited(state, Action.ISSUE_TOKEN, "read token"):
        made = await token_store.issue_read_token(state.pool, caller.access, lifetime_s)
    return json_response(_issued(made, caller.workspace))


ROUTERS: Final = (
    read_tokens,
    token_routes(f"{API}/tokens", own_workspace, Role.ADMIN),
    token_routes(f"{API}/workspaces/{{name}}/tokens", named_workspace, Role.ADMIN),
    token_routes(f"{API}/operations/tokens", installation, Role.OPERATOR),
)


def _issued(made: IssuedToken, owner: WorkspaceId | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": made.id,
        "token": made.token,
        "expires_at": _time(made.expires_at),
    }
    return body if owner is None else {"name": owner, **body}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


def _text(body: dict[str, Any], name: str, default: str) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise JsonMalformed(f"`{name}` in the request body must be a string")
    return value


def _seconds(
    body: dict[str, Any], name: str, default: float | None, longest_s: float
) -> float | None:
    value = body.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise JsonMalformed(f"`{name}` in the request body must be a number of seconds")
    return token_store.checked_seconds(name, value, longest_s)
