"""Alarms of the platform, with the administrator's token."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from fennel_core.definition.json_messages import json_response
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import State, require_admin
from fennel_core.snapshots import drills

router = APIRouter(
    prefix=f"{API}/operations", tags=["operations"], dependencies=[Depends(require_admin)]
)


@router.get("/needed")
async def needed_records(state: State) -> Response:
    """List job partitions that need records which are lost or about to expire."""
    alarms = [
        {
            "job": a.job,
            "part": a.part,
            "topic": a.topic,
            "problem": a.problem.value,
            "message": a.message,
        }
        for a in state.alarms()
    ]
    return json_response({"alarms": alarms})


@router.get("/drills")
async def failed_drills(state: State) -> Response:
    """List job partitions whose last drill failed."""
    failed = [
        {
            "job": each.job,
            "part": each.part,
            "title": each.title,
            "verdict": each.finding.verdict.value,
            "message": str(each),
            "live_hash": each.finding.live_hash,
            "drilled_hash": each.finding.drilled_hash,
            "drilled_at": each.at.isoformat(),
        }
        for each in await drills.failed_drills(state.pool)
    ]
    return json_response({"drills": failed})


@router.get("/reconcile")
async def failing_items(state: State) -> Response:
    """List what this server's reconcile loop fails to finish, and when it tries again."""
    failing = [
        {
            "kind": each.item.kind.value,
            "workspace": each.item.workspace,
            "commit": each.item.commit,
            "attempts": each.attempts,
            "retry_seconds": round(each.retry_seconds, 1),
            "error": each.error,
        }
        for each in state.failing_items()
    ]
    return json_response({"failing": failing})
