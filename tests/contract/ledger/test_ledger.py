"""The contract of a ledger, in memory and in Postgres, with a whole history of commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import asset_id
from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.plan_entries import (
    Notice,
    PlanAction,
    PlanEntry,
    PlanRecord,
    RowAmount,
)
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.postgres import pool
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.ledger import branches, creation, switching
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.lifecycle import CommitState, EntryState
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.reconcile import reconcile
from fennel_core.ledger.store import (
    Branch,
    Commit,
    CommitError,
    CommitOptions,
    HistoryRange,
    Ledger,
    LedgerKind,
    LedgerTransaction,
    StuckJob,
)
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.ledger.transitions import retain_or_condemn
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    AssetId,
    BranchName,
    CommitId,
    JobId,
    Micros,
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.problems import Problem
from tests.support.ledger_world import reserve
from tests.support.toy_commits import toy

SHOP = WorkspaceId("shop")
FEATURE = BranchName("feature")
PLAN = PlanRecord(
    (
        PlanEntry(
            PlanAction.DESTROY,
            AssetKind.TOPIC,
            AssetId("shop.topic.x.1"),
            "Orders",
            "Orders",
            "dataset Orders was removed",
            rows_lost=RowAmount(None),
        ),
    ),
    (Notice("code", "Orders", "text"),),
)
STUCK = StuckJob(JobId("shop.job.x.1"), "Orders: table", "ValueError: no")
FIRST, SECOND, THIRD = CommitId("c1"), CommitId("c2"), CommitId("c3")


def commit(
    id_: CommitId,
    *,
    digest: str = "d",
    options: CommitOptions | None = None,
    base: CommitId | None = None,
) -> Commit:
    return Commit(
        id_, SHOP, MAIN_BRANCH, CommitState.RECEIVED, digest, options or CommitOptions(), base
    )


FIRST_ERROR = CommitError(
    503, "one", "first error", (Problem("a-rule", "Orders.total", "the text"),)
)


async def add(ledger: Ledger, *commits: Commit) -> None:
    for row in commits:
        await ledger.run(lambda tx, row=row: tx.add_commit(row, b"request"))  # type: ignore[misc]  # bound now


async def test_a_workspace_keeps_the_partition_count_of_its_first_use(ledger: Ledger) -> None:
    assert await ledger.run(lambda tx: tx.partition_count(SHOP)) is None
    assert await ledger.run(lambda tx: tx.fix_partition_count(SHOP, 4)) == 4
    assert await ledger.run(lambda tx: tx.fix_partition_count(SHOP, 8)) == 4
    assert await ledger.run(lambda tx: tx.partition_count(SHOP)) == 4
    other = WorkspaceId("other")
    assert await ledger.run(lambda tx: tx.fix_partition_count(other, 8)) == 8
    with pytest.raises(WorkspaceNotFound):
        await ledger.run(lambda tx: tx.fix_partition_count(WorkspaceId("nowhere"), 4))


async def test_a_commit_row_is_read_as_it_was_written(ledger: Ledger) -> None:
    row = commit(FIRST, options=CommitOptions(incremental=True, backfill=False))
    await add(ledger, row, commit(SECOND, base=FIRST))
    assert await ledger.run(lambda tx: tx.commit(FIRST)) == row
    assert (await ledger.run(lambda tx: tx.commit(SECOND))).base == FIRST
    assert await ledger.run(lambda tx: tx.commit(THIRD)) is None
    assert await ledger.run(lambda tx: tx.request(FIRST)) == b"request"
    assert await ledger.run(lambda tx: tx.merged(FIRST)) is None
    assert await ledger.run(lambda tx: tx.catalog(FIRST)) is None
    assert await ledger.run(lambda tx: tx.plan(FIRST)) is None


async def test_compiled_parts_plan_stuck_jobs_errors_and_attempts_are_kept(ledger: Ledger) -> None:
    await add(ledger, commit(FIRST))

    async def work(tx: LedgerTransaction) -> list[int | None]:
        await tx.set_compiled(FIRST, None, b"merged", b"catalog", PLAN)
        await tx.set_stuck(FIRST, [STUCK, replace(STUCK, title="cured")])
        await tx.set_stuck(FIRST, [STUCK])
        await tx.set_state(FIRST, CommitState.UNDOING, FIRST_ERROR)
        await tx.set_state(FIRST, CommitState.ROLLED_BACK, CommitError(500, "two", "later error"))
        return [
            await tx.next_attempt(FIRST, 0),
            await tx.next_attempt(FIRST, 0),
            await tx.next_attempt(FIRST, 1),
        ]

    assert await ledger.run(work) == [1, None, 2]
    row = await ledger.run(lambda tx: tx.commit(FIRST))
    assert row is not None
    assert (row.stuck, row.error, row.attempt) == (
        (STUCK,),
        FIRST_ERROR,
        2,
    )
    assert await ledger.run(lambda tx: tx.plan(FIRST)) == PLAN
    assert await ledger.run(lambda tx: tx.merged(FIRST)) == b"merged"
    assert await ledger.run(lambda tx: tx.catalog(FIRST)) == b"catalog"


async def test_a_repeated_commit_is_found_by_its_digest_unless_it_failed(
    ledger: Ledger,
) -> None:
    await add(ledger, commit(FIRST), commit(SECOND), commit(THIRD, digest="other"))

    async def found() -> CommitId | None:
        row = await ledger.run(lambda tx: tx.same_commit(SHOP, MAIN_BRANCH, "d"))
        return row.id if row else None

    assert await found() == SECOND, "the newest"
    await ledger.run(lambda tx: tx.set_state(SECOND, CommitState.REJECTED))
    assert await found() == FIRST
    await ledger.run(lambda tx: tx.set_state(FIRST, CommitState.SUPERSEDED))
    assert await found() is None
    assert await ledger.run(lambda tx: tx.same_commit(SHOP, FEATURE, "other")) is None


async def test_open_commits_are_those_not_settled_in_order(ledger: Ledger) -> None:
    await add(ledger, commit(FIRST), commit(SECOND), commit(THIRD))
    await ledger.run(lambda tx: tx.set_state(SECOND, CommitState.FINISHED))
    assert await ledger.run(lambda tx: tx.open_commits()) == [FIRST, THIRD]
    assert await ledger.run(lambda tx: tx.open_commits(WorkspaceId("other"))) == []


async def test_reconcile_takes_a_lease_only_after_it_expired(ledger: Ledger) -> None:
    await add(ledger, commit(FIRST))
    assert await ledger.run(lambda tx: tx.take_expired_lease(FIRST, Millis(60_000))), "never leased"
    assert not await ledger.run(lambda tx: tx.take_expired_lease(FIRST, Millis(60_000)))
    assert await ledger.run(lambda tx: tx.extend_lease(FIRST, Millis(0))), "its worker is done"
    assert await ledger.run(lambda tx: tx.take_expired_lease(FIRST, Millis(60_000)))
    assert not await ledger.run(lambda tx: tx.extend_lease(SECOND, Millis(1)))


async def test_reconcile_reads_only_commits_without_a_live_lease_and_workspaces_with_condemned(
    ledger: Ledger,
) -> None:
    await add(ledger, commit(FIRST), commit(SECOND), commit(THIRD))
    await ledger.run(lambda tx: tx.extend_lease(SECOND, Millis(60_000)))
    await ledger.run(lambda tx: tx.set_state(THIRD, CommitState.FINISHED))
    assert [row.id for row in await ledger.run(lambda tx: tx.expired_commits())] == [FIRST]
    rows = await ledger.run(lambda tx: tx.open_commit_rows(SHOP))
    assert [row.id for row in rows] == [FIRST, SECOND]
    assert await ledger.run(lambda tx: tx.workspaces_with_condemned()) == []


async def test_a_workspace_with_condemned_assets_is_read_until_they_are_destroyed(
    ledger: Ledger,
) -> None:
    worker = Worker(ledger)
    await worker.run(FIRST, "a")
    (job,) = await ledger.run(lambda tx: tx.registered_jobs(SHOP))
    topics = await ledger.run(lambda tx: tx.topics_of_jobs([job]))
    assert topics == set(worker.topics.partition_counts)
    await ledger.run(lambda tx: condemn_all(tx, FIRST))
    assert await ledger.run(lambda tx: tx.workspaces_with_condemned()) == [SHOP]
    await destroy_condemned(worker.context, SHOP)
    assert await ledger.run(lambda tx: tx.workspaces_with_condemned()) == []


async def condemn_all(tx: LedgerTransaction, version: CommitId) -> None:
    released = await tx.bank.remove_references(SHOP, MAIN_BRANCH, version)
    await retain_or_condemn(tx, SHOP, None, released)


async def test_branches_are_listed_in_order_of_creation_and_main_is_first(ledger: Ledger) -> None:
    names = [BranchName(n) for n in ("zebra", "apple", "x/y.z")]
    for name in names:
        assert await ledger.run(lambda tx, name=name: tx.add_branch(Branch(SHOP, name, None, None)))
    assert not await ledger.run(lambda tx: tx.add_branch(Branch(SHOP, names[0], None, None)))
    await add(ledger, commit(FIRST))
    await ledger.run(lambda tx: tx.update_branch(Branch(SHOP, names[1], FIRST, None)))
    await ledger.run(lambda tx: tx.remove_branch(SHOP, names[0]))
    listed = await ledger.run(lambda tx: tx.branches(SHOP))
    assert listed == [
        Branch(SHOP, MAIN_BRANCH, None, None),
        Branch(SHOP, names[1], FIRST, None),
        Branch(SHOP, names[2], None, None),
    ]
    assert await ledger.run(lambda tx: tx.branch(SHOP, names[1])) == listed[1]
    assert await ledger.run(lambda tx: tx.branch(SHOP, names[0])) is None


async def test_an_asset_that_only_reads_use_is_without_a_target(ledger: Ledger) -> None:
    await add(ledger, commit(FIRST))
    await reserve(Worker(ledger).context, FIRST, toy("orders"), b"")
    reserved = await ledger.run(lambda tx: tx.bank.reserved(FIRST))
    assert await ledger.run(lambda tx: tx.without_target(reserved)) == frozenset()
    unfed = await ledger.run(lambda tx: tx.without_target(reserved, or_reservation=False))
    assert unfed == set(reserved)
    await ledger.run(lambda tx: tx.bank.add_references(FIRST, MAIN_BRANCH, reserved))
    await ledger.run(lambda tx: tx.bank.release_reservations(FIRST))
    await ledger.run(lambda tx: tx.update_branch(Branch(SHOP, MAIN_BRANCH, FIRST, FIRST)))
    for held in (True, False):
        found = await ledger.run(lambda tx, h=held: tx.without_target(reserved, or_reservation=h))
        assert found == frozenset()
    await add(ledger, commit(SECOND))
    await ledger.run(lambda tx: tx.update_branch(Branch(SHOP, MAIN_BRANCH, SECOND, FIRST)))
    assert await ledger.run(lambda tx: tx.without_target(reserved)) == set(reserved)


async def test_the_grace_period_of_an_orphan_starts_when_it_is_first_seen(
    ledger: Ledger,
) -> None:
    hour = Millis(3_600_000)
    assert await ledger.run(lambda tx: tx.record_orphans(["a", "b"], hour)) == []
    assert await ledger.run(lambda tx: tx.record_orphans(["b", "c"], Millis(0))) == ["b", "c"]
    assert await ledger.run(lambda tx: tx.record_orphans([], Millis(0))) == []


async def test_only_issued_names_that_are_deleted_or_unknown_are_unaccounted_for(
    ledger: Ledger,
) -> None:
    first = await ledger.run(lambda tx: tx.bank.next_incarnation())
    (blueprint, *_) = toy("orders").blueprints
    there, unknown, elsewhere, later = (
        asset_id(SHOP, blueprint.key, first + n) for n in (0, 1, -1, 2)
    )
    await ledger.run(lambda tx: tx.bank.next_incarnation())
    await ledger.run(
        lambda tx: tx.bank.add([Asset(there, SHOP, first, AssetState.LIVE, blueprint)])
    )
    every = [there, unknown, elsewhere, later]
    assert await ledger.run(lambda tx: tx.unaccounted(every)) == [unknown]
    await ledger.run(lambda tx: tx.bank.set_state([there], AssetState.DELETED))
    assert await ledger.run(lambda tx: tx.unaccounted(every)) == [there, unknown]


async def test_an_unavailable_database_raises_system_unavailable() -> None:
    async with pool("postgresql://nobody@127.0.0.1:1/nothing", name="test", size=1) as connections:
        with pytest.raises(ConnectionsError):
            await PostgresLedger(connections).run(lambda tx: tx.open_commits())


class Worker:
    """The definition server and an engine, as far as the ledger needs them."""

    def __init__(self, ledger: Ledger) -> None:
        self.topics = MemoryTopicAdmin()
        self.context = LedgerContext(
            ledger,
            self.topics,
            asyncio.sleep,
            LedgerTimings(orphan_grace_ms=Millis(0)),
        )
        self.ledger = ledger

    async def run(self, id_: CommitId, *words: str, warm_seconds: float = 0.0) -> None:
        base = await self.ledger.run(lambda tx: tx.branch(SHOP, MAIN_BRANCH))
        assert base is not None
        await add(self.ledger, commit(id_, digest=id_, base=base.target))
        await reserve(self.context, id_, toy(*words), b"")
        await creation.create_assets(self.context, id_)
        await switching.switch(self.context, id_)
        await wait_and_serve(self.context, id_, seconds=warm_seconds)
        await destroy_condemned(self.context, SHOP)

    async def state(self, id_: CommitId) -> CommitState:
        row = await self.ledger.run(lambda tx: tx.commit(id_))
        assert row is not None
        return row.state


async def test_a_workspace_passes_through_commits_branches_and_deletion(ledger: Ledger) -> None:
    worker = Worker(ledger)
    await worker.run(FIRST, "orders", "users", "cities-")
    assert await worker.state(FIRST) == "finished", (
        "nothing was served before, so nothing waits for engines"
    )
    catalog = stored_names.loads(await ledger.run(lambda tx: tx.catalog(FIRST)) or b"", Catalog)
    jobs = await ledger.run(lambda tx: tx.registered_jobs(SHOP))
    assert sorted(catalog.jobs) == jobs
    assert len(await ledger.run(lambda tx: tx.partition_progress(jobs))) == 2 * 2

    await branches.clone_branch(worker.context, SHOP, FEATURE, MAIN_BRANCH)
    await worker.run(SECOND, "users", "cities")
    assert await worker.state(SECOND) == "warming", (
        "no engine runs the new job over existing data, so the old version is still served"
    )
    main = await ledger.run(lambda tx: tx.branch(SHOP, MAIN_BRANCH))
    assert main == Branch(SHOP, MAIN_BRANCH, SECOND, FIRST)

    await worker.run(THIRD, "users")
    assert await worker.state(SECOND) == "superseded"
    assert await worker.state(THIRD) == "finished", "its only job was there before"
    assert {n.split(".")[1] for n in worker.topics.partition_counts} == {
        "topic",
        "replaylog",
        "dead",
    }
    assert len(await ledger.run(lambda tx: tx.registered_jobs(SHOP))) == 2, (
        "the clone holds `orders`; the table of `cities` is gone"
    )

    await branches.delete_branch(worker.context, SHOP, FEATURE)
    assert (await reconcile(worker.context)).open_entries == 0
    assert len(await ledger.run(lambda tx: tx.registered_jobs(SHOP))) == 1
    entries = await ledger.run(
        lambda tx: tx.entries(LedgerKind.DESTRUCTION, workspace=SHOP, only_open=False)
    )
    assert {e.state for e in entries} == {EntryState.DONE}

    await ledger.run(lambda tx: tx.close_workspace(SHOP))
    with pytest.raises(ApiError, match="does not exist"):
        await branches.init_branch(worker.context, SHOP, FEATURE)
    while not await branches.drop_closed_workspace(worker.context, SHOP):
        pass
    assert not worker.topics.partition_counts
    assert await ledger.run(lambda tx: tx.workspaces(closing=True)) == []
    assert await ledger.run(lambda tx: tx.add_workspace(SHOP)), "the name is free again"


async def test_of_concurrent_commits_to_one_branch_one_wins_and_one_conflicts(
    ledger: Ledger,
) -> None:
    worker = Worker(ledger)
    await add(ledger, commit(FIRST, digest="1"), commit(SECOND, digest="2"))

    async def whole(id_: CommitId, word: str) -> str:
        try:
            await reserve(worker.context, id_, toy("shared", word), b"")
            await creation.create_assets(worker.context, id_)
            await switching.switch(worker.context, id_)
        except ApiError as error:
            return error.code
        return "committed"

    assert sorted(await asyncio.gather(whole(FIRST, "a"), whole(SECOND, "b"))) == [
        "commit-conflict",
        "committed",
    ]
    await destroy_condemned(worker.context, SHOP)
    assert len(worker.topics.partition_counts) == 5, (
        "two datasets with a log each, and the dead letters"
    )


async def test_what_history_holds_is_read_from_its_index(database: str) -> None:
    topic, other = TopicName("shop.raw.a.1"), TopicName("shop.raw.b.1")
    async with pool(database, name="test", size=2) as connections:
        ledger = PostgresLedger(connections)
        assert await ledger.run(lambda tx: tx.history_ranges([topic])) == {}
        async with connections.connection() as connection:
            for name, part, first, next_ in (
                (topic, 0, 5, 20),
                (topic, 0, 20, 31),
                (topic, 1, 0, 4),
                (topic, 1, 6, 9),
                (other, 0, 0, 9),
            ):
                await connection.execute(
                    "INSERT INTO history_file (topic, part, first_offset, next_offset, object_key, "
                    "row_count, size_bytes, removed_rows, expired_rows) VALUES "
                    "(%s, %s, %s, %s, %s, 1, 1, %s, %s)",
                    (name, part, first, next_, f"{name}/{part}/{first}", first, 2 * first),
                )
        assert await ledger.run(lambda tx: tx.history_ranges([topic])) == {
            (topic, 0): HistoryRange(Offset(5), Offset(31), 25, 0, 50),
            (topic, 1): HistoryRange(Offset(0), Offset(9), 6, 2, 12),
        }


async def test_a_removed_workspace_leaves_no_history(database: str) -> None:
    mine, theirs = TopicName("shop.topic.a.1"), TopicName("shop-2.topic.a.2")
    part = PartitionIndex(0)

    def file(topic: TopicName, first: int, next_: int) -> HistoryFile:
        key = f"history/{topic}/0/{first}-{next_}"
        return HistoryFile(
            topic, part, Offset(first), Offset(next_), key, 1, 1, Micros(0), Micros(0)
        )

    async with pool(database, name="test", size=2) as connections:
        ledger, files = PostgresLedger(connections), PostgresHistoryFiles(connections)
        await ledger.run(lambda tx: tx.add_workspace(SHOP))
        for topic in (mine, theirs):
            assert await files.add(file(topic, 0, 5))
            assert await files.add(file(topic, 5, 9))
        later = await files.now() + timedelta(hours=1)
        merged = replace(file(mine, 0, 9), row_count=2)
        old = await files.files(mine, part)
        assert await files.replace(old, merged, later, timedelta(hours=1))
        await ledger.run(lambda tx: tx.remove_workspace(SHOP))
        assert set(await files.totals()) == {theirs}
        assert await files.ends([mine, theirs]) == {(theirs, 0): 9}
        assert await files.files(mine, part) == ()
        assert len(await files.files(theirs, part)) == 2
        assert not await files.add(file(mine, 9, 12)), "a writer that is late adds nothing"
        due = {file(mine, first, next_).object_key for first, next_ in ((0, 5), (5, 9), (0, 9))}
        assert set(await files.due(10)) == due, "the next pruning deletes the objects"
