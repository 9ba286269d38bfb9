"""Requests for training data, in memory and in Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.connections import workspaces
from fennel_core.connections.postgres import pool
from fennel_core.offline import request_row
from fennel_core.offline.api_errors import OfflineQueueFull
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import (
    FailedRow,
    NewRequest,
    OfflineRequest,
    ReadEstimate,
    RequestDefinition,
    RequestFailure,
    RequestResult,
    RunProgress,
    RunSuperseded,
    StoredFile,
)
from fennel_core.offline.request_store import MemoryRequests, RequestStore
from fennel_core.vocab.ids import BranchName, WorkspaceId

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")
READ = ReadEstimate(5, 80, 1)
WANTED = RequestDefinition(("F.k",), ("F.v", "G"), "at", "w", 3, "in", None, 2, ("short",), READ)
RESULT = RequestResult("r/1", (StoredFile("a", "b", 3, 1),), (FailedRow(2, "zero"),), "c")
KEPT = timedelta(days=1)
HALF = RunProgress(0.5, 2)


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RequestStore]:
    if request.param == "memory":
        yield MemoryRequests(lambda: datetime.now(UTC))
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        for name in (SHOP, OTHER):
            await workspaces.create(connections, name)
        yield PostgresRequests(connections)


async def add(
    store: RequestStore, id_: str, workspace: WorkspaceId = SHOP, run: str | None = None
) -> OfflineRequest:
    new = NewRequest(id_, workspace, BranchName("main"), "ann", WANTED, run)
    return await store.add(new, limit=4)


async def test_a_workspace_has_no_more_open_requests_than_its_limit(store: RequestStore) -> None:
    await add(store, "ended")
    await store.change("ended", request_row.cancelled)
    await add(store, "other", OTHER)
    calls = (add(store, f"q{n}") for n in range(8))
    done = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in done if isinstance(each, OfflineQueueFull)]
    assert (len(refused), await store.count_open(SHOP), await store.count_open(OTHER)) == (4, 4, 1)


async def test_a_request_is_stored_once_with_the_run_that_computes_it(store: RequestStore) -> None:
    added = await add(store, "q1", run="manual__1")
    assert (added.starts, added.newest_run) == (1, "manual__1")
    assert added.has_run(added.created_at)
    assert await store.change("q1", request_row.claimed) is not None
    again = await add(store, "q1", run="manual__1")
    assert again == await store.read("q1")
    assert again.epoch == 1


async def test_removed_objects_are_known_by_the_ids_of_their_requests(store: RequestStore) -> None:
    for id_ in ("q1", "q2"):
        await add(store, id_)
    await store.change("q2", request_row.cancelled)
    await store.change("q2", request_row.removed)
    assert await store.removals(["q1", "q2", "q3"]) == {"q1": False, "q2": True}
    assert await store.removals([]) == {}


async def test_a_request_is_read_as_it_was_changed(store: RequestStore) -> None:
    added = await add(store, "q1")
    assert (added.definition, added.state) == (WANTED, "queued")
    assert await store.read("q1") == added
    assert await store.change("q1", request_row.started) is not None
    claimed = await store.change("q1", request_row.claimed)
    assert claimed is not None
    assert (claimed.epoch, claimed.starts, claimed.state) == (1, 1, "running")
    await store.change("q1", lambda row, now: request_row.reported(row, 1, HALF, now))
    working = await store.read("q1")
    assert working is not None
    assert (working.completion, working.failed_rows) == (0.5, 2)
    assert working.newest_run == "offline-q1-1"
    done = await store.change("q1", lambda row, now: request_row.finished(row, 1, RESULT, now))
    assert done is not None
    found = await store.read("q1")
    assert found is not None
    assert found.result is not None
    assert (found.state, found.completion) == ("done", 1.0)
    assert (found.result.files, found.result.failed) == (RESULT.files, 1)
    assert found.created_at <= (found.began_at or found.created_at) <= (await store.now())


async def test_a_change_that_raises_changes_nothing(store: RequestStore) -> None:
    before = await add(store, "q1")
    with pytest.raises(RunSuperseded):
        await store.change("q1", lambda row, now: request_row.reported(row, 1, HALF, now))
    assert await store.read("q1") == before
    assert await store.read("other") is None
    assert await store.change("other", request_row.claimed) is None


async def test_lists_have_what_they_name_in_order(store: RequestStore) -> None:
    for id_, workspace in (("q1", SHOP), ("q2", OTHER), ("q3", SHOP), ("q4", SHOP)):
        await add(store, id_, workspace)
    broken = RequestFailure("code", "text")
    await store.change("q3", request_row.cancelled)
    await store.change("q4", request_row.claimed)
    await store.change("q4", lambda row, now: request_row.failed(row, 1, broken, now))
    assert [row.id for row in await store.newest(SHOP, 2)] == ["q4", "q3"]
    assert [row.id for row in await store.newest(None, 9)] == ["q4", "q3", "q2", "q1"]
    assert [row.id for row in await store.open_requests()] == ["q1", "q2"]
    ended = await store.read("q4")
    assert ended is not None
    assert ended.failure == broken


async def test_objects_of_ended_requests_are_due_in_the_order_of_their_ends(
    store: RequestStore,
) -> None:
    for id_ in ("done", "dropped", "running", "working"):
        await add(store, id_)
    for id_ in ("done", "running", "working"):
        await store.change(id_, request_row.claimed)
    await store.change("working", request_row.cancelled)  # its run may still be writing
    await store.change("dropped", request_row.cancelled)
    await store.change("done", lambda row, now: request_row.finished(row, 1, RESULT, now))
    assert [row.id for row in await store.removable(KEPT)] == ["dropped"]
    assert [row.id for row in await store.removable(timedelta())] == ["dropped", "done"]
    await store.change("dropped", request_row.removed)
    assert [row.id for row in await store.removable(timedelta())] == ["done"]


async def test_rows_are_forgotten_when_they_are_old_and_their_objects_are_gone(
    store: RequestStore,
) -> None:
    for id_ in ("open", "kept", "gone"):
        await add(store, id_)
    for id_ in ("kept", "gone"):
        await store.change(id_, request_row.cancelled)
    await store.change("gone", request_row.removed)
    assert await store.forget(KEPT) == 0
    assert await store.forget(timedelta()) == 1
    assert await store.forget(timedelta()) == 0
    assert [row.id for row in await store.newest(None, 9)] == ["kept", "open"]
