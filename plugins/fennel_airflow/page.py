"""The pages of the plugin: commits (`commit_pages`), offline queries (`offline_pages`) and
expectations (`expectation_pages`).

They are a read-only view of the platform's database, rendered on the server. Airflow authorizes
every request: users may see a page if they may see runs of its DAG, and of it the rows of the
workspaces that FENNEL_AIRFLOW_WORKSPACES lets them read. Text written by users is not trusted: the
template engine escapes every value, and the response forbids scripts, external content and external
frames.
"""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request

from fennel_airflow import commit_pages, expectation_pages, offline_pages
from fennel_airflow.page_source import PageSource
from fennel_core.settings.model import Settings


def application() -> FastAPI:
    """Return the sub-application that Airflow mounts.

    Every route requires the permission to see runs of the DAG that it shows.
    """
    app = FastAPI(title="Fennel", docs_url=None, redoc_url=None, openapi_url=None)
    source = PageSource.of(Settings())
    for pages in (commit_pages, offline_pages, expectation_pages):
        guard = requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=pages.DAG_ID)
        depends = [Depends(guard), Depends(_refuse_nul)]
        app.include_router(pages.router(source), dependencies=depends)
    return app


def _refuse_nul(request: Request) -> None:
    """Raise 404 for a character that no text of the database has, and that Postgres refuses."""
    given = (*request.path_params.values(), *request.query_params.values())
    if any("\0" in str(value) for value in given):
        raise HTTPException(404, "Not found")
