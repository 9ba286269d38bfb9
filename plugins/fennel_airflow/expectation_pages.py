"""The page of expectations: how many rows of each dataset are as they say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from fennel_airflow.page_source import PageSource, Row
from fennel_core.data_quality.postgres import COLUMNS, IS_UNMET, ORDER, ExpectationCount

DAG_ID: Final = "commit"
ROWS: Final = 500
COUNTS: Final = f"""
SELECT {COLUMNS} FROM expectation_count
WHERE (%(workspace)s::text IS NULL OR workspace = %(workspace)s)
    AND (%(visible)s::text[] IS NULL OR workspace = ANY(%(visible)s))
ORDER BY {IS_UNMET} DESC, {ORDER} LIMIT %(rows)s
"""  # noqa: S608  # built from constants
HIDDEN: Final = frozenset({"mostly", "result_format", "include_config", "catch_exceptions", "meta"})
"""Arguments that have a column of their own, or say nothing about rows."""


def router(source: PageSource) -> APIRouter:
    """Return the routes."""
    found = APIRouter()

    @found.get("/expectations")
    def expectations(
        user: GetUserDep, workspace: str | None = Query(None, max_length=63)
    ) -> HTMLResponse:
        visible = source.users.readable(user.get_name())
        selected = {"workspace": workspace or None, "visible": visible, "rows": ROWS}
        counts = [_shown(row) for row in source.rows(COUNTS, selected)]
        return source.page(
            "expectations.html",
            counts=counts,
            workspace=workspace or "",
            limit=ROWS,
            now=datetime.now(UTC),
        )

    return found


def _shown(row: Row) -> dict[str, Any]:
    """Return what the page shows of a count."""
    count = ExpectationCount(**row)
    given = json.loads(count.arguments)
    # A limit of 0 is an argument; False is what the client sends for options that are not in use.
    texts = [
        f"{name}={value!r}"
        for name, value in given.items()
        if name not in HIDDEN and value is not None and value is not False
    ]
    return {**row, "arguments": ", ".join(texts), "share": count.share, "is_met": count.is_met}
