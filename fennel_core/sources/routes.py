"""`/sources`: list, pause, resume, limit, test and rewind the sources of a workspace.

A stream is shared by the branches that have it, so its state is that of the workspace.
"""

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
    optional_number,
    required_string,
)
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Administrator, Committer, Reader, State
from fennel_core.sources.rewind import Consent, SourceRewinds
from fennel_core.sources.service import SourceService
from fennel_core.sources.trial import SourceTrials
from fennel_core.vocab.ids import BranchName

NAMED: Final = {"source": {"type": "string"}}
LIMIT: Final = NAMED | {"rows_per_s": {"type": ["number", "null"]}}
FLAGS: Final = ("duplicates_rows", "skips_messages", "dry_run")
REWIND: Final = NAMED | {"to": {"type": "string"}} | {f: {"type": "boolean"} for f in FLAGS}
router = APIRouter(prefix=f"{API}/sources", tags=["sources"])


Service = Annotated[SourceService, Depends(attached("source_service", SourceService))]
Trials = Annotated[SourceTrials, Depends(attached("source_trials", SourceTrials))]
Rewinds = Annotated[SourceRewinds, Depends(attached("source_rewinds", SourceRewinds))]
Branch = Annotated[str | None, Query(description="Only the sources that this branch has.")]


@router.get("")
async def list_sources(principal: Reader, service: Service, branch: Branch = None) -> Response:
    """List the sources of the workspace: state, rows, lag, positions and the last error."""
    wanted = None if branch is None else BranchName(branch)
    return json_response({"sources": await service.rows(principal.workspace, wanted)})


@router.post("/pause", openapi_extra=object_body(NAMED, NAMED))
async def pause(request: Request, state: State, principal: Committer, service: Service) -> Response:
    """Stop reading a source, in every branch, until it is resumed."""
    name = await _named(request, state)
    async with principal.audited(state, Action.PAUSE_SOURCE, f"source {name}"):
        await service.pause(principal.workspace, name, principal.access.actor)
    return json_response({"source": name, "state": "paused"})


@router.post("/resume", openapi_extra=object_body(NAMED, NAMED))
async def resume(
    request: Request, state: State, principal: Committer, service: Service
) -> Response:
    """Read a paused source on, from its position."""
    name = await _named(request, state)
    async with principal.audited(state, Action.RESUME_SOURCE, f"source {name}"):
        await service.resume(principal.workspace, name)
    return json_response({"source": name, "state": "resumed"})


@router.post("/limit", openapi_extra=object_body(LIMIT, tuple(LIMIT)))
async def limit(request: Request, state: State, principal: Committer, service: Service) -> Response:
    """Limit how many rows per second are read of a source, in every branch; null ends it."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(LIMIT))
    name, rows_per_s = required_string(body, "source"), optional_number(body, "rows_per_s")
    what = "none" if rows_per_s is None else f"{rows_per_s:g} rows/s"
    async with principal.audited(state, Action.LIMIT_SOURCE, f"source {name}, limit {what}"):
        await service.limit(principal.workspace, name, rows_per_s, principal.access.actor)
    return json_response({"source": name, "rows_per_s": rows_per_s})


@router.post("/test", openapi_extra=object_body(NAMED, NAMED))
async def test(request: Request, state: State, principal: Committer, trials: Trials) -> Response:
    """Read the newest messages of a stream and show what would become of them; moves nothing."""
    name = await _named(request, state)
    async with principal.audited(state, Action.TEST_SOURCE, f"source {name}"):
        found = await trials.run(principal.workspace, name)
    return json_response(found)


@router.post("/rewind", openapi_extra=object_body(REWIND, ("source", "to")))
async def rewind(
    request: Request, state: State, principal: Administrator, rewinds: Rewinds
) -> Response:
    """Move the positions of a paused stream; the response has the numbers of messages."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(REWIND))
    name, to = required_string(body, "source"), required_string(body, "to")
    flags = {flag: optional_flag(body, flag) for flag in FLAGS}
    dry_run = flags.pop("dry_run")
    subject = f"source {name}, to {to}" + ", ".join(["", *(f for f, yes in flags.items() if yes)])
    async with principal.audited(
        state, Action.REWIND_SOURCE, subject + (", dry run" if dry_run else "")
    ):
        done = await rewinds.run(principal.workspace, name, to, Consent(**flags), dry_run=dry_run)
    return json_response(done)


async def _named(request: Request, state: State) -> str:
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(NAMED))
    return required_string(body, "source")
