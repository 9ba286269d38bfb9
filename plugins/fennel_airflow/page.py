"""The page of the plugin: recent commits, and one commit with its ledgers and jobs.

It is a read-only view of the platform's database, rendered on the server. Airflow authorizes every
request: users may see the page if they may see runs of the `commit` DAG, and of it the commits of
the workspaces that FENNEL_AIRFLOW_WORKSPACES lets them read. Text written by users is
not trusted: the template engine escapes every value, and the response forbids scripts, external
content and external frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
import psycopg
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, Query
from fastapi.responses import HTMLResponse
from psycopg.rows import dict_row

from fennel_core.blueprints.plan_entries import PlanAction, PlanRecord, decode_record
from fennel_core.blueprints.plan_text import amount_text, totals
from fennel_core.connections.airflow_users import AirflowUsers
from fennel_core.connections.postgres import conninfo
from fennel_core.settings.model import Settings

DAG_ID: Final = "commit"
PAGE_ROWS: Final = 50
STATEMENT_TIMEOUT_MS: Final = 3_000
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

Row = Mapping[str, Any]

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
    c.problems, c.created_at, c.finished_at, c.attempt, c.options, c.base,
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


def application() -> FastAPI:
    """Return the sub-application that Airflow mounts.

    Every route requires the permission to see runs of the commit DAG.
    """
    guard = Depends(requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=DAG_ID))
    app = FastAPI(
        title="Fennel commits",
        dependencies=[guard],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    templates = _templates()
    settings = Settings()
    users = AirflowUsers.parse(settings.airflow_workspaces)
    dsn = conninfo(
        settings.postgres_dsn.get_secret_value(),
        name="fennel-airflow-page",
        statement_timeout_ms=STATEMENT_TIMEOUT_MS,
    )

    def page(template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        text = templates.get_template(template).render(**values)
        return HTMLResponse(text, status, headers=HEADERS)

    @app.get("/commits")
    def commits(
        user: GetUserDep,
        workspace: str | None = Query(None, max_length=63),
        before: datetime | None = None,
    ) -> HTMLResponse:
        visible = users.readable(user.get_name())
        selected = {"workspace": workspace or None, "visible": visible, "before": before}
        rows = _read(dsn, COMMITS, selected | {"rows": PAGE_ROWS + 1})
        older = rows[PAGE_ROWS - 1]["created_at"].isoformat() if len(rows) > PAGE_ROWS else None
        shown = [{**row, "run": run_link(row)} for row in rows[:PAGE_ROWS]]
        query = f"&workspace={quote(workspace)}" if workspace else ""
        return page(
            "commits.html",
            commits=shown,
            workspace=workspace or "",
            older=older and f"?before={quote(older)}{query}",
            now=datetime.now(UTC),
        )

    @app.get("/commits/{commit_id}")
    def one(commit_id: str, user: GetUserDep) -> HTMLResponse:
        visible = users.readable(user.get_name())
        rows = _read(dsn, COMMIT, {"commit": commit_id, "visible": visible})
        if not rows:
            return page("unknown.html", status=404, commit_id=commit_id)
        entries = _read(dsn, ENTRIES, {"commit": commit_id})
        jobs = _read(dsn, JOBS, {"commit": commit_id})
        stored = rows[0]["plan"]
        plan = PlanRecord(()) if stored is None else decode_record(stored.encode())
        return page(
            "commit.html",
            commit={**rows[0], "run": run_link(rows[0])},
            options=option_texts(rows[0]["options"]),
            plan=[e for e in plan.entries if e.action is not PlanAction.KEEP],
            notices=plan.notices,
            totals=None if stored is None else totals(plan),
            entries=entries,
            jobs=jobs,
        )

    return app


def _templates() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    templates.filters["amount"] = amount_text
    return templates


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


def _read(dsn: str, query: str, values: Mapping[str, object]) -> Sequence[Row]:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        return connection.execute(query.encode(), values).fetchall()
