"""The control plane over HTTP: what each path means, and nothing else.

Theory. A route turns a request into values, calls one function, and turns the result into JSON; who
the caller is comes from the token, where he works from `X-FENNEL-BRANCH`. The public client calls
only status 200 a success, wants JSON in every 200, and shows a plain text of any other answer, so
errors are sentences (`telemetry.errors`). Bodies are counted while they are read: an announced
length over the limit is refused before the first byte, an unannounced one at the byte that passes
it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import psycopg
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fennel_core.connections import secrets, tokens, workspaces
from fennel_core.connections.asgi import ClientDisconnected, read_body
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.postgres import Pool
from fennel_core.definition import commit_request
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.lineage import BranchVersion, lineage, xray
from fennel_core.ledger import branches
from fennel_core.ledger.store import CommitOptions
from fennel_core.settings.model import Orchestrator, Settings
from fennel_core.snapshots import drills
from fennel_core.snapshots.log_retention import RetentionAlarm
from fennel_core.telemetry import errors, metrics
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, WorkspaceId

ORCHESTRATOR_HEADER: Final = "X-Fennel-Orchestrator"
API: Final = "/api/v1"
BRANCH_NAME: Final = re.compile(r"^[a-zA-Z0-9_.\-/]{1,200}$")
DELETE_SECONDS: Final = 10.0
"""How long the deletion of a workspace is waited for; it goes on by itself after that."""
DELETE_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the routes work with. `wake` asks recovery to look now. `sealer` None: no key file is
    configured.
    """

    settings: Settings
    pool: Pool
    commits: CommitService
    inline: CommitService
    """The same flow with its steps in this process, for callers in development mode that ask for
    it.
    """
    sealer: secrets.Sealer | None
    wake: Callable[[], None]
    alarms: Callable[[], Sequence[RetentionAlarm]] = tuple
    """What the watch over needed records found last."""


@dataclass(frozen=True, slots=True)
class Principal:
    workspace: WorkspaceId
    branch: BranchName


def application(office: ServerState, health: HealthEndpoint) -> FastAPI:
    """The definition server."""
    app = FastAPI(
        title="Fennel definition server",
        version="1",
        docs_url=f"{API}/docs",
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    errors.install(app)
    app.add_exception_handler(ClientDisconnected, client_disconnected)
    app.add_exception_handler(ConnectionsError, database_away)
    app.add_exception_handler(psycopg.DataError, unusable_text)
    health.mount(app)
    app.state.office = office
    app.add_middleware(RequestMetrics)
    for router in (
        commit_routes,
        branch_routes,
        secret_routes,
        workspace_routes,
        operations_routes,
        lineage_routes,
    ):
        app.include_router(router)
    return app


async def database_away(request: Request, error: Exception) -> Response:
    """Nobody knows whether the call did anything: all of them may be repeated."""
    away = ApiError(503, "database-unavailable", f"{error}: try again")
    return errors.response_of(away, as_json=errors.wants_json(request.headers.get("accept")))


async def client_disconnected(_request: Request, _error: Exception) -> Response:
    """End a request whose client is gone; 499 appears in metrics only."""
    return Response(status_code=499)


async def unusable_text(request: Request, error: Exception) -> Response:
    """A value that cannot be stored, such as a text with a zero byte: nothing was done."""
    unusable = ApiError(
        400,
        "value-unusable",
        f"a value of the request cannot be stored: {str(error).strip().splitlines()[0]}",
    )
    return errors.response_of(unusable, as_json=errors.wants_json(request.headers.get("accept")))


class RequestMetrics:
    """Counts and times each request by its route's pattern, so that names of secrets or branches
    never become labels.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 499

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "unknown").removeprefix(f"{API}/")
            metrics.REQUESTS.labels(route, scope["method"], status).inc()
            metrics.REQUEST_SECONDS.labels(route, scope["method"]).observe(
                time.perf_counter() - began
            )


# --- who calls, and with what ---------------------------------------------------------------------


def office_of(request: Request) -> ServerState:
    office = request.app.state.office
    assert isinstance(office, ServerState)
    return office


async def caller_of(
    office: Annotated[ServerState, Depends(office_of)],
    authorization: Annotated[str | None, Header()] = None,
    x_fennel_branch: Annotated[str, Header()] = MAIN_BRANCH,
) -> Principal:
    return Principal(
        await tokens.workspace_of(office.pool, office.settings, authorization),
        BranchName(x_fennel_branch),
    )


async def administrator(
    office: Annotated[ServerState, Depends(office_of)],
    authorization: Annotated[str | None, Header()] = None,
) -> None:
    tokens.require_admin(office.settings, authorization)


TheOffice = Annotated[ServerState, Depends(office_of)]
TheCaller = Annotated[Principal, Depends(caller_of)]


async def json_of(request: Request, office: ServerState) -> dict[str, Any]:
    """The body as a JSON object; no body is an empty one."""
    body = await read_body(request.scope, request.receive, office.settings.body_limit_bytes)
    try:
        value = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
        raise ApiError(400, "json-malformed", f"the body is not JSON: {malformed}") from malformed
    if not isinstance(value, dict):
        raise ApiError(400, "json-malformed", "the body must be a JSON object")
    return value


def text_in(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ApiError(400, "json-malformed", f"the body needs `{name}`, a string")
    return value


def answer(value: Any) -> Response:
    """200 with a JSON body; the client needs exactly this content type."""
    return Response(msgspec.json.encode(value), headers={"content-type": "application/json"})


# --- commits --------------------------------------------------------------------------------------

commit_routes = APIRouter(prefix=API, tags=["commit"])


@commit_routes.post("/commit")
async def commit(
    request: Request,
    office: TheOffice,
    caller: TheCaller,
    preview: Annotated[bool, Query(description="Show what would be done, and do nothing.")] = False,
    incremental: Annotated[bool, Query(description="Add to what the branch has.")] = False,
    backfill: Annotated[
        bool, Query(description="May anything be computed again from existing data?")
    ] = True,
) -> Response:
    """Replace (or, incrementally, extend) what the branch defines. The body is the client's
    SyncRequest.
    """
    body = await read_body(request.scope, request.receive, office.settings.body_limit_bytes)
    wanted = commit_request.CommitRequest(
        caller.workspace, caller.branch, body, CommitOptions(incremental, backfill)
    )
    flow = commits_of(office, request)
    lines = await (flow.steps.preview(wanted) if preview else flow.commit(wanted))
    office.wake()
    return answer({"summary": [f"{line}\n" for line in lines]})


def commits_of(office: ServerState, request: Request) -> CommitService:
    """Who runs the steps: as configured, or in this process when the request says so and this is a
    development platform.
    """
    asked = request.headers.get(ORCHESTRATOR_HEADER)
    if asked in (None, office.settings.orchestrator):
        return office.commits
    if asked != Orchestrator.INLINE or not office.settings.dev_tokens:
        raise ApiError(
            400,
            "orchestrator",
            f"header `{ORCHESTRATOR_HEADER}: {asked}` is refused: leave it out, or "
            "send `inline` in development mode",
        )
    return office.inline


# --- branches -------------------------------------------------------------------------------------

branch_routes = APIRouter(prefix=API, tags=["branch"])


@branch_routes.post("/init")
async def init(request: Request, office: TheOffice, caller: TheCaller) -> Response:
    """Make the branch that the header names: empty, or as a clone of `clone_from`."""
    body = await json_of(request, office)
    if BRANCH_NAME.match(caller.branch) is None:
        raise ApiError(
            400,
            "branch-name",
            f"branch `{caller.branch}`: a name is 1 to 200 letters, digits and the "
            "characters `_`, `.`, `-` and `/`",
        )
    context = office.commits.steps.context
    if body.get("clone_from") is None:
        await branches.init_branch(context, caller.workspace, caller.branch)
    else:
        await branches.clone_branch(
            context, caller.workspace, caller.branch, BranchName(text_in(body, "clone_from"))
        )
    return answer({"name": caller.branch})


@branch_routes.post("/delete")
async def delete(office: TheOffice, caller: TheCaller) -> Response:
    """Delete the branch that the header names; what nobody else uses is destroyed."""
    await branches.delete_branch(office.commits.steps.context, caller.workspace, caller.branch)
    office.wake()
    return answer({})


@branch_routes.get("/branch/list")
async def list_branches(office: TheOffice, caller: TheCaller) -> Response:
    """All branches, in order of creation."""
    found = await office.commits.steps.context.ledger.run(lambda tx: tx.branches(caller.workspace))
    return answer({"branches": [{"name": branch.name} for branch in found]})


# --- secrets --------------------------------------------------------------------------------------

secret_routes = APIRouter(prefix=f"{API}/secret", tags=["secret"])


def sealer_of(office: ServerState) -> secrets.Sealer:
    if office.sealer is None:
        raise ApiError(
            503,
            "secrets-unavailable",
            "this platform keeps no secrets: set FENNEL_SECRETS_KEY_FILE to a key "
            "file and restart the servers",
        )
    return office.sealer


@secret_routes.get("/{name:path}")
async def get_secret(name: str, office: TheOffice, caller: TheCaller) -> Response:
    try:
        value = await secrets.get(office.pool, sealer_of(office), caller.workspace, name)
    except secrets.SecretUnreadable as closed:
        raise ApiError(500, "secret-sealed", str(closed)) from closed
    if value is None:
        raise ApiError(
            500,
            "secret-not-found",
            f"Failed to get user secret mapping: secret `{name}` does not exist",
        )
    return answer({"value": value})


@secret_routes.post("/{name:path}")
async def add_secret(name: str, request: Request, office: TheOffice, caller: TheCaller) -> Response:
    """Set a secret, new or not."""
    await _put_secret(name, await json_of(request, office), office, caller)
    return answer({})


@secret_routes.patch("/{name:path}")
async def update_secret(
    name: str, request: Request, office: TheOffice, caller: TheCaller
) -> Response:
    """Change a secret that is there."""
    body = await json_of(request, office)
    if name not in await secrets.names(office.pool, caller.workspace):
        raise _no_secret(name)
    await _put_secret(name, body, office, caller)
    return answer({})


@secret_routes.delete("/{name:path}")
async def delete_secret(name: str, office: TheOffice, caller: TheCaller) -> Response:
    if not await secrets.delete(office.pool, caller.workspace, name):
        raise _no_secret(name)
    return answer({})


async def _put_secret(
    name: str, body: dict[str, Any], office: ServerState, caller: Principal
) -> None:
    try:
        await secrets.put(
            office.pool, sealer_of(office), caller.workspace, name, text_in(body, "value")
        )
    except ValueError as unusable:
        raise ApiError(400, "secret-unusable", str(unusable)) from unusable


def _no_secret(name: str) -> ApiError:
    return ApiError(404, "secret-not-found", f"secret `{name}` does not exist: add it first")


# --- workspaces -----------------------------------------------------------------------------------

workspace_routes = APIRouter(
    prefix=f"{API}/workspaces", tags=["workspace"], dependencies=[Depends(administrator)]
)


@workspace_routes.get("")
async def list_workspaces(office: TheOffice) -> Response:
    found = await workspaces.list_all(office.pool)
    return answer(
        {
            "workspaces": [
                {"name": w.name, "state": w.state, "created_at": w.created_at.isoformat()}
                for w in found
            ]
        }
    )


@workspace_routes.post("")
async def create_workspace(request: Request, office: TheOffice) -> Response:
    """Make a workspace; its token is in the answer and nowhere else."""
    name = text_in(await json_of(request, office), "name")
    return answer({"name": name, "token": await workspaces.create(office.pool, name)})


@workspace_routes.post("/{name}/tokens")
async def add_token(name: str, office: TheOffice) -> Response:
    """One more token."""
    return answer({"name": name, "token": await workspaces.add_token(office.pool, name)})


@workspace_routes.delete("/{name}")
async def delete_workspace(name: str, office: TheOffice) -> Response:
    """Close the workspace and destroy all it has. `gone` in the answer is false while engines still
    let go of its jobs.
    """
    workspace = await workspaces.mark_deleting(office.pool, name)
    context = office.commits.steps.context
    began = context.now()
    while (
        not (gone := await branches.drop_closed_workspace(context, workspace))
        and context.now() - began < DELETE_SECONDS
    ):
        await context.sleep(DELETE_POLL_SECONDS)
    office.wake()
    return answer({"name": workspace, "gone": gone})


operations_routes = APIRouter(
    prefix=f"{API}/operations", tags=["operations"], dependencies=[Depends(administrator)]
)


@operations_routes.get("/needed")
async def needed(office: TheOffice) -> Response:
    """Job partitions that need records which are gone, or about to be too old."""
    found = [
        {
            "job": a.job,
            "part": a.part,
            "topic": a.topic,
            "trouble": a.problem.value,
            "told": a.message,
        }
        for a in office.alarms()
    ]
    return answer({"alarms": found})


@operations_routes.get("/drills")
async def failing_drills(office: TheOffice) -> Response:
    """Job partitions whose last drill did not agree."""
    found = [
        {
            "job": each.job,
            "part": each.part,
            "title": each.title,
            "verdict": each.finding.verdict.value,
            "told": str(each),
            "live_hash": each.finding.live_hash,
            "drilled_hash": each.finding.drilled_hash,
            "drilled_at": each.at.isoformat(),
        }
        for each in await drills.failed_drills(office.pool)
    ]
    return answer({"drills": found})


# --- what is defined ------------------------------------------------------------------------------

lineage_routes = APIRouter(prefix=API, tags=["lineage"])


@lineage_routes.get("/xray")
async def get_xray(
    office: TheOffice,
    caller: TheCaller,
    datasets: Annotated[
        str | None, Query(description="Names, separated by commas; none: all.")
    ] = None,
    featuresets: Annotated[
        str | None, Query(description="Names, separated by commas; none: all.")
    ] = None,
    properties: Annotated[
        str | None, Query(description="Names, separated by commas; none: all.")
    ] = None,
) -> Response:
    """What is known about the branch's datasets and featuresets."""
    version = await _version(office, caller)
    return answer(xray(version, _words(datasets), _words(featuresets), _words(properties)))


@lineage_routes.get("/lineage")
async def get_lineage(office: TheOffice, caller: TheCaller) -> Response:
    """What is made of what, as nodes and edges."""
    return answer(lineage(await _version(office, caller)))


async def _version(office: ServerState, caller: Principal) -> BranchVersion:
    async def read(tx: Any) -> tuple[bytes, bytes] | None:
        branch = await tx.branch(caller.workspace, caller.branch)
        if branch is None:
            raise ApiError(500, "branch-not-found", f"branch `{caller.branch}` does not exist")
        if branch.target is None:
            return None
        return await tx.merged(branch.target), await tx.catalog(branch.target)

    found: Awaitable[tuple[bytes, bytes] | None] = office.commits.steps.context.ledger.run(read)
    stored = await found
    return BranchVersion.empty(caller.workspace) if stored is None else BranchVersion.of(*stored)


def _words(text: str | None) -> frozenset[str] | None:
    words = frozenset(word.strip() for word in (text or "").split(",") if word.strip())
    return words or None
