"""The plan of a commit as text: one line per asset that changes, the notices, and the totals.

The client prints these lines as they are. Nothing reads them back.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, assert_never

from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.plan_entries import (
    DeadLetterForecast,
    PlanAction,
    PlanEntry,
    PlanRecord,
    RowAmount,
)

_NOUN: Final = {
    AssetKind.TOPIC: "topic",
    AssetKind.RAW: "endpoint",
    AssetKind.POSITIONS: "positions",
    AssetKind.REPLAYLOG: "replaylog",
    AssetKind.DEAD: "dead letters",
    AssetKind.QUERY_LOG: "query log",
    AssetKind.SINK: "sink",
    AssetKind.JOB: "job",
}

_UNMENTIONED: Final = frozenset({AssetKind.REPLAYLOG, AssetKind.POSITIONS})
"""Kinds that come and go with another asset, which the plan lists."""


def render(record: PlanRecord) -> tuple[str, ...]:
    """Return the lines of a plan; the last one has the totals."""
    lines = [
        entry_line(entry)
        for entry in record.entries
        if entry.action is not PlanAction.KEEP and entry.kind not in _UNMENTIONED
    ]
    notices = [f"! {notice.text}" for notice in record.notices]
    return (*lines, *notices, totals(record))


def entry_line(entry: PlanEntry) -> str:
    """Return the line of one asset."""
    return f"{_verb(entry.action)} {_NOUN[entry.kind]} of {entry.title} ({_why(entry)})"


def totals(record: PlanRecord) -> str:
    """Return the line with the number of assets by action.

    What is retained or destroyed is released, too.
    """
    count = Counter(entry.action for entry in record.entries)
    destroyed = count[PlanAction.DESTROY]
    released = count[PlanAction.RELEASE] + count[PlanAction.RETAIN] + destroyed
    parts = [
        f"{count[PlanAction.CREATE]} created",
        f"{count[PlanAction.KEEP]} kept",
        f"{count[PlanAction.ADOPT]} adopted",
        *([f"{count[PlanAction.REVIVE]} revived"] if count[PlanAction.REVIVE] else []),
        f"{released} released",
        *([f"{count[PlanAction.RETAIN]} retained"] if count[PlanAction.RETAIN] else []),
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
        case PlanAction.REVIVE:
            return "~ revive"
        case PlanAction.RELEASE:
            return "- release"
        case PlanAction.RETAIN:
            return "- release and retain"
        case PlanAction.DESTROY:
            return "- release and destroy"
        case unreachable:
            assert_never(unreachable)


def _why(entry: PlanEntry) -> str:
    parts = [entry.reason]
    if entry.action is PlanAction.ADOPT:
        parts.append("shared with another branch")
    if entry.action is PlanAction.RETAIN:
        parts.append(_retained(entry))
    if entry.rows_lost is not None:
        parts.append(f"rows lost: {amount_text(entry.rows_lost)}")
    if entry.rows_to_recompute is not None:
        parts.append(_recomputed(entry, entry.rows_to_recompute))
    if entry.dead_letters is not None:
        parts.append(f"dead letters: {forecast_text(entry.dead_letters, entry.rows_to_recompute)}")
    return "; ".join(parts)


def _recomputed(entry: PlanEntry, amount: RowAmount) -> str:
    """Return what a new job or sink reads. A message of an endpoint holds requests."""
    if entry.kind is AssetKind.SINK:
        return f"rows from history that it starts with: {amount_text(amount)}"
    if entry.requests_of is None:
        return f"rows to recompute: {amount_text(amount)}"
    if amount.messages is None:
        return f"recompute an unknown number of requests of {entry.requests_of}"
    return f"recompute the requests of {entry.requests_of}: {amount_text(amount)}"


def forecast_text(forecast: DeadLetterForecast, amount: RowAmount | None) -> str:
    """Return how many rows become dead letters, and which were looked at to know it.

    `amount`: all messages of the endpoint.
    """
    if forecast.unchecked is not None:
        return f"not known, because {forecast.unchecked}"
    counted = f"{forecast.rows_dead:,} of {_count(forecast.rows_read, 'row')} read"
    total = None if amount is None else amount.messages
    if total is not None and total <= forecast.messages_read:
        return f"{counted}, which are all"
    of = "an unknown number of messages" if total is None else f"at most {_count(total, 'message')}"
    text = f"{counted}, in {forecast.messages_read:,} of {of}"
    if not forecast.only_in_history:
        return text
    unread = _count(forecast.only_in_history, "message")
    return f"{text}; of {unread} that only history holds, no row was read"


def _retained(entry: PlanEntry) -> str:
    if entry.retained_ms is None:
        return "retained until its loss is confirmed with allow_data_loss"
    return f"destroyed after {duration_text(entry.retained_ms)} unless a commit needs it again"


def duration_text(ms: int) -> str:
    """Return a duration in its largest whole unit."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms % size == 0 and ms >= size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def amount_text(amount: RowAmount | None) -> str:
    """Return an amount of rows as text; nothing if the question does not arise."""
    if amount is None:
        return ""
    if amount.messages is None:
        return "unknown"
    return f"those of at most {_count(amount.messages, 'message')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
