"""The query log of a workspace: one topic, as long as the workspace, whatever fails."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from fennel_core.bank.store import AssetState
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connections.errors import ConnectionsError
from fennel_core.ledger import branches
from fennel_core.ledger.errors import QueryLogNotCreated
from fennel_core.ledger.query_logs import ensure_query_log
from fennel_core.vocab.ids import BranchName, TopicName
from tests.support.ledger_world import SHOP, Crash, Fault, Faults, World
from tests.support.toy_commits import toy

PARTITIONS = 2
CALLS = 3
"""Of `ensure_query_log`: two transactions and a request to Kafka."""


async def with_first_version(grace_ms: int = 0) -> World:
    world = World(grace_ms)
    await world.open()
    await world.ledger.run(lambda tx: tx.fix_partition_count(SHOP, PARTITIONS))
    await world.commit("first", toy("orders", "users"))
    await world.settle()
    return world


def query_logs(world: World) -> dict[TopicName, AssetState]:
    """Return the assets of query logs that are not deleted."""
    return {
        TopicName(id_): row.state
        for id_, row in world.ledger.state.bank.rows.items()
        if row.key.kind is AssetKind.QUERY_LOG and row.state is not AssetState.DELETED
    }


async def test_it_has_the_partitions_of_the_workspace_and_is_made_once() -> None:
    world = await with_first_version()
    topic = await ensure_query_log(world.context(), SHOP)
    assert topic is not None
    assert world.topics.partition_counts[topic] == PARTITIONS
    assert await ensure_query_log(world.context(), SHOP) == topic
    assert query_logs(world) == {topic: AssetState.LIVE}


async def test_there_is_none_before_the_first_commit_and_in_an_unknown_workspace() -> None:
    world = World()
    with pytest.raises(WorkspaceNotFound):
        await ensure_query_log(world.context(), SHOP)
    await world.open()
    assert await ensure_query_log(world.context(), SHOP) is None


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_after_a_fault_at_any_step_the_next_call_completes_it(fault: Fault) -> None:
    for step in range(1, CALLS + 1):
        world = await with_first_version()
        with suppress(Crash, ConnectionsError, QueryLogNotCreated):
            await ensure_query_log(world.context(Faults({step: fault})), SHOP)
        topic = await ensure_query_log(world.context(), SHOP)
        assert query_logs(world) == {topic: AssetState.LIVE}
        assert topic in world.topics.partition_counts
        await world.settle()
        assert topic in world.topics.partition_counts, "reconcile took it for an orphan"


async def test_commits_and_deleted_branches_leave_it_alone() -> None:
    world = await with_first_version()
    topic = await ensure_query_log(world.context(), SHOP)
    await branches.clone_branch(world.context(), SHOP, BranchName("other"), BranchName("main"))
    await world.commit("second", toy("cities"))
    await branches.delete_branch(world.context(), SHOP, BranchName("other"))
    await world.settle()
    assert query_logs(world) == {topic: AssetState.LIVE}


@pytest.mark.parametrize("grace_ms", [0, 3_600_000])
@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.name)
async def test_it_goes_with_its_workspace_even_half_made(fault: Fault, grace_ms: int) -> None:
    for step in range(1, CALLS + 1):
        world = await with_first_version(grace_ms)
        with suppress(Crash, ConnectionsError, QueryLogNotCreated):
            await ensure_query_log(world.context(Faults({step: fault})), SHOP)
        await world.ledger.run(lambda tx: tx.close_workspace(SHOP))
        await world.settle()
        assert not world.topics.partition_counts
        assert not world.ledger.state.bank.rows


@pytest.mark.parametrize("seed", range(40))
async def test_a_workspace_that_is_deleted_meanwhile_keeps_no_topic(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable, and no secret
    world = await with_first_version()

    async def close() -> None:
        await world.context(Faults(jitter=rng)).ledger.run(lambda tx: tx.close_workspace(SHOP))
        await branches.drop_closed_workspace(world.context(Faults(jitter=rng)), SHOP)

    async def ensure() -> None:
        with suppress(WorkspaceNotFound, QueryLogNotCreated):
            await ensure_query_log(world.context(Faults(jitter=rng)), SHOP)

    await asyncio.gather(ensure(), ensure(), close())
    await world.settle()
    await world.settle()
    assert not world.topics.partition_counts
    assert not world.ledger.state.bank.rows
