"""Reads never move to a version that misses rows accepted before its T2.

Engines apply few records per turn, die and start again from nothing, and rows arrive all the time.
The world checks every version at the moment at which reads move to it.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

import pytest

from fennel_core.connections.errors import ConnectionsError
from fennel_core.ledger import readiness, warming
from fennel_core.ledger.readiness import Judgement, WarmingJobs
from fennel_core.ledger.reconcile import reconcile
from fennel_core.ledger.store import CatchUp, PartitionProgress
from fennel_core.vocab.errors import ApiError
from tests.support.ledger_world import Crash, Fault, Faults, World
from tests.support.toy_commits import toy

SEEDS = range(40)
CATCHING = 702
"""This seed shows a version that reads would reach too early."""
CHAIN = ("clean", "totals", "top", "ranks")


def chain(length: int, version: int) -> list[str]:
    """Return a source dataset and `length` datasets over one another, in the given version."""
    words, before = ["orders"], "orders"
    for name in CHAIN[:length]:
        words.append(f"{name}@{version}<{before}")
        before = f"{name}@{version}"
    return words


async def history(seed: int) -> World:
    """Commit versions of a chain over existing rows, with lagging engines and faults."""
    rng = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    world = World()
    world.engines.slow = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    await world.open()
    await world.commit("first", toy(*chain(rng.randrange(1, 5), 0)))
    for at in sorted(world.topics.partition_counts):
        if ".topic." in at and world.engines.is_source(at):
            for partition in range(2):
                world.engines.log(at, rng.randrange(1_500), partition)
    await world.settle()
    world.engines.input_continues = rng.random() < 0.7
    for number in range(1, 4):
        faults = Faults(
            {rng.randrange(1, 60): rng.choice(list(Fault)) for _ in range(rng.randrange(3))}
        )
        with suppress(Crash, ApiError, ConnectionsError):
            await world.commit(
                f"c{number}", toy(*chain(rng.randrange(1, 5), number)), faults=faults
            )
        for _ in range(rng.randrange(80)):
            await world.sleep(rng.choice([0.05, 2.0, 30.0]))
            with suppress(Crash, BaseExceptionGroup, ConnectionsError):  # a crash among its tasks
                await reconcile(
                    world.context(Faults({rng.randrange(1, 30): rng.choice(list(Fault))}))
                )
    world.engines.input_continues = False
    await world.settle()
    world.check()
    return world


async def histories(*seeds: int) -> None:
    for seed in seeds:
        await history(seed)


@pytest.mark.parametrize("seed", SEEDS)
async def test_reads_move_when_the_whole_chain_of_new_jobs_has_caught_up(seed: int) -> None:
    await history(seed)


async def test_the_seeds_serve_versions_that_had_to_catch_up() -> None:
    assert sum([(await history(seed)).served_with_backlog for seed in SEEDS[:8]]) > 4


def judged_at_once(
    jobs: WarmingJobs, catch_up: CatchUp, progress: Collection[PartitionProgress]
) -> Judgement:
    """Judge all layers together: the topics between new jobs are empty when their ends are read."""
    flat = tuple(job for layer in jobs.layers for job in layer)
    return readiness.judge_readiness(replace(jobs, layers=(flat,)), catch_up, progress)


async def test_a_seed_finds_that_layers_are_judged_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warming, "judge_readiness", judged_at_once)
    with pytest.raises(AssertionError, match="misses rows"):
        await histories(CATCHING, *SEEDS)
