"""The pages of offline queries: the newest requests, and one with what it has or why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import psycopg
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from fennel_airflow.page_source import PAGE_ROWS, PageSource
from fennel_core.offline.request_postgres import COLUMNS, request_of_row
from fennel_core.offline.request_row import OfflineRequest
from fennel_core.offline.request_status import ResultPlaces, status_of, summary_of

DAG_ID: Final = "offline_query"
_VISIBLE: Final = "(%(visible)s::text[] IS NULL OR workspace = ANY(%(visible)s))"
REQUESTS: Final = f"""
SELECT {COLUMNS} FROM offline_query
WHERE (%(workspace)s::text IS NULL OR workspace = %(workspace)s) AND {_VISIBLE}
    AND (%(before)s::timestamptz IS NULL OR created_at < %(before)s)
ORDER BY created_at DESC, id DESC LIMIT %(rows)s
"""  # noqa: S608  # built from constants
REQUEST: Final = f"SELECT {COLUMNS} FROM offline_query WHERE id = %(request)s AND {_VISIBLE}"  # noqa: S608  # built from constants


def router(source: PageSource) -> APIRouter:
    """Return the routes."""
    found = APIRouter()
    kept = timedelta(days=source.settings.offline_result_days)
    places = ResultPlaces(source.settings.s3_bucket, "", kept)

    @found.get("/offline_queries")
    def requests(
        user: GetUserDep,
        workspace: str | None = Query(None, max_length=63),
        before: datetime | None = None,
    ) -> HTMLResponse:
        visible, now = source.users.readable(user.get_name()), datetime.now(UTC)
        selected = {"workspace": workspace or None, "visible": visible, "before": before}
        rows = _read(source.dsn, REQUESTS, selected | {"rows": PAGE_ROWS + 1})
        shown = rows[:PAGE_ROWS]
        older = shown[-1].created_at.isoformat() if len(rows) > PAGE_ROWS else None
        query = f"&workspace={quote(workspace)}" if workspace else ""
        return source.page(
            "offline_queries.html",
            requests=[summary_of(row, places) | _links(row, now) for row in shown],
            workspace=workspace or "",
            older=older and f"?before={quote(older)}{query}",
            now=now,
        )

    @found.get("/offline_queries/{request_id}")
    def one(request_id: str, user: GetUserDep) -> HTMLResponse:
        visible = source.users.readable(user.get_name())
        rows = _read(source.dsn, REQUEST, {"request": request_id, "visible": visible})
        if not rows:
            return source.page("unknown_offline_query.html", status=404, request_id=request_id)
        [row] = rows
        shown = status_of(row, places) | _links(row, datetime.now(UTC))
        return source.page("offline_query.html", request=shown)

    return found


def _links(row: OfflineRequest, now: datetime) -> dict[str, Any]:
    """Return what a page shows besides the status of a request."""
    run = row.newest_run
    return {
        "workspace": row.workspace,
        "age": age_text(now - row.created_at),
        "is_open": row.is_open,
        "run": run and f"/dags/{DAG_ID}/runs/{quote(run)}",
        "failure": row.failure,
    }


def age_text(age: timedelta) -> str:
    """Return an age in its largest unit."""
    seconds = max(0, int(age.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _read(dsn: str, query: str, values: dict[str, object]) -> Sequence[OfflineRequest]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(query.encode(), values).fetchall()
    return [request_of_row(row) for row in rows]
