"""What a run does when a system is away: while it computes, and when its result shall count."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.errors import SystemUnavailable, TransactionOutcomeUnknown
from fennel_core.connections.object_store import ObjectConflict
from fennel_core.offline import request_row, request_run
from fennel_core.offline.request_row import (
    NewRequest,
    OfflineRequest,
    RequestDefinition,
    RequestResult,
    RunSuperseded,
)
from fennel_core.offline.request_run import RequestRun, RunOutcome
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import MemoryRequests, RequestChange
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId

RESULT = RequestResult("result/1", (), (), None)
PLACE = (WorkspaceId("shop"), BranchName("main"))
ASKED = RequestDefinition(("F.k",), ("F.v",), "at", "default", 1, "in", 0, 0)


class LostResponse(MemoryRequests):
    """The response to the first change is lost, and the change was made."""

    lost = False

    async def change(self, id_: str, change: RequestChange) -> OfflineRequest | None:
        changed = await super().change(id_, change)
        if not self.lost:
            self.lost = True
            raise TransactionOutcomeUnknown("the response to COMMIT was lost")
        return changed


class NoObjects:
    async def list_objects(self, prefix: str) -> list[Any]:
        return []

    async def delete(self, keys: list[str]) -> None:
        assert keys == []


async def claimed(store: MemoryRequests) -> OfflineRequest:
    await store.add(NewRequest("q1", *PLACE, "ada", ASKED), 1)
    row = await MemoryRequests.change(store, "q1", request_row.claimed)
    assert row is not None
    return row


def run_over(store: MemoryRequests, row: OfflineRequest) -> RequestRun:
    anything: Any = None
    objects: Any = NoObjects()
    return RequestRun(Settings(), anything, store, objects, row)


def clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_run, "REPORT_S", 0.01)


async def test_a_result_counts_whose_change_had_no_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def computed(self: RequestRun) -> RequestResult:
        return RESULT

    monkeypatch.setattr(RequestRun, "_computed_result", computed)
    store = LostResponse(clock)
    outcome = await run_over(store, await claimed(store)).run()
    found = await store.read("q1")
    assert store.lost
    assert outcome is RunOutcome.DONE
    assert found is not None
    assert (found.state, found.result) == (RequestState.DONE, RESULT)


@pytest.mark.parametrize(
    "reason",
    [SystemUnavailable("S3 responds with 503"), DatabaseUnavailable("the database is away")],
    ids=["store", "plan"],
)
async def test_a_run_is_repeated_when_a_system_was_away(
    monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    async def away(self: RequestRun) -> RequestResult:
        raise reason

    monkeypatch.setattr(RequestRun, "_computed_result", away)
    store = MemoryRequests(clock)
    row = await claimed(store)
    assert await run_over(store, row).run() is RunOutcome.REPEAT
    for _ in range(request_row.MAX_CLAIMS - 1):
        row = await store.change("q1", request_row.claimed) or row
    assert await run_over(store, row).run() is RunOutcome.FAILED
    found = await store.read("q1")
    assert found is not None
    assert found.failure is not None
    assert str(reason) in found.failure.text


async def test_work_after_the_computation_is_repeated_in_place_until_the_request_ends() -> None:
    store = MemoryRequests(clock)
    run = run_over(store, await claimed(store))
    failures = [SystemUnavailable("S3"), TransactionOutcomeUnknown("Postgres")]

    async def work() -> str:
        if failures:
            raise failures.pop()
        return "stored"

    assert await run._patiently(work) == "stored"
    failures += [SystemUnavailable("S3")] * 2
    run._stopped = True
    with pytest.raises(RunSuperseded):
        await run._patiently(work)
    assert len(failures) == 1, "a request that was cancelled is not waited for"


async def test_work_after_the_computation_fails_when_a_system_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away() -> None:
        raise SystemUnavailable("S3")

    async def taken() -> None:
        raise ObjectConflict("other content")

    store = MemoryRequests(clock)
    run = run_over(store, await claimed(store))
    with pytest.raises(ObjectConflict):
        await run._patiently(taken)
    monkeypatch.setattr(request_run, "FINISH_S", 0.0)
    with pytest.raises(SystemUnavailable):
        await run._patiently(away)
