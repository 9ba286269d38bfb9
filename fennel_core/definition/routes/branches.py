"""Create, delete and list branches."""

from __future__ import annotations

import re
from typing import Final

from fastapi import APIRouter, Request, Response

from fennel_core.connections.audit_events import Action
from fennel_core.definition.errors import BranchNameInvalid
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Committer, Reader, State
from fennel_core.ledger.branches import clone_branch, delete_branch, init_branch
from fennel_core.vocab.ids import BranchName

BRANCH_NAME: Final = re.compile(r"^[a-zA-Z0-9_.\-/]{1,200}$")
FIELDS: Final = frozenset({"clone_from"})
router = APIRouter(prefix=API, tags=["branch"])


@router.post("/init")
async def init(request: Request, state: State, principal: Committer) -> Response:
    """Create the selected branch, empty or as a clone of `clone_from`."""
    body = await json_body(request, state.settings.body_limit_bytes, FIELDS)
    workspace, branch = principal.workspace, principal.branch
    if BRANCH_NAME.match(branch) is None:
        raise BranchNameInvalid(branch)
    source = (
        None if body.get("clone_from") is None else BranchName(required_string(body, "clone_from"))
    )
    subject = f"branch {branch}" + ("" if source is None else f", a clone of {source}")
    async with principal.audited(state, Action.CREATE_BRANCH, subject):
        if source is None:
            await init_branch(state.ledger_context, workspace, branch)
        else:
            await clone_branch(state.ledger_context, workspace, branch, source)
    return json_response({"name": branch})


@router.post("/delete")
async def delete(state: State, principal: Committer) -> Response:
    """Delete the selected branch and the data that only it holds."""
    async with principal.audited(state, Action.DELETE_BRANCH, f"branch {principal.branch}"):
        await delete_branch(state.ledger_context, principal.workspace, principal.branch)
    state.wake_reconcile()
    return json_response({})


@router.get("/branch/list")
async def list_branches(state: State, principal: Reader) -> Response:
    """List all branches in order of creation."""
    branches = await state.ledger_context.ledger.run(lambda tx: tx.branches(principal.workspace))
    return json_response({"branches": [{"name": branch.name} for branch in branches]})
