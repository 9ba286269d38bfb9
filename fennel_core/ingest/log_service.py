"""Handle `log`, from the request body to the acknowledgement.

Parse the body, find every dataset of every branch that the endpoint feeds, validate the rows once
per distinct definition, write everything in one transaction, respond. Rows that do not fit a
definition of the caller's branch reject the whole request; rows that do not fit a definition that
only other branches have are dead-lettered there. A request whose definitions change while it is
processed is prepared again, so a client whose commit has succeeded logs under that commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from fennel_core.admission.errors import RowsRejected
from fennel_core.admission.payload import LogBody, Payload, parse_log_body
from fennel_core.admission.validator import CodeRunner, Validator
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.executors.client import Callbacks
from fennel_core.ingest.batches import PreparedRequest
from fennel_core.ingest.catalogs import Catalogs, EndpointTarget
from fennel_core.ingest.committer import Committer
from fennel_core.ingest.errors import (
    CatalogChanged,
    DefinitionsChanging,
    EndpointNotFound,
    IngestUnavailable,
    LogNotWritten,
    LogOutcomeUnknown,
)
from fennel_core.ingest.preparation import LoggedBy, Received, prepare
from fennel_core.ingest.store import CatalogVersion
from fennel_core.vocab.ids import BranchName, WorkspaceId

PREPARATIONS = 5
"""Attempts to prepare one request. More definition changes in a row than this end in an error."""

ReadSecret = Callable[[WorkspaceId, str, str], Awaitable[str | None]]
"""Reads a secret of a workspace for a version of its code."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The result of a `log` request."""

    rows: int


class LogService:
    """Validates and writes `log` requests. Use from one event loop."""

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
        self._round_robin = count()

    async def log(self, workspace: WorkspaceId, branch: BranchName, body: bytes) -> Logged:
        """Write the rows of `body`; they are durable when this returns.

        Raises `LogBodyMalformed`, `RowLimitExceeded`, `EndpointNotFound`, `RowsRejected`,
        `SourceCodeFailed`, `IngestUnavailable`, `LogNotWritten`, `LogOutcomeUnknown` and
        `DefinitionsChanging`.
        """
        request, payload = parse_log_body(body, self._rows_limit)
        round_robin = next(self._round_robin)
        try:
            for _ in range(PREPARATIONS):
                version, targets = await self._targets(workspace, request)
                if not len(payload):
                    return Logged(0)
                try:
                    prepared = await self._prepare(
                        workspace, branch, body, payload, round_robin, version, targets
                    )
                    await self._committer.submit(workspace, prepared)
                except CatalogChanged:
                    await self._catalogs.reload(workspace)
                    continue
                except RowsRejected:
                    if (await self._catalogs.reload(workspace)).version == version:
                        raise
                    # Rejected under definitions that have been replaced since.
                    continue
                return Logged(len(payload))
        except SystemUnavailable as lost:
            raise IngestUnavailable(f"nothing was logged: {lost}; try again") from lost
        except TransactionAborted as aborted:
            raise LogNotWritten(
                f"nothing was logged: Kafka aborted the transaction ({aborted}); try again"
            ) from aborted
        except TransactionOutcomeUnknown as unknown:
            raise LogOutcomeUnknown(
                "Kafka did not report whether the transaction was committed "
                f"({unknown}): either all rows were written or none. Sending them again is safe "
                "for keyed datasets and may duplicate rows of keyless ones"
            ) from unknown
        raise DefinitionsChanging(
            "nothing was logged: the definitions kept changing while the request was being "
            "prepared; try again"
        )

    async def _targets(
        self, workspace: WorkspaceId, request: LogBody
    ) -> tuple[CatalogVersion, tuple[EndpointTarget, ...]]:
        endpoint = (request.webhook, request.endpoint)
        found = await self._catalogs.get(workspace)
        if endpoint not in found.targets:
            found = await self._catalogs.reload(workspace)
        if endpoint not in found.targets:
            text = f"Webhook endpoint {request.webhook}_{request.endpoint} not found in any branch"
            raise EndpointNotFound(text)
        return found.version, found.targets[endpoint]

    async def _prepare(
        self,
        workspace: WorkspaceId,
        branch: BranchName,
        body: bytes,
        payload: Payload,
        round_robin: int,
        version: CatalogVersion,
        targets: tuple[EndpointTarget, ...],
    ) -> PreparedRequest:
        code = f"sources@{version}"
        callbacks = Callbacks(
            secret=lambda name: self._secret(workspace, code, name),
            workspace=workspace,
            version=code,
        )
        return await prepare(
            Validator(self._executors, callbacks),
            version,
            targets,
            Received(body, payload, round_robin, LoggedBy(branch)),
        )
