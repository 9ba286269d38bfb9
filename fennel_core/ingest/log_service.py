"""`log` from body to acknowledgement.

Theory. Read the body, find every dataset of every branch that the endpoint feeds, type the rows for
each distinct definition once, write all of it in one transaction, answer. The caller's branch
decides the answer: rows that do not fit there refuse the whole request; rows that do not fit a
definition only other branches have are set aside there. A request whose definitions changed under
it is prepared again, so a client that was told its commit is done logs under it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from fennel_core.ingest import source_metrics
from fennel_core.ingest.admission import CodeRunner, DeadLetter, RowsRejected, TypedRows, Validator
from fennel_core.ingest.batches import PreparedRequest, TargetRows
from fennel_core.ingest.catalogs import Catalogs, EndpointTarget
from fennel_core.ingest.committer import CatalogChanged, Committer
from fennel_core.ingest.payload import LogBody, Payload, parse_log_body
from fennel_core.ingest.store import Away, CatalogVersion, NotWritten, OutcomeUnknown
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, WorkspaceId

PREPARATIONS = 5
"""Definitions that change under a request this often in a row are changing faster than anybody can
log.
"""

ReadSecret = Callable[[WorkspaceId, str], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Logged:
    rows: int


class LogService:
    """Use from one event loop."""

    def __init__(
        self,
        catalogs: Catalogs,
        committer: Committer,
        executors: CodeRunner,
        secret: ReadSecret,
        rows_limit: int,
    ) -> None:
        self._catalogs = catalogs
        self._committer = committer
        self._executors = executors
        self._secret = secret
        self._rows_limit = rows_limit
        self._turns = count()

    async def log(self, workspace: WorkspaceId, branch: BranchName, body: bytes) -> Logged:
        """Write the rows of `body`; they are durable when this returns.

        ApiError: 400 malformed, 404 unknown endpoint, 413 too many rows, 500 rows that do not fit
        (column, row, value), 503 when the platform cannot write now or cannot say whether it did.
        """
        request, payload = parse_log_body(body, self._rows_limit)
        turn = next(self._turns)
        try:
            for _ in range(PREPARATIONS):
                version, feeds = await self._feeds(workspace, request)
                if not len(payload):
                    return Logged(0)
                try:
                    prepared = await self._prepared(
                        workspace, branch, body, payload, turn, version, feeds
                    )
                    await self._committer.submit(workspace, prepared)
                except CatalogChanged:
                    await self._catalogs.reload(workspace)
                    continue
                except RowsRejected:
                    if (await self._catalogs.reload(workspace)).version == version:
                        raise
                    continue  # refused under definitions that somebody has replaced meanwhile
                return Logged(len(payload))
        except Away as away:
            raise ApiError(
                503, "ingest-unavailable", f"nothing was logged: {away}: try again"
            ) from away
        except NotWritten as refused:
            raise ApiError(
                503,
                "log-not-written",
                f"nothing was logged, the log refused the write ({refused}): try again",
            ) from refused
        except OutcomeUnknown as unknown:
            text = (
                f"the log did not say whether the rows were written ({unknown}): "
                "they are all in or none is. Sending them again is safe "
                "for a keyed dataset; for a keyless one look first, or they may be in twice"
            )
            raise ApiError(503, "log-outcome-unknown", text) from unknown
        raise ApiError(
            503,
            "definitions-moving",
            "nothing was logged: the branches' definitions kept changing meanwhile: try again",
        )

    async def _feeds(
        self, workspace: WorkspaceId, request: LogBody
    ) -> tuple[CatalogVersion, tuple[EndpointTarget, ...]]:
        endpoint = (request.webhook, request.endpoint)
        found = await self._catalogs.get(workspace)
        if endpoint not in found.feeds:
            found = await self._catalogs.reload(workspace)
        if endpoint not in found.feeds:
            text = f"Webhook endpoint {request.webhook}_{request.endpoint} not found in any branch"
            raise ApiError(404, "endpoint-unknown", text)
        return found.version, found.feeds[endpoint]

    async def _prepared(
        self,
        workspace: WorkspaceId,
        branch: BranchName,
        body: bytes,
        payload: Payload,
        turn: int,
        version: CatalogVersion,
        feeds: tuple[EndpointTarget, ...],
    ) -> PreparedRequest:
        door = Validator(self._executors, lambda name: self._secret(workspace, name))
        entries: list[TargetRows] = []
        dead: list[tuple[EndpointTarget, DeadLetter]] = []
        for feed in feeds:
            rows, aside = await _admitted(door, feed, payload, branch)
            entries += [TargetRows(feed, part) for part in rows]
            dead += [(feed, part) for part in aside]
        raw = {feed.binding.raw_topic: feed.partitions for feed in feeds}
        return PreparedRequest(
            version, body, len(payload), turn, tuple(raw.items()), tuple(entries), tuple(dead)
        )


async def _admitted(
    door: Validator, feed: EndpointTarget, payload: Payload, branch: BranchName
) -> tuple[list[TypedRows], list[DeadLetter]]:
    if branch in feed.branches:
        try:
            return [await door.admit(feed.binding, payload, feed.erased)], []
        except RowsRejected:
            source_metrics.count_rejected(feed.binding, len(payload))
            raise
    return await door.admit_some(feed.binding, payload, feed.erased)
