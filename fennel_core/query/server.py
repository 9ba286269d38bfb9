"""The API gateway as one raw ASGI application.

The hot routes (`/query`, lookups) are matched by hand and served here; everything else under
`/api/v1` is forwarded. Errors are raised anywhere below as `ApiError` and sent in one place. After
a forwarded control call has succeeded, the branch is reloaded *before* the response is sent, so a
client reads its own commit on this server; other servers get a notification. If the reload fails,
the response is sent all the same, because the call has succeeded, and the reload is repeated. A
read whose client has disconnected is cancelled.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

from prometheus_client import Counter, Histogram
from starlette.types import Receive, Scope, Send

from fennel_core.connections.asgi import (
    ClientDisconnected,
    cancelled_on_disconnect,
    header,
    read_body,
    send_json,
)
from fennel_core.connections.roles import Access, Permission
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.query.bodies import barrier_timeout
from fennel_core.query.erasures import ErasureList
from fennel_core.query.errors import RequestMalformed, ResponseTruncated, UnknownRoute
from fennel_core.query.forward import Forwarder, Upstream
from fennel_core.query.large_reads import Reads
from fennel_core.query.service import Answer, LogReceipt
from fennel_core.query.status import StatusReport
from fennel_core.query.view import BranchKey, Views
from fennel_core.query.view_refresh import ViewRefresher
from fennel_core.telemetry import metrics, traces
from fennel_core.telemetry.errors import INTERNAL, send_error, wants_json
from fennel_core.telemetry.health import PUBLIC_PATHS, HealthEndpoint
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ANY_FAILURE, ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, WorkspaceId

API = "/api/v1"
INSPECT_ROWS = 10
READS_ONLY = frozenset({"GET", "HEAD"})

RELOAD_WAIT_S = 10.0
"""How long the response of a successful commit waits for this server's view of it."""
Headers = tuple[tuple[bytes, bytes], ...]
STALE_HEADERS: Headers = ((b"x-fennel-stale", b"true"),)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logger(__name__)
AccessOf = Callable[[str | None], Awaitable[Access]]


class AnnouncedErasures(ErasureList, Protocol):
    """The list of a server that forwards erasures, and announces them to the other processes."""

    async def announce(self, workspace: WorkspaceId) -> None: ...


class QueryApplication:
    """The ASGI application of the query server.

    `upstreams` maps the first word after `/api/v1/` to a server; `""` is the server for all other
    words.
    """

    def __init__(
        self,
        service: Reads,
        views: Views,
        status: StatusReport,
        health: HealthEndpoint,
        forwarder: Forwarder,
        upstreams: Mapping[str, Upstream],
        access_of: AccessOf,
        body_limit_bytes: int,
        refresher: ViewRefresher,
        erasures: AnnouncedErasures,
        limits: WorkspaceLimits,
    ) -> None:
        self._limits = limits
        self._erasures = erasures
        self._refresher = refresher
        self._service = service
        self._views = views
        self._status = status
        self.health = health
        self._forwarder = forwarder
        self._upstreams = upstreams
        self._access_of = access_of
        self._limit_bytes = body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path in PUBLIC_PATHS:
            await self.health.asgi(scope, send)
            return
        parent = header(scope, b"traceparent")
        if parent is None:
            await self._timed(path, scope, receive, send)
        else:
            with traces.incoming({"traceparent": parent}):
                await self._timed(path, scope, receive, send)

    async def _timed(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, and record the duration and the status."""
        began = time.perf_counter()
        route, method = _label(path), scope["method"]
        try:
            with traces.span(route, method=method):
                status = await self._respond(path, scope, receive, send)
        except (ClientDisconnected, ResponseTruncated):
            status = 499
        except ApiError as refused:
            status = refused.status
            await send_error(send, refused, as_json=wants_json(header(scope, b"accept")))
        # Outermost handler of a request: the client gets a response, the log the reason.
        except ANY_FAILURE as bug:
            status = 500
            log.error("request failed", path=path, exc_info=bug)
            await send_error(send, INTERNAL)
        took_s = time.perf_counter() - began
        _requests(route, method, status).inc()
        _seconds(route, method).observe(took_s)

    async def _respond(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Respond to the request and return the status; raises before anything is sent."""
        method = scope["method"]
        if path == f"{API}/query" and method == "POST":
            key = await self._read_key(scope)
            with self._limits.entered(key[0]):
                body = await read_body(scope, receive, self._limit_bytes)
                answer = self._service.query(key, body, _request_id(scope))
                return await _send_read(receive, send, answer)
        if path == "/status" and method == "GET":
            await send_json(send, await self._status.report(header(scope, b"authorization")))
            return 200
        if not path.startswith(f"{API}/"):
            raise UnknownRoute(method, path)
        words = path[len(API) + 1 :].split("/")
        match (method, *words):
            case ("POST", "dataset", name, "lookup"):
                key = await self._read_key(scope)
                with self._limits.entered(key[0]):
                    body = await read_body(scope, receive, self._limit_bytes)
                    answer = self._service.lookup(key, unquote(name), body)
                    return await _send_read(receive, send, answer)
            case ("GET", "dataset", name, "inspect"):
                rows = _count(scope, "n", INSPECT_ROWS)
                key = await self._read_key(scope)
                with self._limits.entered(key[0]):
                    answer = self._service.inspect(key, unquote(name), rows)
                    return await _send_read(receive, send, answer)
            case ("POST", "barrier"):
                key = await self._key(scope, Permission.READ, Permission.WRITE)
                with self._limits.entered(key[0]):
                    body = await read_body(scope, receive, self._limit_bytes)
                    answer = self._service.barrier(key, barrier_timeout(body))
                    return await _send_read(receive, send, answer)
            case _:
                if words[0] in NOT_FORWARDED:
                    raise UnknownRoute(method, path)
                return await self._forward(words, scope, receive, send)

    async def _forward(self, words: list[str], scope: Scope, receive: Receive, send: Send) -> int:
        kind = "erase" if words[0] == "dataset" and words[-1] == "erase" else words[0]
        upstream = self._upstreams.get(kind, self._upstreams[""])
        changes = kind in CHANGES_A_BRANCH and scope["method"] not in READS_ONLY

        async def before_response(status: int) -> None:
            if status != 200 or not (changes or kind == "erase"):
                return
            # It is cached: the upstream server has just accepted the token.
            key = await self._key(scope, Permission.DEFINE, Permission.ADMINISTER)
            if kind == "erase":
                await self._erasures.announce(key[0])
            else:
                await self._reload(key)

        return await self._forwarder.forward(upstream, scope, receive, send, before_response)

    async def _reload(self, key: BranchKey) -> None:
        try:
            async with asyncio.timeout(RELOAD_WAIT_S):
                await self._views.refresh(key)
        except (ApiError, TimeoutError) as failed:
            log.warning("view not reloaded after a change", branch=key, reason=str(failed))
            self._refresher.request(key)

    async def _read_key(self, scope: Scope) -> BranchKey:
        """Return the branch of a request that reads rows, after the erasures that precede it."""
        key = await self._key(scope, Permission.READ)
        if self._erasures.is_behind(key[0]):
            await self._erasures.catch_up(key[0])
        return key

    async def _key(self, scope: Scope, *permissions: Permission) -> BranchKey:
        access = await self._access_of(header(scope, b"authorization"))
        workspace = access.workspace_for(*permissions)
        branch = header(scope, b"x-fennel-branch")
        return workspace, MAIN_BRANCH if branch is None else BranchName(branch)


async def _send_read(receive: Receive, send: Send, answer: Coroutine[Any, Any, Answer]) -> int:
    """Send the answer; cancel it when the client disconnects. Returns the status."""
    async with cancelled_on_disconnect(receive):
        found = await answer
    if found.stale:
        metrics.STALE_READS.inc()
    headers = STALE_HEADERS if found.stale else ()
    if found.logged is not None:
        headers = (*headers, *_log_headers(found.logged))
    await send_json(send, found.body, headers=headers, rest=found.rest)
    return 200


def _log_headers(logged: LogReceipt) -> Headers:
    """Return what a response says about the query log."""
    named = (b"x-fennel-request-id", logged.request_id.encode())
    rows = (b"x-fennel-logged-rows", str(logged.rows).encode())
    if not logged.dropped:
        return (named, rows)
    return (named, rows, (b"x-fennel-dropped-rows", str(logged.dropped).encode()))


def _request_id(scope: Scope) -> str | None:
    """Return the id that the caller gives the request, for the query log."""
    given = header(scope, b"x-fennel-request-id")
    if given is not None and REQUEST_ID.fullmatch(given) is None:
        raise RequestMalformed(
            "the header `X-FENNEL-REQUEST-ID` must have 1 to 64 letters, digits, `.`, `_` or `-`"
        )
    return given


@lru_cache(maxsize=1024)
def _requests(route: str, method: str, status: int) -> Counter:
    return metrics.REQUESTS.labels(route, method, status)


@lru_cache(maxsize=1024)
def _seconds(route: str, method: str) -> Histogram:
    return metrics.REQUEST_SECONDS.labels(route, method)


def _label(path: str) -> str:
    """Return the call as a metric label, without names of datasets and secrets."""
    words = path.removeprefix(API).strip("/").split("/")
    if words[0] == "dataset" and len(words) == 3:
        return words[2] if words[2] in {"lookup", "inspect", "erase"} else "other"
    return words[0] if words[0] in _KNOWN else "other"


CHANGES_A_BRANCH = frozenset({"commit", "init", "delete"})
"""Control calls after which the caller must read its own write."""
NOT_FORWARDED = frozenset({"docs", "openapi.json"})
"""Pages for people who develop against the API, on the definition server's own port."""
_KNOWN = frozenset(
    {
        "query",
        "barrier",
        "status",
        "commit",
        "log",
        "init",
        "delete",
        "branch",
        "secret",
        "workspaces",
        "lineage",
        "xray",
        "query_offline",
        "dataframes",
    }
)


def _count(scope: Scope, name: str, default: int) -> int:
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name)
    if given is None:
        return default
    if not given[-1].isdecimal():
        raise RequestMalformed(f"`{name}={given[-1]}` is not a number of rows")
    return int(given[-1])
