"""One item that fails stops no other, and a commit with a run is left to its orchestrator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from fennel_core.ledger.branches import init_branch
from fennel_core.ledger.creation import create_assets
from fennel_core.ledger.lifecycle import SETTLED
from fennel_core.ledger.reconcile import Reconciler, WorkItem, WorkKind
from fennel_core.ledger.store import Commit
from fennel_core.ledger.switching import switch
from fennel_core.vocab.errors import StoredNameUnknown
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId
from tests.support.ledger_world import SHOP, Crash, Fault, Faults, World, reserve
from tests.support.toy_commits import toy

EXPERIMENT = BranchName("experiment")


async def two_abandoned_commits() -> World:
    """Return a world with two commits that passed T2 and whose workers died then."""
    world = World()
    await world.open()
    context = world.context()
    await init_branch(context, SHOP, EXPERIMENT)
    for id_, branch, word in (("poisoned", MAIN_BRANCH, "a"), ("healthy", EXPERIMENT, "b")):
        commit = await world.receive(id_, branch)
        await reserve(context, commit, toy(word))
        await create_assets(context, commit)
        await switch(context, commit)
    world.now_ms += 100_000
    world.engines.turn()
    return world


def poison(world: World, commit: str) -> Callable[[], None]:
    """Make the blueprints of a commit's assets undecodable; return how to repair them."""
    bank = type(world.ledger.state.bank)
    inner = bank.assets
    refs = world.ledger.state.bank.refs
    names = {id_ for holder, _, id_ in refs if holder == commit and ".job." in id_}

    async def assets(self: object, ids: object) -> object:
        wanted = list(ids)
        if names & set(wanted):
            raise StoredNameUnknown.of("class", "Gone")
        return await inner(self, wanted)

    bank.assets = assets

    def repair() -> None:
        bank.assets = inner

    return repair


async def test_a_poisoned_commit_stops_no_other_and_is_finished_when_it_is_repaired() -> None:
    world = await two_abandoned_commits()
    reconciler = Reconciler(world.context())
    repair = poison(world, "poisoned")
    try:
        for _ in range(4):
            world.now_ms += 1_000
            await reconciler.run_pass()
        states = {id_: row.state for id_, row in world.ledger.state.commits.items()}
        assert states[CommitId("healthy")] in SETTLED
        assert states[CommitId("poisoned")] not in SETTLED
        (failing,) = reconciler.failing()
        assert failing.item == WorkItem(WorkKind.COMMIT, SHOP, CommitId("poisoned"))
        assert "StoredNameUnknown" in failing.error
        assert failing.attempts == 2, "the back-off skips passes"
    finally:
        repair()
    await world.settle()
    world.check()


async def test_a_commit_whose_run_is_queued_is_left_to_its_orchestrator() -> None:
    world = World()
    await world.open()
    commit = await world.receive("queued")
    await world.ledger.run(lambda tx: tx.next_attempt(commit, 0))
    running = True

    async def is_running(row: Commit) -> bool:
        return running and row.attempt == 1

    reconciler = Reconciler(world.context(), is_running)
    for _ in range(10):
        world.now_ms += 70_000
        await reconciler.run_pass()
        assert world.ledger.state.commits[commit].state == "received"
    running = False
    world.now_ms += 70_000
    await reconciler.run_pass()
    row = world.ledger.state.commits[commit]
    assert row.state == "rejected"
    assert row.error is not None
    assert row.error.code == "commit-abandoned"


@pytest.mark.parametrize("step", range(1, 8))
async def test_a_crash_at_any_step_of_a_pass_loses_nothing(step: int) -> None:
    world = await two_abandoned_commits()
    with suppress(BaseExceptionGroup, Crash):
        await Reconciler(world.context(Faults({step: Fault.CRASH_AFTER}))).run_pass()
    await world.settle()
    world.check()
