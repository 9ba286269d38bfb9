"""`/query_offline`: training data, as the public client asks for it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from fennel_core.connections.asgi import read_body
from fennel_core.connections.audit_events import Action
from fennel_core.definition.attached import attached
from fennel_core.definition.json_messages import json_body, json_response, object_body
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Reader, State
from fennel_core.offline.request_service import LISTED, OfflineRequests

MOST_LISTED: Final = 1000
_NAMES: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_PANDAS: Final = {
    "type": "object",
    "properties": {
        "Pandas": {"type": "object", "additionalProperties": {"type": "array", "items": {}}}
    },
    "required": ["Pandas"],
    "additionalProperties": False,
}
_BODY: Final = object_body(
    {
        "input_features": _NAMES,
        "output_features": _NAMES,
        "input": _PANDAS,
        "timestamp_column": {"type": "string"},
        "s3_output": {"type": "null"},
        "use_v2": {"type": "boolean"},
        "workflow": {"type": "string"},
        "num_dpus": {"type": "number"},
    },
    ("input", "input_features", "output_features", "timestamp_column"),
)

router = APIRouter(prefix=f"{API}/query_offline", tags=["query_offline"])


Requests = Annotated[OfflineRequests, Depends(attached("offline_requests", OfflineRequests))]
RequestId = Annotated[str, Query(description="As `POST /api/v1/query_offline` returned it.")]
Number = Annotated[int, Query(ge=0, description="Number of the file, from 0.")]
Failed = Annotated[bool, Query(description="The failed rows of the file, with reasons.")]
Rows = Annotated[int, Query(ge=1, le=MOST_LISTED, description="At most so many.")]


@router.post("", openapi_extra=_BODY)
async def submit(request: Request, state: State, principal: Reader, requests: Requests) -> Response:
    """Compute features as of a time per row; the response has the id of the request."""
    body = await read_body(request.scope, request.receive, state.settings.body_limit_bytes)
    key = (principal.workspace, principal.branch)
    async with principal.audited(state, Action.QUERY_OFFLINE, f"branch {principal.branch}"):
        status = await requests.submit(key, principal.access.actor, body)
    return json_response(status)


@router.get("/status")
async def status(request_id: RequestId, principal: Reader, requests: Requests) -> Response:
    """Return the state of a request, and its features if they are few."""
    return json_response(await requests.status(principal.workspace, request_id))


@router.get("/list")
async def newest(principal: Reader, requests: Requests, n: Rows = LISTED) -> Response:
    """List the newest requests of the workspace, newest first."""
    return json_response(await requests.newest(principal.workspace, n))


@router.post("/cancel")
async def cancel(
    request: Request, request_id: RequestId, state: State, principal: Reader, requests: Requests
) -> Response:
    """Cancel a request that has not ended."""
    await json_body(request, state.settings.body_limit_bytes, frozenset())
    subject = f"request {request_id}"
    async with principal.audited(state, Action.CANCEL_OFFLINE, subject):
        status = await requests.cancel(principal.workspace, request_id)
    return json_response(status)


@router.get("/file")
async def file(
    request_id: RequestId,
    principal: Reader,
    requests: Requests,
    number: Number = 0,
    failed: Failed = False,
) -> Response:
    """Return one file of a result, as Parquet; the files of the status are in order."""
    pieces = await requests.file(principal.workspace, request_id, number, failed)
    return StreamingResponse(pieces, media_type="application/vnd.apache.parquet")
