"""The grace period under faults: retained assets are revived whole, or destroyed whole."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fennel_core.bank.store import AssetState
from fennel_core.connections.errors import ConnectionsError
from fennel_core.ledger import branches
from fennel_core.ledger.lifecycle import COMMITTED
from fennel_core.ledger.reconcile import reconcile
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName
from tests.support.ledger_world import SHOP, Crash, Fault, Faults, World
from tests.support.toy_commits import toy

GRACE_MS = 50_000_000
OLD, NEW = toy("orders", "users"), toy("users", "cities")


async def after_two_versions(grace_ms: int = GRACE_MS) -> World:
    """Return a world in which `orders` was dropped and is retained."""
    world = World(grace_ms)
    await world.open()
    await world.commit("first", OLD)
    await world.commit("second", NEW)
    world.check_retained("orders")
    return world


def live(world: World) -> set[str]:
    rows = world.ledger.state.bank.rows.values()
    return {a.id for a in rows if a.state is AssetState.LIVE}


def retained(world: World) -> set[str]:
    rows = world.ledger.state.bank.rows.values()
    return {a.id for a in rows if a.state is AssetState.RETAINED}


async def steps_of_a_rollback() -> int:
    faults = Faults()
    await (await after_two_versions()).commit("third", OLD, faults=faults)
    return faults.calls


STEPS = asyncio.run(steps_of_a_rollback())


async def test_a_rollback_revives_the_same_assets_and_creates_none() -> None:
    world = await after_two_versions()
    kept = retained(world)
    await world.commit("third", OLD)
    assert live(world) >= kept
    plan = await world.ledger.run(lambda tx: tx.plan(world.target()))
    assert plan is not None
    actions = {str(entry.action) for entry in plan.entries}
    assert actions == {"keep", "revive", "retain"}
    await world.settle_commits()
    world.check()
    world.check_retained("cities")


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_a_fault_at_any_step_of_a_rollback_revives_everything_or_nothing(
    fault: Fault,
) -> None:
    for step in range(1, STEPS + 1):
        world = await after_two_versions()
        kept = retained(world)
        with suppress(Crash, ApiError, ConnectionsError):
            await world.commit("third", OLD, faults=Faults({step: fault}))
        await world.settle_commits()
        world.check()
        if world.ledger.state.commits["third"].state in COMMITTED:
            assert live(world) >= kept, f"step {step}: the same assets, not new ones"
        else:
            assert retained(world) == kept, f"step {step}: an undone commit revives nothing"


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_a_fault_at_any_step_of_the_expiry_leaves_nothing_behind(fault: Fault) -> None:
    for step in range(1, 12):
        world = await after_two_versions()
        world.now_ms += GRACE_MS + 1
        world.engines.turn()
        with suppress(BaseExceptionGroup, Crash, ConnectionsError):  # of the reconciler's tasks
            await reconcile(world.context(Faults({step: fault})))
        await world.settle()
        world.check()
        assert not retained(world)
        assert world.words() == {"users", "cities"}


async def test_nothing_expires_before_its_time_and_no_job_before_it_is_stopped() -> None:
    world = await after_two_versions()
    kept = retained(world)
    world.now_ms += GRACE_MS - 1
    await reconcile(world.context())
    assert retained(world) == kept
    assert set(world.topics.partition_counts) >= {id_ for id_ in kept if ".job." not in id_}


async def test_a_commit_that_reserved_a_retained_asset_keeps_it_from_expiring() -> None:
    world = await after_two_versions()
    kept = retained(world)
    id_ = await world.receive("third")
    with suppress(Crash):
        await world.run(id_, OLD, Faults({5: Fault.CRASH_BEFORE}))
    world.now_ms += GRACE_MS + 1

    async def expired(tx: object) -> list[str]:
        return await tx.expired(SHOP, all_of_them=False)

    if await world.ledger.run(lambda tx: tx.bank.reserved(id_)):
        assert await world.ledger.run(expired) == []
    await world.settle()
    world.check()
    assert not kept & set(world.ledger.state.bank.rows) & live(world)


async def test_a_dropped_dataset_comes_back_new_after_the_grace_period() -> None:
    world = await after_two_versions()
    kept = retained(world)
    world.now_ms += GRACE_MS + 1
    await world.settle()
    await world.commit("third", OLD)
    assert not live(world) & kept
    await world.settle_commits()
    world.check()


async def test_a_deleted_branch_is_retained_and_a_deleted_workspace_is_not() -> None:
    world = World(GRACE_MS)
    await world.open()
    await world.commit("first", OLD)
    copy = BranchName("copy")
    await branches.clone_branch(world.context(), SHOP, copy, BranchName("main"))
    await world.commit("second", NEW, copy)
    await branches.delete_branch(world.context(), SHOP, copy)
    world.check_retained("cities")
    await world.ledger.run(lambda tx: tx.close_workspace(SHOP))
    await branches.drop_closed_workspace(world.context(), SHOP)
    await world.settle()
    assert not world.ledger.state.bank.rows
    assert not world.topics.partition_counts
