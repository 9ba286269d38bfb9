"""Alarms of the platform and retained assets, with the token of an operator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response

from fennel_core.connections.audit_events import Action, audited
from fennel_core.dead_letters.counts import DeadLetterCount
from fennel_core.dead_letters.postgres import PostgresDeadLetterCounts
from fennel_core.definition.errors import JsonMalformed
from fennel_core.definition.json_messages import json_body, json_response, required_string
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Operator, State, operator
from fennel_core.integrity import findings as integrity_findings
from fennel_core.ledger.purge import purge_retained
from fennel_core.snapshots import drills
from fennel_core.vocab.dead_letters import INGEST
from fennel_core.vocab.ids import AssetId, WorkspaceId

PURGE_FIELDS: Final = frozenset({"workspace", "assets", "allow_data_loss"})

router = APIRouter(
    prefix=f"{API}/operations", tags=["operations"], dependencies=[Depends(operator)]
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


@router.get("/integrity")
async def differing_lookups(state: State) -> Response:
    """List datasets whose lookups differed from a recompute when they were last checked."""
    differing = [
        {
            "workspace": each.workspace,
            "dataset": each.dataset,
            "job": each.job,
            "message": str(each),
            "keys_compared": each.compared,
            "seed": each.seed,
            "checked_at": each.at.isoformat(),
        }
        for each in await integrity_findings.failed_checks(state.pool)
    ]
    return json_response({"differing": differing})


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


@router.get("/dead_letters")
async def dead_letters(state: State) -> Response:
    """List how many rows of each workspace became dead letters, by dataset or job and reason."""
    counts = await PostgresDeadLetterCounts(state.pool).read()
    return json_response({"dead_letters": [dead_letter_row(each) for each in counts]})


@router.get("/retained")
async def retained_assets(state: State) -> Response:
    """List what no version needs any more and a commit can still revive."""
    assets = await state.ledger_context.ledger.run(lambda tx: tx.released())
    retained = [
        {
            "workspace": each.workspace,
            "asset": each.id,
            "kind": each.kind.value,
            "title": each.title,
            "released_at": _time(each.released_ms),
            "destroyed_after": None if each.ends_ms is None else _time(each.ends_ms),
        }
        for each in assets
    ]
    return json_response({"retained": retained})


@router.post("/purge")
async def purge(request: Request, state: State, caller: Operator) -> Response:
    """Destroy retained assets of a workspace before their grace period is over."""
    body = await json_body(request, state.settings.body_limit_bytes, PURGE_FIELDS)
    allowed = body.get("allow_data_loss", False)
    if not isinstance(allowed, bool):
        raise JsonMalformed("`allow_data_loss` in the request body must be true or false")
    workspace = WorkspaceId(required_string(body, "workspace"))
    assets = _asset_ids(body)
    subject = f"{len(assets)} retained assets, allow_data_loss={str(allowed).lower()}"
    async with audited(state.pool, caller.actor, Action.PURGE, subject, workspace):
        purged = await purge_retained(
            state.ledger_context, workspace, assets, allow_data_loss=allowed
        )
    state.wake_reconcile()
    return json_response({"purged": purged})


def _asset_ids(body: dict[str, Any]) -> frozenset[AssetId]:
    ids = body.get("assets")
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise JsonMalformed(
            "`assets` is required in the request body and must be a list of names that "
            "`GET /api/v1/operations/retained` returned"
        )
    return frozenset(AssetId(id_) for id_ in ids)


def dead_letter_row(each: DeadLetterCount) -> dict[str, Any]:
    """Return a count as the API lists it; `job` is null for rows that ingest refused."""
    writer = each.key.writer
    return {
        "workspace": each.workspace,
        "subject": each.key.subject,
        "job": None if writer in {"", INGEST} else writer,
        "kind": each.key.kind.value,
        "rows": each.count.rows,
        "open": each.count.open,
        "replayed": each.count.replayed,
        "dropped": each.count.dropped,
        "refused": each.count.refused,
        "superseded": each.count.superseded,
        "newest_at": _time(each.count.newest_ms),
        "newest_reason": each.count.newest_reason,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
