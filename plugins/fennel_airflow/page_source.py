"""What the pages of the plugin read from, and how they are rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
import psycopg
from fastapi.responses import HTMLResponse
from psycopg.rows import dict_row

from fennel_core.blueprints.plan_text import amount_text
from fennel_core.connections.airflow_users import AirflowUsers
from fennel_core.connections.postgres import conninfo
from fennel_core.settings.model import Settings

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


@dataclass(frozen=True, slots=True)
class PageSource:
    """The platform's database, who may see what of it, and the templates."""

    settings: Settings
    users: AirflowUsers
    dsn: str
    templates: jinja2.Environment

    @classmethod
    def of(cls, settings: Settings) -> PageSource:
        """Return the source; nothing is read yet."""
        dsn = conninfo(
            settings.postgres_dsn.get_secret_value(),
            name="fennel-airflow-page",
            statement_timeout_ms=STATEMENT_TIMEOUT_MS,
        )
        return cls(settings, AirflowUsers.parse(settings.airflow_workspaces), dsn, _templates())

    def page(self, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """Return a rendered page."""
        text = self.templates.get_template(template).render(**values)
        return HTMLResponse(text, status, headers=HEADERS)

    def rows(self, query: str, values: Mapping[str, object]) -> Sequence[Row]:
        """Return the rows of a query by the names of their columns."""
        with psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row) as connection:
            return connection.execute(query.encode(), values).fetchall()


def _templates() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    templates.filters["amount"] = amount_text
    return templates
