"""Requests of many rows, in processes of their own, so that they do not delay small ones.

A request of ten thousand rows needs some hundred milliseconds of parsing, key encoding and JSON.
The threads of one process share the interpreter lock, so next to a thread with such work every
request of one row takes several times as long. A query server therefore hands large queries and
lookups to helpers: processes with a `QueryService` of their own at a lower scheduling priority, to
which one frame goes and from which the response comes back in pieces. Decision 0072 has the
measurement.

A helper reads the branch again if its view is of another version than the caller's, and the list of
erased keys if it is behind, so a client that reads what it has just committed or erased sees the
same in both. A request that no helper can serve (it is not there yet, or lacks what it cannot read
from Postgres) is served in this process, by a thread (`batch_thread`). The exception is a helper
that is lost while it has the request: the request may be the reason, so it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.frames import OVERLOADED, FrameTooLarge, RemoteError, WithBytes
from fennel_core.query.batch_thread import BYTES_IN_LOOP, ROWS_IN_LOOP
from fennel_core.query.bodies import DEFAULT_WORKFLOW, lookup_body, query_body
from fennel_core.query.erasures import ErasureList
from fennel_core.query.errors import (
    ErasuresUnknown,
    LargeReadFailed,
    LargeReadInterrupted,
    QueryError,
    QueryTimeout,
    SlotUnresponsive,
    UnknownBranch,
)
from fennel_core.query.service import Answer, LogReceipt
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.query.view import BranchKey, Views
from fennel_core.telemetry import metrics, traces
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId

log = logger(__name__)
HELPER_NICENESS: Final = 10
"""Small requests come first on a busy machine; an idle one serves large requests as fast."""
SILENCE_S: Final = 5.0
"""A helper that does not respond for so long is frozen; its work does not block its event loop."""
QUERY: Final = "query"
LOOKUP: Final = "lookup"


class Reads(Protocol):
    """The calls that a query server serves itself; `service.QueryService` has their meaning."""

    async def query(self, key: BranchKey, body: bytes, request_id: str | None = None) -> Answer: ...
    async def lookup(self, key: BranchKey, dataset: str, body: bytes) -> Answer: ...
    async def inspect(self, key: BranchKey, dataset: str, rows: int) -> Answer: ...
    async def barrier(self, key: BranchKey, timeout_s: float | None) -> Answer: ...


@dataclass(slots=True)
class _Helper:
    """The address of a helper's socket, and the number of its requests under way."""

    address: str
    requests: int = field(default=0)


class DividedReads:
    """Serves small requests in this process, and hands large ones to the helper with the fewest.

    `timeout_s`: deadline of a read by a helper, from here.
    """

    def __init__(
        self,
        service: Reads,
        views: Views,
        addresses: Sequence[str],
        query_rows: int,
        timeout_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._service = service
        self._views = views
        self._helpers = [_Helper(address) for address in addresses]
        self._query_rows = query_rows
        self._timeout_s = timeout_s
        self._connections = SlotConnections(silence_s)

    async def query(self, key: BranchKey, body: bytes, request_id: str | None = None) -> Answer:
        """Serve `POST /query`."""
        if _is_large(body, lambda: query_body(body, self._query_rows).rows):
            try:
                found = await self._by_helper(QUERY, key, [body, request_id])
            except QueryError as refused:
                # What a helper itself refuses is counted there.
                metrics.EXTRACT_FEATURES_ERRORS.labels(DEFAULT_WORKFLOW, refused.code).inc()
                raise
            if found is not None:
                return found
        return await self._service.query(key, body, request_id)

    async def lookup(self, key: BranchKey, dataset: str, body: bytes) -> Answer:
        """Serve `POST /dataset/{name}/lookup`."""
        if _is_large(body, lambda: len(lookup_body(body, self._query_rows).keys)):
            found = await self._by_helper(LOOKUP, key, [dataset, body])
            if found is not None:
                return found
        return await self._service.lookup(key, dataset, body)

    async def inspect(self, key: BranchKey, dataset: str, rows: int) -> Answer:
        """Serve `GET /dataset/{name}/inspect`."""
        return await self._service.inspect(key, dataset, rows)

    async def barrier(self, key: BranchKey, timeout_s: float | None) -> Answer:
        """Serve `POST /barrier`."""
        return await self._service.barrier(key, timeout_s)

    async def close(self) -> None:
        """Close the connections to the helpers."""
        await self._connections.close()

    async def _by_helper(self, op: str, key: BranchKey, argument: list[Any]) -> Answer | None:
        """Return a helper's answer; None if none can serve the request.

        Raises what the helper raised, as a plain `ApiError`; `QueryTimeout`, `LargeReadFailed`, and
        `LargeReadInterrupted` if it is lost.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                view = await self._views.get(key)
                for helper in sorted(self._helpers, key=lambda each: each.requests):
                    found = await self._ask(helper, op, [*key, view.commit, *argument])
                    if found is not None:
                        return found
        except (DatabaseUnavailable, UnknownBranch):
            return None  # The service refuses it in the same way, and counts that.
        except TimeoutError as late:
            raise QueryTimeout(self._timeout_s) from late
        return None

    async def _ask(self, helper: _Helper, op: str, argument: list[Any]) -> Answer | None:
        try:
            channel = await self._connections.channel(helper.address)
        except (SlotUnresponsive, OSError) as away:
            log.warning("a helper is not reached", address=helper.address, reason=str(away))
            return None
        helper.requests += 1
        try:
            response, pieces = await channel.call_for_bytes(op, [traces.outgoing(), *argument])
        except FrameTooLarge:
            return None
        except RemoteError as failed:
            if failed.remote_code == OVERLOADED:
                return None
            raise LargeReadFailed(str(failed)) from failed
        except OSError as lost:
            log.warning("a helper was lost", address=helper.address, reason=str(lost))
            raise LargeReadInterrupted(str(lost)) from lost
        finally:
            helper.requests -= 1
        return _answer(response, pieces)


def _is_large(body: bytes, rows: Callable[[], int]) -> bool:
    """Return whether a body is large; `rows` parses it.

    Between two rows is a comma at least, so most small bodies are not parsed here.
    """
    if len(body) > BYTES_IN_LOOP:
        return True
    if body.count(b",") < ROWS_IN_LOOP:
        return False
    try:
        return rows() > ROWS_IN_LOOP
    except ApiError:
        return False  # The service refuses it in the same way, and counts that.


def _answer(response: dict[str, Any], pieces: list[bytes]) -> Answer | None:
    """Return the answer in a response, None if the helper lacks what this process may have.

    Raises the refusal in it.
    """
    if "code" not in response:
        logged = response["logged"]
        receipt = None if logged is None else LogReceipt(*logged)
        return Answer(pieces[0], response["stale"], receipt, pieces[1:])
    if response["code"] in {DatabaseUnavailable.CODE, ErasuresUnknown.CODE}:
        return None
    refused = ApiError(response["status"], response["code"], response["text"])
    refused.retry_after_s = response["retry_after_s"]
    raise refused


class LargeReadServer:
    """The helper's side: serves what `DividedReads` hands over."""

    def __init__(self, service: Reads, views: Views, erasures: ErasureList) -> None:
        self._service = service
        self._views = views
        self._erasures = erasures

    async def handle(self, op: str, argument: Any) -> object:
        """Serve one frame (`connections.frames.Handler`); refusals are results, too."""
        trace, workspace, branch, commit, *rest = argument
        key = WorkspaceId(workspace), BranchName(branch)
        try:
            with traces.incoming(trace), traces.span(f"large {op}"):
                answer = await self._answer(op, key, commit, rest)
        except ApiError as refused:
            return {
                "status": refused.status,
                "code": refused.code,
                "text": refused.text,
                "retry_after_s": refused.retry_after_s,
            }
        logged = answer.logged
        receipt = logged and [logged.request_id, logged.rows, logged.dropped]
        return WithBytes({"stale": answer.stale, "logged": receipt}, answer.body)

    async def _answer(
        self, op: str, key: BranchKey, commit: CommitId | None, rest: list[Any]
    ) -> Answer:
        if self._erasures.is_behind(key[0]):
            await self._erasures.catch_up(key[0])
        view = await self._views.get(key)
        if view.commit != commit:
            await self._views.reload(key)
        serve = self._service.query if op == QUERY else self._service.lookup
        return await serve(key, *rest)
