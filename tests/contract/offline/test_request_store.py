"""Requests for training data, in memory and in Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.connections import workspaces
from fennel_core.connections.postgres import pool
from fennel_core.offline import request_row
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import (
    FailedRow,
    OfflineRequest,
    RequestDefinition,
    RequestFailure,
    RequestResult,
    RunSuperseded,
    StoredFile,
)
from fennel_core.offline.request_store import MemoryRequests, RequestStore
from fennel_core.vocab.ids import BranchName, WorkspaceId

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")
WANTED = RequestDefinition(("F.k",), ("F.v", "G"), "at", "w", 3, "in", None, 2, ("short",))
RESULT = RequestResult("r/1", (StoredFile("a", "b", 3, 1),), (FailedRow(2, "zero"),), "c")
KEPT = timedelta(days=1)


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RequestStore]:
    if request.param == "memory":
        yield MemoryRequests(lambda: datetime.now(UTC))
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        for name in (SHOP, OTHER):
            await workspaces.create(connections, name)
        yield PostgresRequests(connections)


async def add(store: RequestStore, id_: str, workspace: WorkspaceId = SHOP) -> OfflineRequest:
    return await store.add(id_, (workspace, BranchName("main")), "ann", WANTED)


async def test_a_request_is_read_as_it_was_changed(store: RequestStore) -> None:
    added = await add(store, "q1")
    assert (added.definition, added.state) == (WANTED, "queued")
    assert await store.read("q1") == added
    assert await store.change("q1", request_row.started) is not None
    claimed = await store.change("q1", request_row.claimed)
    assert claimed is not None
    assert (claimed.epoch, claimed.starts, claimed.state) == (1, 1, "running")
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
        await store.change("q1", lambda row, now: request_row.reported(row, 1, 0.5, now))
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
