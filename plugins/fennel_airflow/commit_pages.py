"""The pages of commits: the recent ones, and one with its ledgers and jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from fennel_airflow.connector_rows import ConnectorRows
from fennel_airflow.page_source import PAGE_ROWS, PageSource, Row
from fennel_core.blueprints.plan_entries import PlanAction, PlanRecord, decode_record
from fennel_core.blueprints.plan_text import totals

DAG_ID: Final = "commit"

COMMITS: Final = """
SELECT c.id, c.workspace, c.branch, c.state, c.error, c.error_code, c.created_at,
    c.finished_at, c.attempt,
       b.target = c.id AS is_target, b.serving = c.id AS is_serving
FROM commit c LEFT JOIN branch b ON b.workspace = c.workspace AND b.name = c.branch
WHERE (%(workspace)s::text IS NULL OR c.workspace = %(workspace)s)
    AND (%(visible)s::text[] IS NULL OR c.workspace = ANY(%(visible)s))
    AND (%(before)s::timestamptz IS NULL OR c.created_at < %(before)s)
ORDER BY c.created_at DESC LIMIT %(rows)s
"""
COMMIT: Final = """
SELECT c.id, c.workspace, c.branch, c.state, c.plan::text AS plan, c.stuck, c.error, c.error_code,
    c.problems, c.created_at, c.finished_at, c.attempt, c.options, c.base, c.catalog,
       b.target = c.id AS is_target, b.serving = c.id AS is_serving
FROM commit c LEFT JOIN branch b ON b.workspace = c.workspace AND b.name = c.branch WHERE c.id =
    %(commit)s AND (%(visible)s::text[] IS NULL OR c.workspace = ANY(%(visible)s))
"""
ENTRIES: Final = """
SELECT e.ledger, e.state, e.attempts, e.error, e.updated_at, e.asset_id, a.kind, a.title
FROM ledger_entry e JOIN asset a ON a.id = e.asset_id WHERE e.commit_id = %(commit)s ORDER BY
    e.ledger, e.id
"""
JOBS: Final = """
SELECT p.job_id, a.title, p.part, p.status, p.lag, p.error, p.slot_id
FROM asset_ref r JOIN job_partition p ON p.job_id = r.asset_id JOIN asset a ON a.id = p.job_id
WHERE r.commit_id = %(commit)s ORDER BY p.status = 'running', p.job_id, p.part LIMIT 500
"""
DEAD_LETTERS: Final = """
SELECT c.subject, c.kind, c.row_count, c.newest_at, c.newest_reason,
    c.row_count - c.replayed_rows - c.dropped_rows - c.refused_rows - c.superseded_rows
        AS open_rows
FROM asset_ref r JOIN dead_letter_count c ON c.topic = r.asset_id
WHERE r.commit_id = %(commit)s ORDER BY c.newest_at DESC LIMIT 500
"""


def router(source: PageSource) -> APIRouter:
    """Return the routes."""
    found = APIRouter()

    @found.get("/commits")
    def commits(
        user: GetUserDep,
        workspace: str | None = Query(None, max_length=63),
        before: datetime | None = None,
    ) -> HTMLResponse:
        visible = source.users.readable(user.get_name())
        selected = {"workspace": workspace or None, "visible": visible, "before": before}
        rows = source.rows(COMMITS, selected | {"rows": PAGE_ROWS + 1})
        older = rows[PAGE_ROWS - 1]["created_at"].isoformat() if len(rows) > PAGE_ROWS else None
        shown = [{**row, "run": run_link(row)} for row in rows[:PAGE_ROWS]]
        query = f"&workspace={quote(workspace)}" if workspace else ""
        return source.page(
            "commits.html",
            commits=shown,
            workspace=workspace or "",
            older=older and f"?before={quote(older)}{query}",
            now=datetime.now(UTC),
        )

    @found.get("/commits/{commit_id}")
    def one(commit_id: str, user: GetUserDep) -> HTMLResponse:
        visible = source.users.readable(user.get_name())
        rows = source.rows(COMMIT, {"commit": commit_id, "visible": visible})
        if not rows:
            return source.page("unknown.html", status=404, commit_id=commit_id)
        entries = source.rows(ENTRIES, {"commit": commit_id})
        jobs = source.rows(JOBS, {"commit": commit_id})
        connectors = ConnectorRows(source, rows[0])
        stored = rows[0]["plan"]
        plan = PlanRecord(()) if stored is None else decode_record(stored.encode())
        return source.page(
            "commit.html",
            commit={**rows[0], "run": run_link(rows[0])},
            options=option_texts(rows[0]["options"]),
            plan=[e for e in plan.entries if e.action is not PlanAction.KEEP],
            notices=plan.notices,
            totals=None if stored is None else totals(plan),
            entries=entries,
            jobs=jobs,
            sources=connectors.sources(),
            sinks=connectors.sinks(),
            dead_letters=source.rows(DEAD_LETTERS, {"commit": commit_id}),
        )

    return found


def option_texts(options: Mapping[str, object]) -> list[str]:
    """Return the options of a commit as its author would read them, in their order."""
    shown = {True: "yes", False: "no"}
    return [
        f"{name.replace('_', ' ')}: {shown[value] if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]


def run_link(row: Row) -> str | None:
    """Return the path of the commit's newest DAG run, None if the server did not start one."""
    return (
        f"/dags/{DAG_ID}/runs/{quote(run_id(str(row['id']), int(row['attempt'])))}"
        if row["attempt"]
        else None
    )


def run_id(commit_id: str, attempt: int) -> str:
    """Return the id of the DAG run for one attempt of a commit (as `definition/airflow.py`)."""
    return f"commit-{commit_id}-{attempt}"
