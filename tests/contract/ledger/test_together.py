"""Concurrent commits, clones, deletions and reconcile passes: all return, and only held assets
remain.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from fennel_core.bank.store import AssetState
from fennel_core.ledger import branches, commit_failure, creation, switching
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.lifecycle import COMMITTED, SETTLED, CommitState
from fennel_core.ledger.reconcile import reconcile
from fennel_core.ledger.store import Commit, CommitOptions, Ledger, LedgerKind, LedgerTransaction
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.ledger.warming import wait_and_serve
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, AssetId, BranchName, CommitId, Millis, WorkspaceId
from tests.support.ledger_world import reserve
from tests.support.toy_commits import toy

SHOP = WorkspaceId("shop")
BRANCHES = (MAIN_BRANCH, BranchName("one"), BranchName("two"))
WORDS = ("orders", "users", "cities", "totals", "rates")


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_steps_end_with_exactly_the_held_assets(ledger: Ledger, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    topics = MemoryTopicAdmin()
    context = LedgerContext(
        ledger,
        topics,
        asyncio.sleep,
        LedgerTimings(first_warm_seconds=0.0, orphan_grace_ms=Millis(0)),
    )

    async def commit(number: int) -> None:
        branch, words = rng.choice(BRANCHES), rng.sample(WORDS, rng.randrange(4))
        id_ = CommitId(f"c{number}")

        async def receive(tx: LedgerTransaction) -> None:
            row = await tx.branch(SHOP, branch)
            base = row.target if row else None
            await tx.add_commit(
                Commit(id_, SHOP, branch, CommitState.RECEIVED, id_, CommitOptions(), base), b""
            )

        await ledger.run(receive)
        try:
            await reserve(context, id_, toy(*words), b"")
        except ApiError as error:
            await commit_failure.reject_commit(context, id_, error)
            return
        with suppress(ApiError):
            await creation.create_assets(context, id_)
            await switching.switch(context, id_)
            await wait_and_serve(context, id_, seconds=0)
        await destroy_condemned(context, SHOP)

    async def other() -> None:
        name = rng.choice(BRANCHES[1:])
        with suppress(ApiError):
            if rng.random() < 0.6:
                await branches.clone_branch(context, SHOP, name, MAIN_BRANCH)
            else:
                await branches.delete_branch(context, SHOP, name)

    for round_ in range(3):
        acts = (
            [commit(10 * round_ + n) for n in range(6)]
            + [other() for _ in range(3)]
            + [recover(context)]
        )
        rng.shuffle(acts)
        async with asyncio.timeout(60):
            await asyncio.gather(*acts)
    await rest(context)
    await check(ledger, topics)


async def recover(context: LedgerContext) -> None:
    await reconcile(context)


async def rest(context: LedgerContext) -> None:
    """Expire leases and reconcile until nothing changes; no engine runs, so every job is stopped
    the moment it is retired.
    """
    for _ in range(20):
        for id_ in await context.ledger.run(lambda tx: tx.open_commits()):
            await context.ledger.run(lambda tx, id_=id_: tx.extend_lease(id_, Millis(0)))  # type: ignore[misc]  # bound now
        if (await reconcile(context)).quiet:
            return
    raise AssertionError("reconcile did not settle")


async def check(ledger: Ledger, topics: MemoryTopicAdmin) -> None:
    held: set[AssetId] = set()
    rows = [
        row
        for n in range(30)
        if (row := await ledger.run(lambda tx, n=n: tx.commit(CommitId(f"c{n}")))) is not None
    ]
    assert any(row.state in COMMITTED for row in rows)
    assert len([r for r in rows if r.branch == MAIN_BRANCH and r.state in COMMITTED]) == len(
        {r.base for r in rows if r.branch == MAIN_BRANCH and r.state in COMMITTED}
    )
    for branch in await ledger.run(lambda tx: tx.branches(SHOP)):
        for version in {branch.target, branch.serving} - {None}:
            held |= set(
                await ledger.run(
                    lambda tx, b=branch, v=version: tx.bank.references(SHOP, b.name, v)
                )
            )
        every = await ledger.run(lambda tx, b=branch: tx.bank.references(SHOP, b.name))
        assert set(every) <= held, "a branch holds its versions and nothing else"
    holdings = await ledger.run(lambda tx: tx.bank.summaries(held))
    assert all(h.state is AssetState.LIVE for h in holdings)
    jobs = {h.id for h in holdings if h.key.kind == "job"}
    assert set(topics.partition_counts) == held - jobs
    assert set(await ledger.run(lambda tx: tx.registered_jobs(SHOP))) == jobs
    assert not await ledger.run(lambda tx: tx.entries(LedgerKind.DESTRUCTION))
    # A commit whose new jobs do not run stays warming: that is up to the engines and not to the
    # ledgers'.
    assert {row.state for row in rows} <= SETTLED | {CommitState.WARMING}
