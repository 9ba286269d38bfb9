"""Pruning in memory and in Postgres: what goes after the retention, and what is never removed."""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.bank.store import AssetState
from fennel_core.ledger import branches, commit_failure, creation, switching
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import CommitConflict
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.pruning import prune_ledgers
from fennel_core.ledger.store import Commit, CommitOptions, Ledger, LedgerKind, LedgerTransaction
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.vocab.ids import MAIN_BRANCH, AssetId, BranchName, CommitId, Millis, WorkspaceId
from tests.support.ledger_world import reserve
from tests.support.toy_commits import toy

SHOP = WorkspaceId("shop")
COPY = BranchName("copy")
NOW, HOUR = Millis(0), Millis(3_600_000)
FIRST, SECOND, THIRD = CommitId("c1"), CommitId("c2"), CommitId("c3")


class Process:
    """A process whose retention can be set per call; no engine runs, so jobs stop at once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.topics = MemoryTopicAdmin()
        self._entered: set[AssetId] = set()

    def context(self, older_ms: Millis = HOUR) -> LedgerContext:
        timings = LedgerTimings(first_warm_seconds=0.0, commit_history_ms=older_ms)
        return LedgerContext(self.ledger, self.topics, asyncio.sleep, timings)

    async def receive(self, id_: CommitId, branch: BranchName = MAIN_BRANCH) -> None:
        async def add(tx: LedgerTransaction) -> None:
            row = await tx.branch(SHOP, branch)
            base = row.target if row else None
            await tx.add_commit(
                Commit(id_, SHOP, branch, CommitState.RECEIVED, id_, CommitOptions(), base),
                b"request",
            )

        await self.ledger.run(add)

    async def commit(self, id_: CommitId, *words: str, branch: BranchName = MAIN_BRANCH) -> None:
        await self.receive(id_, branch)
        context = self.context()
        await reserve(context, id_, toy(*words))
        await creation.create_assets(context, id_)
        await switching.switch(context, id_)
        await wait_and_serve(context, id_, seconds=0)
        await destroy_condemned(context, SHOP)

    async def whole(self) -> set[str]:
        """Return the commits that still have their definitions."""

        async def read(tx: LedgerTransaction) -> set[str]:
            found = set()
            for id_ in (FIRST, SECOND, THIRD):
                parts = (await tx.merged(id_), await tx.catalog(id_))
                assert len({part is None for part in parts}) == 1, "all of it or nothing"
                if parts[0] is not None:
                    assert await tx.request(id_) == b"request"
                    found.add(id_)
            return found

        return await self.ledger.run(read)

    async def entries(self) -> int:
        async def count(tx: LedgerTransaction) -> int:
            return sum([len(await tx.entries(kind, only_open=False)) for kind in LedgerKind])

        return await self.ledger.run(count)

    async def deleted(self) -> set[AssetId]:
        """Return the deleted assets that the bank still has."""

        async def read(tx: LedgerTransaction) -> set[AssetId]:
            for kind in LedgerKind:
                self._entered |= {e.asset for e in await tx.entries(kind, only_open=False)}
            rows = await tx.bank.summaries(self._entered)
            return {row.id for row in rows if row.state is AssetState.DELETED}

        return await self.ledger.run(read)


@pytest.fixture
def process(ledger: Ledger) -> Process:
    return Process(ledger)


async def test_a_replaced_version_is_pruned_and_its_row_and_plan_stay(process: Process) -> None:
    await process.commit(FIRST, "orders", "users")
    await process.commit(SECOND, "users")
    plan = await process.ledger.run(lambda tx: tx.plan(FIRST))
    row = await process.ledger.run(lambda tx: tx.commit(FIRST))
    assert plan is not None
    assert await prune_ledgers(process.context(HOUR)) == 0, "nothing is old enough"
    assert await process.whole() == {FIRST, SECOND}
    assert await prune_ledgers(process.context(NOW)) > 0
    assert await process.whole() == {SECOND}
    assert await process.ledger.run(lambda tx: tx.plan(FIRST)) == plan
    assert await process.ledger.run(lambda tx: tx.commit(FIRST)) == row
    assert await prune_ledgers(process.context(NOW)) == 0


async def test_the_versions_of_branches_are_never_pruned(process: Process) -> None:
    await process.commit(FIRST, "orders")
    await branches.clone_branch(process.context(), SHOP, COPY, MAIN_BRANCH)
    await process.commit(SECOND, "users")
    await prune_ledgers(process.context(NOW))
    assert await process.whole() == {FIRST, SECOND}, "the copy has the first one"
    await branches.delete_branch(process.context(), SHOP, COPY)
    await prune_ledgers(process.context(NOW))
    assert await process.whole() == {SECOND}


async def test_the_version_that_an_open_commit_was_validated_against_stays(
    process: Process,
) -> None:
    await process.commit(FIRST, "orders")
    await process.receive(THIRD)
    await process.commit(SECOND, "users")
    await prune_ledgers(process.context(NOW))
    assert await process.whole() == {FIRST, SECOND}, "the third one may have to be rebased"
    row = await process.ledger.run(lambda tx: tx.commit(THIRD))
    assert row is not None
    assert row.base == FIRST
    await commit_failure.reject_commit(process.context(), THIRD, CommitConflict(MAIN_BRANCH))
    await prune_ledgers(process.context(NOW))
    assert await process.whole() == {SECOND}


async def test_done_entries_and_deleted_assets_go_and_nothing_that_lives(
    process: Process,
) -> None:
    await process.commit(FIRST, "orders", "users")
    await process.commit(SECOND, "users")
    held = await process.ledger.run(lambda tx: tx.bank.references(SHOP, MAIN_BRANCH))
    deleted = await process.deleted()
    before = await process.entries()
    assert deleted
    assert before > 0
    await prune_ledgers(process.context(HOUR))
    assert (await process.entries(), await process.deleted()) == (before, deleted)
    await prune_ledgers(process.context(NOW))
    assert (await process.entries(), await process.deleted()) == (0, set())
    rows = await process.ledger.run(lambda tx: tx.bank.summaries(held))
    assert {row.state for row in rows} == {AssetState.LIVE}
    assert await process.ledger.run(lambda tx: tx.unaccounted(sorted(deleted))) == sorted(deleted)
    await process.commit(THIRD, "orders", "users")
    assert await process.entries() > 0, "numbers of removed entries are not used again"


async def test_the_entries_of_an_open_commit_stay(process: Process) -> None:
    await process.commit(FIRST, "orders")
    await process.receive(SECOND)
    await reserve(process.context(), SECOND, toy("orders", "users"))
    await creation.create_assets(process.context(), SECOND)
    await prune_ledgers(process.context(NOW))
    kept = await process.ledger.run(
        lambda tx: tx.entries(LedgerKind.CREATION, commit=SECOND, only_open=False)
    )
    assert kept, "warming reads them: they say which inputs are new"


async def test_pruning_is_bounded(process: Process) -> None:
    await process.commit(FIRST, "orders", "users")
    await process.commit(SECOND)
    assert await process.ledger.run(lambda tx: tx.prune_entries(NOW, 2)) == 2
    assert await process.ledger.run(lambda tx: tx.prune_assets(1)) == 0, "an entry refers to it"
    while await process.ledger.run(lambda tx: tx.prune_entries(NOW, 2)):
        pass
    assert await process.ledger.run(lambda tx: tx.prune_assets(1)) == 1
