"""The control API over HTTP.

A route turns a request into values, calls one function, and turns the result into JSON. The token
identifies the workspace, the header `X-FENNEL-BRANCH` selects the branch (`server_state.py`). The
public client treats every status except 200 as an error, requires JSON in every 200, and shows the
plain text of any other response, so errors are sentences (`telemetry/errors.py`). The limit on
request bodies is enforced while they are read (`connections/asgi.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import psycopg
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fennel_core.connections.api_errors import CallOutcomeUnknown, DatabaseUnavailable
from fennel_core.connections.asgi import ClientDisconnected
from fennel_core.connections.errors import ConnectionsError, TransactionOutcomeUnknown
from fennel_core.definition.errors import ValueNotStorable
from fennel_core.definition.openapi import describe
from fennel_core.definition.routes import (
    API,
    audit,
    branches,
    commits,
    connectors,
    expectations,
    lineage,
    operations,
    secrets,
    tokens,
    workspaces,
)
from fennel_core.definition.server_state import ServerState
from fennel_core.telemetry import errors, metrics
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.errors import ApiError

ROUTERS = (
    commits.router,
    branches.router,
    secrets.router,
    connectors.router,
    *tokens.ROUTERS,
    audit.router,
    workspaces.router,
    operations.router,
    lineage.router,
    expectations.router,
)


def application(
    state: ServerState, health: HealthEndpoint, more: Sequence[APIRouter] = ()
) -> FastAPI:
    """Return the definition server's application; `more`: routes of other packages."""
    app = FastAPI(
        title="Fennel definition server",
        version="1",
        docs_url=f"{API}/docs",
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        redirect_slashes=False,
    )
    errors.install(app)
    app.add_exception_handler(ClientDisconnected, client_disconnected)
    app.add_exception_handler(ConnectionsError, database_unavailable)
    app.add_exception_handler(TransactionOutcomeUnknown, call_outcome_unknown)
    app.add_exception_handler(psycopg.OperationalError, database_unavailable)
    app.add_exception_handler(psycopg.DataError, value_not_storable)
    health.mount(app)
    app.state.server_state = state
    app.add_middleware(RequestMetrics)
    for router in (*ROUTERS, *more):
        app.include_router(router)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


async def client_disconnected(_request: Request, _error: Exception) -> Response:
    """End a request whose client is gone; 499 appears in metrics only."""
    return Response(status_code=499)


async def database_unavailable(request: Request, error: Exception) -> Response:
    """Respond 503; every call may be repeated."""
    return _response(request, DatabaseUnavailable(f"{error}. Try again"))


async def call_outcome_unknown(request: Request, error: Exception) -> Response:
    """Respond 503 to a call whose COMMIT had no response."""
    return _response(request, CallOutcomeUnknown(error))


async def value_not_storable(request: Request, error: Exception) -> Response:
    """Respond 400 to a value that Postgres rejected; nothing changed."""
    reason = str(error).strip().splitlines()[0]
    return _response(request, ValueNotStorable(f"the request has an invalid value: {reason}"))


def _response(request: Request, error: ApiError) -> Response:
    return errors.response_of(error, as_json=errors.wants_json(request.headers.get("accept")))


class RequestMetrics:
    """Middleware that counts and times requests by the pattern of their route.

    The path itself would turn names of secrets and branches into labels.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 499

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_status)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "unknown").removeprefix(f"{API}/")
            metrics.REQUESTS.labels(route, scope["method"], status).inc()
            metrics.REQUEST_SECONDS.labels(route, scope["method"]).observe(seconds)
