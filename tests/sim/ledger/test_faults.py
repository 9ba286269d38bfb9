"""A fault at every step of a commit, then reconcile: no orphan, no loss, all or nothing."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from fennel_core.blueprints.logical import Compiled
from fennel_core.connections.errors import ConnectionsError
from fennel_core.ledger import branches
from fennel_core.ledger.lifecycle import COMMITTED
from fennel_core.ledger.reconcile import reconcile
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName
from tests.support.ledger_world import SHOP, Crash, Fault, Faults, World
from tests.support.toy_commits import toy

EXPERIMENT = BranchName("experiment")
OLD, NEW = toy("orders", "users"), toy("users", "cities", "totals")


async def with_first_version() -> World:
    world = World()
    await world.open()
    await world.commit("first", OLD)
    await world.settle()
    world.check()
    return world


async def steps_of_a_commit() -> int:
    faults = Faults()
    await (await with_first_version()).commit("second", NEW, faults=faults)
    return faults.calls


STEPS = asyncio.run(steps_of_a_commit())


def test_a_commit_has_few_enough_steps_to_inject_a_fault_at_each() -> None:
    assert 10 <= STEPS <= 40


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_after_a_fault_at_any_step_a_branch_has_one_version_and_no_orphan(
    fault: Fault,
) -> None:
    outcomes = set()
    for step in range(1, STEPS + 1):
        world = await with_first_version()
        with suppress(Crash, ApiError, ConnectionsError):
            await world.commit("second", NEW, faults=Faults({step: fault}))
        await world.settle()
        world.check()
        row = world.ledger.state.commits["second"]
        happened = row.state in COMMITTED
        outcomes.add(happened)
        assert world.target() == ("second" if happened else "first"), f"step {step}"
        assert world.words() == (
            {"users", "cities", "totals"} if happened else {"orders", "users"}
        ), f"step {step}"
        assert happened or row.error, "a failed commit has an error"
    assert fault not in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER) or outcomes == {True, False}, (
        "early crashes undo, late ones finish"
    )


@pytest.mark.parametrize("seed", range(150))
async def test_any_history_of_commits_branches_and_crashes_settles_cleanly(
    seed: int,
) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    world = World(grace_ms=(0, 300_000, 50_000_000)[seed % 3])
    await world.open()
    for number in range(8):
        faults = Faults(
            {rng.randrange(1, STEPS): rng.choice(list(Fault)) for _ in range(rng.randrange(3))},
            jitter=rng,
        )
        with suppress(Crash, ApiError, ConnectionsError):
            await one_act(world, rng, number, faults)
        if rng.random() < 0.4:
            world.now_ms += rng.choice([100, 70_000, 4_000_000])
            with suppress(Crash, BaseExceptionGroup, ConnectionsError):  # a crash among its tasks
                await reconcile(
                    world.context(
                        Faults({rng.randrange(1, 12): rng.choice(list(Fault))}, jitter=rng)
                    )
                )
    await world.settle()
    world.check()


async def one_act(world: World, rng: random.Random, number: int, faults: Faults) -> None:
    branch = rng.choice([MAIN_BRANCH, EXPERIMENT])
    match rng.choice(["commit", "commit", "commit", "two at once", "clone", "delete"]):
        case "commit":
            await world.commit(f"c{number}", some_datasets(rng), branch, faults)
        case "two at once":
            first = await world.receive(f"c{number}a", branch)
            second = await world.receive(f"c{number}b", MAIN_BRANCH)
            done = await asyncio.gather(
                ignoring_faults(world, first, some_datasets(rng), faults),
                ignoring_faults(world, second, some_datasets(rng), Faults(jitter=rng)),
            )
            assert len(done) == 2
        case "clone":
            await branches.clone_branch(world.context(faults), SHOP, EXPERIMENT, MAIN_BRANCH)
        case "delete":
            await branches.delete_branch(world.context(faults), SHOP, EXPERIMENT)


async def ignoring_faults(world: World, id_: str, compiled: Compiled, faults: Faults) -> None:
    with suppress(Crash, ApiError, ConnectionsError):
        await world.run(id_, compiled, faults)


def some_datasets(rng: random.Random) -> Compiled:
    return toy(*rng.sample(["orders", "users", "cities", "totals", "rates"], rng.randrange(5)))


@pytest.mark.parametrize("seed", range(60))
async def test_reconcile_that_mistakes_a_paused_worker_for_dead_does_no_harm(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    world = await with_first_version()
    id_ = await world.receive("second")

    async def hasty_reconcile() -> None:
        for _ in range(6):
            world.now_ms += 70_000  # every lease expires while its holder works
            await reconcile(world.context(Faults(jitter=rng)))

    await asyncio.gather(ignoring_faults(world, id_, NEW, Faults(jitter=rng)), hasty_reconcile())
    await world.settle()
    world.check()


async def test_a_late_create_of_an_undone_commit_is_an_orphan_and_is_destroyed() -> None:
    world = await with_first_version()
    before = set(world.topics.partition_counts)
    with suppress(Crash):
        await world.commit("second", NEW, faults=Faults({7: Fault.CRASH_AFTER}))
    late = dict(world.topics.partition_counts)
    assert set(late) > before, "topics were created and not recorded"
    await world.settle()
    world.check()
    world.topics.partition_counts = late  # the paused request arrives now
    await reconcile(world.context())
    assert set(world.topics.partition_counts) > before, (
        "within the grace period an orphan is left alone"
    )
    await world.settle()
    world.check()


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_a_deleted_workspace_is_empty_whatever_fails_on_the_way(fault: Fault) -> None:
    for step in range(1, 16):
        world = await with_first_version()
        with suppress(Crash, ApiError, ConnectionsError):
            await world.commit("second", NEW, faults=Faults({step: Fault.CRASH_AFTER}))
        await world.ledger.run(lambda tx: tx.close_workspace(SHOP))
        with suppress(Crash, ConnectionsError):
            await branches.drop_closed_workspace(world.context(Faults({step: fault})), SHOP)
        await world.settle()
        assert not world.topics.partition_counts
        assert not world.ledger.state.jobs
        assert not world.ledger.state.bank.rows
        assert not await world.ledger.run(lambda tx: tx.workspaces(closing=True))
