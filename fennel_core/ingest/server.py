"""The HTTP interface of ingest: `log` and `erase` in raw ASGI, and the health endpoints.

`log` is the hot route, so requests are matched by hand. Request bodies are bounded by
`connections.asgi`; errors have the one form of `telemetry.errors`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import unquote

import msgspec
from starlette.types import Receive, Scope, Send

from fennel_core.connections.asgi import ClientDisconnected, read_body, send_json
from fennel_core.connections.roles import Access, Permission
from fennel_core.connections.workspace_limits import WorkspaceLimits
from fennel_core.ingest.erase import EraseService
from fennel_core.ingest.errors import MethodNotAllowed, UnknownPath
from fennel_core.ingest.log_service import LogService
from fennel_core.telemetry import metrics
from fennel_core.telemetry.errors import INTERNAL, send_error, wants_json
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ANY_FAILURE, ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, DatasetName, WorkspaceId

LOG_PATH = "/api/v1/log"
ERASE_PATH = re.compile(r"/api/v1/dataset/([^/]+)/erase")
BRANCH_HEADER = b"x-fennel-branch"
log = logger(__name__)


class IngestApplication:
    """The ASGI application of the ingest server.

    `access_of` returns what an `Authorization` header opens or raises ApiError 401. `audited`
    returns a context that writes an erasure of a dataset to the audit log.
    """

    def __init__(
        self,
        log_service: LogService,
        erase_service: EraseService,
        health: HealthEndpoint,
        access_of: Callable[[str | None], Awaitable[Access]],
        body_limit_bytes: int,
        audited: Callable[[Access, DatasetName], AbstractAsyncContextManager[None]],
        limits: WorkspaceLimits,
    ) -> None:
        self._limits = limits
        self._audited = audited
        self._log_service = log_service
        self._erasing = erase_service
        self._health = health
        self._access_of = access_of
        self._body_limit_bytes = body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and websockets are off"
        path: str = scope["path"]
        if self._health.handles(path):
            await self._health.asgi(scope, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        try:
            status, body = 200, await self._respond(scope, headers, receive)
            await send_json(send, body)
        except ClientDisconnected:
            return
        except ApiError as error:
            status = error.status
            await self._send_error(send, error, headers)
        # Outermost handler of a request: the client gets a response, the log the details.
        except ANY_FAILURE as unexpected:
            status = INTERNAL.status
            log.error("request failed", path=path, exc_info=unexpected)
            await self._send_error(send, INTERNAL, headers)
        label = path if path == LOG_PATH else "erase" if ERASE_PATH.fullmatch(path) else "other"
        metrics.REQUESTS.labels(label, scope["method"], str(status)).inc()
        metrics.REQUEST_SECONDS.labels(label, scope["method"]).observe(
            time.perf_counter() - started
        )

    async def _respond(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        path, method = scope["path"], scope["method"]
        erase = ERASE_PATH.fullmatch(path)
        if path != LOG_PATH and erase is None:
            raise UnknownPath(
                f"this server has no path `{path}`; it serves POST {LOG_PATH} and "
                "/api/v1/dataset/<name>/erase"
            )
        if method != "POST":
            raise MethodNotAllowed(f"use POST {path}")
        authorization = headers.get(b"authorization")
        access = await self._access_of(
            None if authorization is None else authorization.decode("latin-1")
        )
        needed = Permission.WRITE if erase is None else Permission.ADMINISTER
        workspace = access.workspace_for(needed)
        branch = (
            BranchName(headers[BRANCH_HEADER].decode("latin-1"))
            if BRANCH_HEADER in headers
            else MAIN_BRANCH
        )
        with self._limits.entered(workspace):
            return await self._write(scope, receive, access, workspace, branch)

    async def _write(
        self,
        scope: Scope,
        receive: Receive,
        access: Access,
        workspace: WorkspaceId,
        branch: BranchName,
    ) -> bytes:
        body = await read_body(scope, receive, self._body_limit_bytes)
        erase = ERASE_PATH.fullmatch(scope["path"])
        if erase is not None:
            dataset = DatasetName(unquote(erase[1]))
            async with self._audited(access, dataset):
                erased = await self._erasing.erase(workspace, branch, dataset, body)
            return msgspec.json.encode({"erased": erased})
        logged = await self._log_service.log(workspace, branch, body)
        return msgspec.json.encode({"rows": logged.rows})

    async def _send_error(self, send: Send, error: ApiError, headers: dict[bytes, bytes]) -> None:
        accept = headers.get(b"accept")
        await send_error(
            send, error, as_json=wants_json(None if accept is None else accept.decode("latin-1"))
        )
