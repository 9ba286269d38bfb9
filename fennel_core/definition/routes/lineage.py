"""Describe what a branch defines."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from fennel_core.definition.json_messages import json_response
from fennel_core.definition.lineage import BranchVersion, lineage, xray
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Principal, Reader, ServerState, State
from fennel_core.ledger.errors import BranchNotFound
from fennel_core.ledger.store import LedgerTransaction

router = APIRouter(prefix=API, tags=["lineage"])
NameList = Annotated[
    str | None, Query(description="Names, separated by commas. Omit the parameter to select all.")
]


@router.get("/xray")
async def get_xray(
    state: State,
    principal: Reader,
    datasets: NameList = None,
    featuresets: NameList = None,
    properties: NameList = None,
) -> Response:
    """Return properties of the branch's datasets and featuresets."""
    version = await _target_version(state, principal)
    return json_response(xray(version, _names(datasets), _names(featuresets), _names(properties)))


@router.get("/lineage")
async def get_lineage(state: State, principal: Reader) -> Response:
    """Return the lineage graph of the branch as nodes and edges."""
    return json_response(lineage(await _target_version(state, principal)))


async def _target_version(state: ServerState, principal: Principal) -> BranchVersion:
    async def read(tx: LedgerTransaction) -> tuple[bytes, bytes] | None:
        branch = await tx.branch(principal.workspace, principal.branch)
        if branch is None:
            raise BranchNotFound(principal.branch)
        if branch.target is None:
            return None
        merged, catalog = await tx.merged(branch.target), await tx.catalog(branch.target)
        assert merged is not None, "a branch's target passed T1"
        assert catalog is not None, "a branch's target passed T1"
        return merged, catalog

    stored = await state.ledger_context.ledger.run(read)
    if stored is None:
        return BranchVersion.empty(principal.workspace)
    return BranchVersion.decode(*stored)


def _names(text: str | None) -> frozenset[str] | None:
    names = frozenset(name.strip() for name in (text or "").split(",") if name.strip())
    return names or None
