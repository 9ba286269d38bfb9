"""The plan of a commit as text: one line per asset that changes, the notices, and the totals.

The client prints these lines as they are. Nothing reads them back.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, assert_never

from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.plan_entries import PlanAction, PlanEntry, PlanRecord, RowAmount

_NOUN: Final = {
    AssetKind.TOPIC: "topic",
    AssetKind.RAW: "endpoint",
    AssetKind.REPLAYLOG: "replaylog",
    AssetKind.DEAD: "dead letters",
    AssetKind.JOB: "job",
}


def render(record: PlanRecord) -> tuple[str, ...]:
    """Return the lines of a plan; the last one has the totals."""
    lines = [
        f"{_verb(entry.action)} {_NOUN[entry.kind]} of {entry.title} ({_why(entry)})"
        for entry in record.entries
        if entry.action is not PlanAction.KEEP and entry.kind is not AssetKind.REPLAYLOG
    ]
    notices = [f"! {notice.text}" for notice in record.notices]
    return (*lines, *notices, totals(record))


def totals(record: PlanRecord) -> str:
    """Return the line with the number of assets by action; destroyed ones are released too."""
    count = Counter(entry.action for entry in record.entries)
    destroyed = count[PlanAction.DESTROY]
    parts = [
        f"{count[PlanAction.CREATE]} created",
        f"{count[PlanAction.KEEP]} kept",
        f"{count[PlanAction.ADOPT]} adopted",
        f"{count[PlanAction.RELEASE] + destroyed} released",
        f"{destroyed} destroyed",
    ]
    return f"assets: {', '.join(parts)}"


def _verb(action: PlanAction) -> str:
    match action:
        case PlanAction.CREATE:
            return "+ create"
        case PlanAction.ADOPT:
            return "~ adopt"
        case PlanAction.KEEP:
            return "= keep"
        case PlanAction.RELEASE:
            return "- release"
        case PlanAction.DESTROY:
            return "- release and destroy"
        case unreachable:
            assert_never(unreachable)


def _why(entry: PlanEntry) -> str:
    parts = [entry.reason]
    if entry.action is PlanAction.ADOPT:
        parts.append("shared with another branch")
    if entry.rows_lost is not None:
        parts.append(f"rows lost: {amount_text(entry.rows_lost)}")
    if entry.rows_to_recompute is not None:
        parts.append(f"rows to recompute: {amount_text(entry.rows_to_recompute)}")
    return "; ".join(parts)


def amount_text(amount: RowAmount | None) -> str:
    """Return an amount of rows as text; nothing if the question does not arise."""
    if amount is None:
        return ""
    if amount.messages is None:
        return "unknown"
    return f"those of {amount.messages:,} message{'' if amount.messages == 1 else 's'}"
