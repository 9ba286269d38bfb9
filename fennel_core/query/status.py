"""The status report, for people and for `fennel-core status`.

It lists slots, every job partition with its owner, lag and error, the branches whose reads have not
moved to their newest version yet, and what confines user code. A workspace's token gets its own
partitions, an operator's token all of them. Everything is one read of the registry, so
the report is as recent as the last reports of the runners, whose age it includes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Protocol

from fennel_core.connections.roles import Access, Permission
from fennel_core.executors.errors import ExecutorUnavailable
from fennel_core.executors.report import ExecutorReport
from fennel_core.query.bodies import dump
from fennel_core.query.postgres import PartitionStatus, PostgresReader
from fennel_core.query.view import Views

AccessOf = Callable[[str | None], Awaitable[Access]]


class ReportsItself(Protocol):
    """The part of `executors.client.Executors` that the report uses."""

    async def report(self) -> ExecutorReport: ...


class StatusReport:
    """Builds the report; `access_of` returns what an `Authorization` header opens."""

    def __init__(
        self,
        reads: PostgresReader,
        views: Views,
        executors: ReportsItself,
        access_of: AccessOf,
    ) -> None:
        self._reads = reads
        self._views = views
        self._executors = executors
        self._access_of = access_of

    async def report(self, authorization: str | None) -> bytes:
        """Return the JSON of `GET /status`; ApiError 401 and 403 for a token that may not."""
        access = await self._access_of(authorization)
        workspace = (
            None if access.may(Permission.OPERATE) else access.workspace_for(Permission.READ)
        )
        partitions = await self._reads.read_partitions(workspace)
        slots = await self._reads.read_slots()
        branches = [
            {"workspace": owner, "branch": branch, "commit": view.commit}
            for (owner, branch), view in self._views.known().items()
            if workspace in (None, owner)
        ]
        return dump(
            {
                "slots": [
                    {
                        "slot": s.id,
                        "engine": s.engine,
                        "address": s.address,
                        "lease_ms": s.lease_ms,
                        "alive": s.lease_ms > 0,
                    }
                    for s in slots
                ],
                "job_partitions": [_partition(p) for p in partitions],
                "views": branches,
                "warming": [
                    {
                        "workspace": b.workspace,
                        "branch": b.branch,
                        "serving": b.serving,
                        "target": b.target,
                    }
                    for b in await self._reads.read_warming(workspace)
                ],
                "executors": await self._executor_report(),
            }
        )

    async def _executor_report(self) -> dict[str, object] | None:
        try:
            return asdict(await self._executors.report())
        except ExecutorUnavailable:
            return None


def _partition(state: PartitionStatus) -> dict[str, object]:
    return {
        "job": state.title,
        "id": state.job,
        "part": state.part,
        "slot": state.slot,
        "epoch": state.epoch,
        "status": state.status,
        "lag": state.lag,
        "reported_s": round(state.reported_s, 1),
        "error": state.error,
    }
