"""What a job that does not stop keeps from being destroyed."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.lifecycle import CommitState
from tests.support.ledger_world import SHOP, World
from tests.support.toy_commits import toy


def stop_engine_of(world: World, title: str) -> None:
    """Let the job's engine keep its lease whatever it is asked."""
    jobs = world.ledger.state.jobs
    for id_, row in jobs.items():
        if row.spec.title == title:
            jobs[id_] = replace(row, leased_until_ms=10**15)
            return
    raise AssertionError(f"no job {title}")


async def test_a_job_that_does_not_stop_keeps_only_the_topics_that_it_uses() -> None:
    world = World()
    await world.open()
    await world.commit("first", toy("stuck", "orders"))
    await world.settle()
    stop_engine_of(world, "stuck: table")
    await world.commit("second", toy("orders-"))
    world.engines.turn()
    stop_engine_of(world, "stuck: table")
    assert await destroy_condemned(world.context(), SHOP) > 0
    titles = {
        (asset.key.kind.value, asset.blueprint.title)
        for asset in world.ledger.state.bank.rows.values()
        if asset.id in world.topics.partition_counts
    }
    assert ("topic", "stuck") in titles
    assert ("replaylog", "stuck") in titles
    assert ("replaylog", "orders") not in titles, "its job has stopped"
    assert world.ledger.state.commits["second"].state is CommitState.SERVING
    await world.settle()
    world.check()


async def test_the_topics_of_registered_jobs_are_those_they_read_and_write() -> None:
    world = World()
    await world.open()
    await world.commit("first", toy("orders"))
    (job,) = world.ledger.state.jobs.values()
    topics = await world.ledger.run(lambda tx: tx.topics_of_jobs([job.spec.id]))
    assert topics == job.spec.topics
    assert len(topics) == 3, "input, replaylog and dead letters"
