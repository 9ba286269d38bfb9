"""A commit that lets rows leave history sooner says how many, and needs a confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKind, Compiled
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.expired_topics import expiries_now
from fennel_core.history.row_needs import RowNeedsReader
from fennel_core.ledger import branches, creation, switching
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import DataLossNotConfirmed
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.planning import preview
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.pruning import prune_ledgers
from fennel_core.ledger.store import Commit, CommitOptions, HistoryRange, LedgerTransaction
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    BranchName,
    CommitId,
    DatasetName,
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.wire.operators import DatasetRef
from tests.contract.ledger.conftest import open_both
from tests.support.compiler_inputs import derived, node, schema, sourced
from tests.support.ledger_world import reserve

SHOP = WorkspaceId("shop")
DAY = 86_400_000_000
GRACE = Millis(3_600_000)
AGE_DAYS = 40
ROWS = 25
CLICKS = schema("", "user city:str")
EVENTS = sourced("Clicks", CLICKS)


def copy(name: str) -> DatasetInput:
    """Return a dataset with the same rows as Clicks."""
    return derived(name, CLICKS, [node(name, DatasetRef(DatasetName("Clicks")), CLICKS)])


def version(**days: int) -> Compiled:
    """Compile Clicks and copies of it, each with its `history` in days."""
    inputs = [EVENTS if name == "Clicks" else copy(name) for name in days]
    compiled = compile_datasets(inputs, 2)
    datasets = tuple(replace(d, history_us=days[d.name] * DAY) for d in compiled.datasets)
    return replace(compiled, datasets=datasets)


@dataclass
class Shop:
    """A workspace whose commits run to their end."""

    ledger: MemoryLedger | PostgresLedger
    connections: Pool | None
    commits: int = 0

    def __post_init__(self) -> None:
        timings = LedgerTimings(first_warm_seconds=0.0, commit_history_ms=Millis(0))
        self.context = LedgerContext(
            self.ledger, MemoryTopicAdmin(), asyncio.sleep, timings, history_retention=True
        )

    async def commit(
        self, compiled: Compiled, *, confirmed: bool = False, branch: BranchName = MAIN_BRANCH
    ) -> list[str]:
        """Run a commit and return what its plan says about rows that leave history."""
        id_ = await self.plan(compiled, confirmed=confirmed, branch=branch)
        await self.finish(id_)
        plan = await self.ledger.run(lambda tx: tx.plan(id_))
        assert plan is not None
        return [f"{n.code} {n.entity}: {n.text}" for n in plan.notices]

    async def plan(
        self, compiled: Compiled, *, confirmed: bool = False, branch: BranchName = MAIN_BRANCH
    ) -> CommitId:
        """Run T1 of a commit."""
        self.commits += 1
        id_ = CommitId(f"c{self.commits}")

        async def receive(tx: LedgerTransaction) -> None:
            row = await tx.branch(SHOP, branch)
            base = row.target if row else None
            options = CommitOptions(allow_data_loss=confirmed)
            await tx.add_commit(
                Commit(id_, SHOP, branch, CommitState.RECEIVED, id_, options, base), b"request"
            )

        await self.ledger.run(receive)
        await reserve(self.context, id_, compiled)
        return id_

    async def finish(self, id_: CommitId, *, serve: bool = True) -> None:
        """Run the other steps of a commit; without `serve` reads stay where they are."""
        await creation.create_assets(self.context, id_)
        await switching.switch(self.context, id_)
        if serve:
            await wait_and_serve(self.context, id_, seconds=0)
            await destroy_condemned(self.context, SHOP)

    async def keep_old_rows(self) -> None:
        """Make the workspace older than retention."""
        if self.connections is None:
            assert isinstance(self.ledger, MemoryLedger)
            self.ledger.state.keeping_old_rows.add(SHOP)
            return
        async with self.connections.connection() as connection:
            await connection.execute("UPDATE workspace SET keeps_old_rows = true")

    async def remove_rows(self, topic: TopicName, rows: int, erased: int = 0) -> None:
        """Let so many rows of a file have left, and so many of erased keys."""
        if self.connections is None:
            assert isinstance(self.ledger, MemoryLedger)
            held = HistoryRange(Offset(0), Offset(1), erased, expired_rows=rows)
            self.ledger.state.history[topic, PartitionIndex(0)] = held
            return
        async with self.connections.connection() as connection:
            await connection.execute(
                "UPDATE history_file SET expired_rows = %s, removed_rows = %s", (rows, erased)
            )

    async def preview(self, compiled: Compiled) -> list[str]:
        plan = await preview(
            self.context, SHOP, MAIN_BRANCH, compiled, backfill=True, allow_data_loss=False
        )
        return [n.text for n in plan.notices if n.code == "history-shortened"]

    async def add_rows(self, compiled: Compiled | None = None) -> TopicName:
        """Give the topic of Clicks a file of rows, the oldest of which is 40 days old."""
        datasets = (compiled or version(Clicks=1)).datasets
        (key,) = {d.topic for d in datasets if d.topic is not None}
        assert key.kind is AssetKind.TOPIC
        topic = TopicName((await self.ledger.run(lambda tx: tx.bank.alive(SHOP, [key])))[key])
        if self.connections is None:
            assert isinstance(self.ledger, MemoryLedger)
            self.ledger.state.history_rows[topic] = [(-AGE_DAYS * DAY, ROWS)]
            return topic
        async with self.connections.connection() as connection:
            await connection.execute(
                "INSERT INTO history_file (topic, part, first_offset, next_offset, object_key, "
                "row_count, size_bytes, min_ts, max_ts, min_stamp) "
                "SELECT %s, 0, 0, 1, 'key', %s, 1, o.us, o.us, (o.us / 1000) << 16 FROM ("
                "SELECT (extract(epoch FROM now()) * 1000000)::bigint - %s AS us) AS o",
                (topic, ROWS, AGE_DAYS * DAY),
            )
            await connection.execute(
                "INSERT INTO ingest_clock (workspace, hlc, rows_at) VALUES ('shop', 0, now())"
            )
        return topic


@pytest.fixture(params=["memory", "postgres"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    if request.param == "memory":
        memory = MemoryLedger(lambda: 0, GRACE)
        await open_both(memory)
        yield Shop(memory, None)
        return
    async with pool(request.getfixturevalue("database"), name="test", size=4) as connections:
        postgres = PostgresLedger(connections, GRACE)
        await open_both(postgres)
        yield Shop(postgres, connections)


LOST = f"up to {ROWS} rows in history are older, and begin to leave in 1 h, for ever"


async def test_a_shorter_history_is_refused_until_its_loss_is_confirmed(shop: Shop) -> None:
    assert await shop.commit(version(Clicks=60)) == []
    await shop.add_rows()
    assert await shop.commit(version(Clicks=50)) == [], "no row is so old"
    text = f"rows of `Clicks` are needed for 30 days instead of for 50 days: {LOST}"
    assert await shop.preview(version(Clicks=30)) == [text]
    with pytest.raises(DataLossNotConfirmed) as refused:
        await shop.commit(version(Clicks=30))
    assert text in str(refused.value)
    assert "or keep a longer `history`, or what needs the rows" in str(refused.value)
    assert await shop.preview(version(Clicks=30)) == [text], "nothing has changed"
    assert await shop.commit(version(Clicks=30), confirmed=True) == [
        f"history-shortened Clicks: {text}"
    ]
    assert await shop.commit(version(Clicks=30, Copy=5)) == [], "it is confirmed once"
    assert await shop.commit(version(Clicks=60)) == []


async def test_a_longer_reader_that_leaves_shortens_history_too(shop: Shop) -> None:
    await shop.commit(version(Clicks=30, Copy=60))
    await shop.add_rows()
    with pytest.raises(DataLossNotConfirmed, match="needed for 30 days instead of for 60 days"):
        await shop.commit(version(Clicks=30))
    others = await shop.commit(version(Clicks=30, Copy=60, Other=2))
    assert not any("history-shortened" in each for each in others)
    await branches.clone_branch(shop.context, SHOP, BranchName("copy"), MAIN_BRANCH)
    assert await shop.commit(version(Clicks=30)) == [], "another branch keeps the reader"


async def test_a_replaced_version_keeps_its_definitions_for_the_grace_period(shop: Shop) -> None:
    await shop.commit(version(Clicks=60))
    topic = await shop.add_rows()
    await shop.commit(version(Clicks=30), confirmed=True)
    await prune_ledgers(shop.context)
    catalog = await shop.ledger.run(lambda tx: tx.catalog(CommitId("c1")))
    assert catalog is not None, "it holds rows"
    if shop.connections is not None:
        needs = RowNeedsReader(shop.connections)
        assert (await expiries_now(needs)).topics[topic].kept_us == 60 * DAY
        async with shop.connections.connection() as connection:
            await connection.execute("UPDATE commit SET rows_held_until = now()")
        assert (await expiries_now(needs)).topics[topic].kept_us == 30 * DAY


async def test_versions_hold_rows_only_from_the_end_of_their_use_on(shop: Shop) -> None:
    async def held() -> list[CommitId]:
        return sorted(await shop.ledger.run(lambda tx: tx.versions_with_held_rows(SHOP)))

    await shop.commit(version(Clicks=60))
    assert await held() == []
    second = await shop.plan(version(Clicks=50))
    await shop.finish(second, serve=False)
    assert await held() == [], "reads use the first, jobs write the second"
    await wait_and_serve(shop.context, second, seconds=0)
    assert await held() == ["c1"]
    await shop.commit(version(Clicks=40))
    assert await held() == ["c1", "c2"], "and not the third, which the branch has"


async def test_the_versions_of_a_deleted_branch_hold_rows(shop: Shop) -> None:
    await shop.commit(version(Clicks=30))
    await branches.clone_branch(shop.context, SHOP, BranchName("copy"), MAIN_BRANCH)
    await shop.commit(version(Clicks=60), branch=BranchName("copy"))
    topic = await shop.add_rows()
    await branches.delete_branch(shop.context, SHOP, BranchName("copy"))
    await prune_ledgers(shop.context)
    assert await shop.ledger.run(lambda tx: tx.catalog(CommitId("c2"))) is not None
    if shop.connections is not None:
        needs = RowNeedsReader(shop.connections)
        assert (await expiries_now(needs)).topics[topic].kept_us == 60 * DAY


async def test_a_workspace_that_is_older_than_retention_keeps_rows_until_a_confirmation(
    shop: Shop,
) -> None:
    await shop.commit(version(Clicks=30))
    topic = await shop.add_rows()
    await shop.keep_old_rows()
    assert await shop.commit(version(Clicks=20)) == [
        "history-not-applied Clicks: rows of `Clicks` are needed for 20 days: up to 25 rows in "
        "history are older, and stay until their loss is confirmed: commit with allow_data_loss"
    ]
    notice, confirmed = await shop.commit(version(Clicks=10), confirmed=True)
    assert notice.endswith(f"needed for 10 days instead of for ever: {LOST}")
    assert confirmed.startswith("history-confirmed")
    assert not await shop.ledger.run(lambda tx: tx.keeps_old_rows(SHOP))
    if shop.connections is not None:
        needs = RowNeedsReader(shop.connections)
        assert (await expiries_now(needs)).topics == {}, "for the grace period"
        assert topic in (await expiries_now(needs, dry_run=True)).topics
        async with shop.connections.connection() as connection:
            await connection.execute("UPDATE workspace SET old_rows_held_until = now()")
        assert topic in (await expiries_now(needs)).topics


def users(days: int, *, copied: bool = False) -> Compiled:
    """Compile a keyed dataset with its `history` in days, and perhaps one computed from it."""
    keyed = schema("user", "city:str")
    inputs = [sourced("Clicks", keyed)]
    if copied:
        copies = [node("Copy", DatasetRef(DatasetName("Clicks")), keyed)]
        inputs.append(derived("Copy", keyed, copies))
    compiled = compile_datasets(inputs, 2)
    chosen = tuple(replace(each, history_us=days * DAY) for each in compiled.datasets)
    return replace(compiled, datasets=chosen)


async def test_replaced_versions_of_a_keyed_dataset_leave_with_a_confirmation(shop: Shop) -> None:
    (notice,) = await shop.commit(users(30, copied=True))
    assert notice.startswith("history-not-applied Clicks"), "a job reads it, and none the copy"
    await shop.add_rows(users(1))
    with pytest.raises(DataLossNotConfirmed):
        await shop.plan(users(30))
    (notice,) = await shop.commit(users(30), confirmed=True)
    assert notice.endswith(f"`Clicks` are needed for 30 days instead of for ever: {LOST}")
    assert await shop.commit(users(60)) == []
    with pytest.raises(DataLossNotConfirmed):
        await shop.plan(users(20))


async def test_without_the_setting_nothing_is_confirmed(shop: Shop) -> None:
    shop.context = replace(shop.context, history_retention=False)
    await shop.commit(version(Clicks=60))
    await shop.add_rows()
    (notice,) = await shop.commit(version(Clicks=30), confirmed=True)
    assert "kept longer while the setting FENNEL_HISTORY_RETENTION is off" in notice
    await shop.keep_old_rows()
    await shop.commit(version(Clicks=20), confirmed=True)
    assert await shop.ledger.run(lambda tx: tx.keeps_old_rows(SHOP)), "nothing was counted"


async def test_a_commit_is_told_of_rows_that_have_left_until_it_takes_the_lock(shop: Shop) -> None:
    await shop.commit(version(Clicks=30))
    topic = await shop.add_rows()
    await shop.remove_rows(topic, 3)

    class Meanwhile(MemoryTopicAdmin):
        """Kafka, which takes so long that a run removes rows."""

        async def message_counts(self, topics: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
            await shop.remove_rows(topic, 7, erased=9)
            return await super().message_counts(topics)

    shop.context = replace(shop.context, topics=Meanwhile())
    told = await shop.commit(version(Clicks=30, Copy=30))
    assert any("`Copy` is computed without 7 rows that were older" in each for each in told), told
    assert any("`Copy` is computed without 9 rows of erased" in each for each in told), told


async def two_branches(shop: Shop) -> BranchName:
    """Clone a branch whose versions need rows for 60 days."""
    await shop.commit(version(Clicks=30, Copy=60))
    dev = BranchName("dev")
    await branches.clone_branch(shop.context, SHOP, dev, MAIN_BRANCH)
    await shop.add_rows()
    return dev


async def test_a_version_that_is_being_replaced_keeps_no_rows_for_another_branch(
    shop: Shop,
) -> None:
    dev = await two_branches(shop)
    first = await shop.plan(version(Clicks=30))
    with pytest.raises(DataLossNotConfirmed, match="30 days instead of for 60 days"):
        await shop.plan(version(Clicks=30), branch=dev)
    await shop.finish(first, serve=False)
    with pytest.raises(DataLossNotConfirmed, match="30 days instead of for 60 days"):
        await shop.plan(version(Clicks=30), branch=dev)
    await shop.plan(version(Clicks=30, Copy=60, Other=2), branch=dev)


async def test_a_commit_that_may_be_undone_keeps_no_rows_for_another_branch(shop: Shop) -> None:
    await shop.commit(version(Clicks=30))
    dev = BranchName("dev")
    await branches.clone_branch(shop.context, SHOP, dev, MAIN_BRANCH)
    await shop.commit(version(Clicks=30, Copy=60))
    await shop.add_rows()
    await shop.plan(version(Clicks=30, Copy=60), branch=dev)
    with pytest.raises(DataLossNotConfirmed, match="30 days instead of for 60 days"):
        await shop.plan(version(Clicks=30))


async def test_a_commit_that_shortens_history_of_another_branch_may_reach_t2(shop: Shop) -> None:
    dev = await two_branches(shop)
    await shop.plan(version(Clicks=30), branch=dev)
    with pytest.raises(DataLossNotConfirmed, match="30 days instead of for 60 days"):
        await shop.plan(version(Clicks=30, Other=2))
    await shop.plan(version(Clicks=30, Copy=60, Other=2))


async def test_a_confirmed_loss_is_not_asked_again_while_reads_have_not_moved(shop: Shop) -> None:
    await shop.commit(version(Clicks=60))
    await shop.add_rows()
    await shop.finish(await shop.plan(version(Clicks=30), confirmed=True), serve=False)
    assert not any("shortened" in each for each in await shop.commit(version(Clicks=30, Copy=2)))


async def test_what_was_deleted_comes_back_without_a_confirmation(shop: Shop) -> None:
    await shop.commit(version(Clicks=38))
    await shop.add_rows()
    await shop.commit(version())
    assert await shop.preview(version(Clicks=38)) == []
    (lost,) = await shop.preview(version(Clicks=20))
    assert "for 20 days instead of for 38 days" in lost


async def test_only_a_plan_that_said_so_lets_the_rows_of_an_older_workspace_leave(
    shop: Shop,
) -> None:
    await shop.commit(version(Clicks=60))
    await shop.add_rows()
    await shop.keep_old_rows()
    on, off = shop.context, replace(shop.context, history_retention=False)
    shop.context = off
    id_ = await shop.plan(version(Clicks=20), confirmed=True)
    shop.context = on
    await shop.finish(id_)
    assert await shop.ledger.run(lambda tx: tx.keeps_old_rows(SHOP))


async def test_another_branch_is_asked_while_a_confirmation_is_under_way(shop: Shop) -> None:
    dev = await two_branches(shop)
    await shop.keep_old_rows()
    await shop.plan(version(Clicks=30), confirmed=True)
    with pytest.raises(DataLossNotConfirmed, match="30 days instead of for 60 days"):
        await shop.plan(version(Clicks=30), branch=dev)
