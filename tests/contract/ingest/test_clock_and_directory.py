"""One suite for the ingest clock and the catalog directory, in memory and in Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ingest.acceptance import SourceAdvance, SourceProgress
from fennel_core.ingest.postgres import PostgresDirectory, PostgresIngestClock
from fennel_core.ingest.store import (
    BranchCatalog,
    Branches,
    CatalogDirectory,
    IngestClock,
    MemoryDirectory,
    MemoryIngestClock,
)
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, Identity, Micros, WorkspaceId
from tests.support.ingest_rows import open_workspace, point_branch
from tests.support.ingest_world import WORKSPACE, binding, catalog

OTHER = WorkspaceId("other")
USERS, ORDERS = Identity("users"), Identity("orders")


@dataclass
class Bench:
    clock: IngestClock
    directory: CatalogDirectory
    pool: Any = None
    moved: int = 0

    async def point(self, branch: str, commit: str, to: Catalog | None) -> None:
        """Let a branch of the workspace point at a commit."""
        if self.pool is not None:
            await point_branch(self.pool, WORKSPACE, branch, commit, to)
            return
        assert isinstance(self.directory, MemoryDirectory)
        self.moved += 1
        before = self.directory.workspaces.get(WORKSPACE, Branches("", ())).branches
        after = [b for b in before if b.branch != branch]
        if to is not None:
            place = next((i for i, b in enumerate(before) if b.branch == branch), len(after))
            after.insert(place, BranchCatalog(BranchName(branch), CommitId(commit), to))
        self.directory.workspaces[WORKSPACE] = Branches(str(self.moved), tuple(after))


@pytest.fixture(params=["memory", "postgres"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        directory = MemoryDirectory()
        yield Bench(MemoryIngestClock(lambda: Micros(time.time_ns() // 1000), directory), directory)
        return
    async with postgres.pool(request.getfixturevalue("database"), name="test") as pool:
        for workspace in (WORKSPACE, OTHER):
            await open_workspace(pool, workspace)
        yield Bench(PostgresIngestClock(pool), PostgresDirectory(pool), pool)


async def test_stamps_grow_and_each_is_given_once(bench: Bench) -> None:
    start = await asyncio.gather(*(bench.clock.begin(WORKSPACE, ()) for _ in range(30)))
    stamps = [b.hlc for b in start]
    assert len(set(stamps)) == 30
    assert (await bench.clock.begin(WORKSPACE, ())).hlc > max(stamps)


async def test_a_stamp_is_close_to_the_wall_clock(bench: Bench) -> None:
    start = await bench.clock.begin(WORKSPACE, ())
    assert abs((start.hlc >> 16) - time.time() * 1000) < 5_000
    assert abs(start.now_us / 1000 - (start.hlc >> 16)) < 1_000


async def test_a_source_that_accepted_nothing_has_no_progress(bench: Bench) -> None:
    assert (await bench.clock.begin(WORKSPACE, (USERS,))).progress == {}


async def test_the_newest_time_counts_for_lateness_from_the_second_advance_on(bench: Bench) -> None:
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, Micros(100), 0)])
    first = (await bench.clock.begin(WORKSPACE, (USERS, ORDERS))).progress
    assert (first[USERS].watermark_us, first[USERS].latest_us, set(first)) == (None, 100, {USERS})
    await bench.clock.record_accepted(
        WORKSPACE, [SourceAdvance(USERS, Micros(40), 2), SourceAdvance(ORDERS, Micros(7), 0)]
    )
    second = (await bench.clock.begin(WORKSPACE, (USERS, ORDERS))).progress
    assert (second[USERS].watermark_us, second[USERS].latest_us) == (100, 100)
    assert (second[ORDERS].watermark_us, second[ORDERS].latest_us) == (None, 7)


async def test_dropped_rows_are_counted_and_move_nothing(bench: Bench) -> None:
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, Micros(100), 0)])
    before = (await bench.clock.begin(WORKSPACE, (USERS,))).progress
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, None, 3)])
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, None, 4)])
    assert (await bench.clock.begin(WORKSPACE, (USERS,))).progress == before
    if isinstance(bench.clock, MemoryIngestClock):
        discarded = bench.clock.discarded[USERS]
    else:
        async with bench.pool.connection() as connection:
            discarded = (
                await (await connection.execute("SELECT discarded FROM source_clock")).fetchone()
            )[0]
    assert discarded == 7


async def test_progress_has_the_time_of_the_last_rows(bench: Bench) -> None:
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, Micros(100), 0)])
    start = await bench.clock.begin(WORKSPACE, (USERS,))
    last = start.progress[USERS].last_rows_us
    assert last is not None
    assert 0 <= start.now_us - last < 5_000_000


async def test_workspaces_do_not_share_progress(bench: Bench) -> None:
    await bench.clock.record_accepted(WORKSPACE, [SourceAdvance(USERS, Micros(100), 0)])
    assert (await bench.clock.begin(OTHER, (USERS,))).progress.get(
        USERS, SourceProgress()
    ) == SourceProgress()


async def test_an_unknown_workspace_has_no_branches(bench: Bench) -> None:
    assert (await bench.directory.read(WorkspaceId("nobody"), {})).branches == ()


async def test_branches_are_listed_oldest_first_with_their_catalogs(bench: Bench) -> None:
    one, two = catalog(binding()), catalog(binding(dataset="Orders"))
    await bench.point("main", "c1", one)
    await bench.point("dev", "c2", two)
    await bench.point("empty", "c3", None)
    await bench.point("main", "c4", two)
    found = (await bench.directory.read(WORKSPACE, {CommitId("c2"): two})).branches
    assert [(b.branch, b.commit, b.catalog) for b in found] == [
        ("main", "c4", two),
        ("dev", "c2", two),
    ]


async def test_the_stamp_carries_the_version_that_the_directory_reads(bench: Bench) -> None:
    await bench.point("main", "c1", catalog(binding()))
    read = await bench.directory.read(WORKSPACE, {})
    assert (await bench.clock.begin(WORKSPACE, ())).version == read.version
    await bench.point("main", "c2", catalog(binding()))
    moved = (await bench.clock.begin(WORKSPACE, ())).version
    assert moved != read.version
    assert (await bench.directory.read(WORKSPACE, {})).version == moved


async def test_an_erasure_is_read_with_a_new_version_and_repeating_it_changes_nothing(
    bench: Bench,
) -> None:
    await bench.point("main", "c1", catalog(binding()))
    before = await bench.directory.read(WORKSPACE, {})
    await bench.directory.erase(WORKSPACE, DatasetName("Users"), ("user",), [b"a", b"b"])
    after = await bench.directory.read(WORKSPACE, {})
    assert after.version != before.version
    assert (await bench.clock.begin(WORKSPACE, ())).version == after.version
    assert {k for e in after.erased[DatasetName("Users")] for k in e.keys} == {b"a", b"b"}
    assert {e.columns for e in after.erased[DatasetName("Users")]} == {("user",)}
    await bench.directory.erase(WORKSPACE, DatasetName("Users"), ("user",), [b"b"])
    assert await bench.directory.read(WORKSPACE, {}) == after
    assert (await bench.directory.read(OTHER, {})).erased == {}


async def test_a_lost_database_is_system_unavailable() -> None:
    pool = postgres.pool("postgresql://nobody@127.0.0.1:1/nothing", name="test")
    pool.timeout = 0.2
    await pool.open(wait=False)
    with pytest.raises(SystemUnavailable, match="cannot be reached"):
        await PostgresIngestClock(pool).begin(WORKSPACE, ())
    await pool.close()
