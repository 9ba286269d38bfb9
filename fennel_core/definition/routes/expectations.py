"""How many rows are as the expectations of the workspace's datasets say."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response

from fennel_core.data_quality.postgres import ExpectationCount, PostgresQualityCounts
from fennel_core.definition.json_messages import json_response
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Reader, State

MAX_LISTED: Final = 10_000
router = APIRouter(prefix=API, tags=["expectations"])


@router.get("/expectations")
async def get_expectations(state: State, principal: Reader) -> Response:
    """List the expectations of the workspace's datasets with the rows that they have counted."""
    counts = await PostgresQualityCounts(state.pool).read(MAX_LISTED, [principal.workspace])
    return json_response({"expectations": [expectation_row(each) for each in counts]})


def expectation_row(each: ExpectationCount) -> dict[str, Any]:
    """Return a count as the API lists it."""
    return {
        "dataset": each.dataset,
        "topic": each.topic,
        "expectation": each.kind,
        "arguments": each.arguments,
        "mostly": each.mostly,
        "rows_evaluated": each.evaluated,
        "rows_failed": each.failed,
        "share_passed": each.share,
        "is_met": each.is_met,
        "last_failed_at": None if each.failed_at is None else each.failed_at.isoformat(),
    }
