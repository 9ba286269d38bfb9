"""An endpoint that a plan saw empty is counted again before it is destroyed."""

from __future__ import annotations

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import Compiled
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.errors import DataLossNotConfirmed
from fennel_core.ledger.purge import purge_retained
from fennel_core.ledger.reconcile import reconcile
from fennel_core.vocab.ids import AssetId, TopicName
from tests.support.compiler_inputs import schema, sourced, webhook
from tests.support.ledger_world import SHOP, World

GRACE_MS = 50_000
USERS = schema("user", "city:str")
EMPTY = compile_datasets([], 2)


def users() -> Compiled:
    return compile_datasets([sourced("Users", USERS, version=1, source=webhook("e"))], 2)


async def dropped(grace_ms: int = GRACE_MS) -> tuple[World, TopicName]:
    """Return a world in which an endpoint without a request was dropped, and its raw topic."""
    world = World(grace_ms)
    await world.open()
    await world.commit("first", users())
    (raw,) = (topic for topic in world.topics.partition_counts if ".raw." in topic)
    await world.commit("second", EMPTY)
    return world, raw


async def expire(world: World) -> None:
    world.now_ms += GRACE_MS + 70_000
    await passes(world)


async def passes(world: World) -> None:
    for _ in range(5):
        world.engines.turn()
        await reconcile(world.context())


async def test_an_endpoint_that_stayed_empty_is_destroyed_after_its_period() -> None:
    world, raw = await dropped()
    await expire(world)
    assert raw not in world.topics.partition_counts
    assert not await world.ledger.run(lambda tx: tx.released(SHOP))


async def test_a_request_that_was_accepted_after_the_plan_is_kept() -> None:
    world, raw = await dropped()
    world.topics.messages[raw] = 1
    await expire(world)
    assert raw in world.topics.partition_counts
    (kept,) = await world.ledger.run(lambda tx: tx.released(SHOP))
    assert (kept.id, kept.ends_ms) == (raw, None), "until a loss is confirmed"


async def test_nothing_is_destroyed_that_could_not_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, raw = await dropped()

    async def unavailable(_: object) -> None:
        raise SystemUnavailable("Kafka")

    with monkeypatch.context() as patch:
        patch.setattr(world.topics, "message_counts", unavailable)
        await expire(world)
    assert raw in world.topics.partition_counts
    await expire(world)
    assert raw not in world.topics.partition_counts


async def test_without_a_grace_period_an_endpoint_is_counted_when_late_requests_have_ended() -> (
    None
):
    world, raw = await dropped(grace_ms=0)
    await passes(world)
    assert raw in world.topics.partition_counts
    world.topics.messages[raw] = 1
    await expire(world)
    assert raw in world.topics.partition_counts, "accepted after the count of the plan"
    (kept,) = await world.ledger.run(lambda tx: tx.released(SHOP))
    assert (kept.id, kept.ends_ms) == (raw, None)


async def test_without_a_grace_period_an_endpoint_that_stayed_empty_is_destroyed() -> None:
    world, raw = await dropped(grace_ms=0)
    (kept,) = await world.ledger.run(lambda tx: tx.released(SHOP))
    assert kept.id == raw, "everything else is destroyed at once"
    await expire(world)
    assert raw not in world.topics.partition_counts


async def test_a_commit_that_needs_an_endpoint_revives_it_without_a_grace_period() -> None:
    world, raw = await dropped(grace_ms=0)
    await world.commit("third", users())
    await expire(world)
    assert raw in world.topics.partition_counts
    assert not await world.ledger.run(lambda tx: tx.released(SHOP))


async def test_a_purge_does_not_count_an_endpoint_before_late_requests_have_ended() -> None:
    world, raw = await dropped()
    await world.ledger.run(lambda tx: tx.fix_partition_count(SHOP, 2))
    expected = (
        "rows lost: none that has arrived, and those of requests that were under way when it was "
        "released; they may arrive until 1 min after that"
    )
    with pytest.raises(DataLossNotConfirmed, match=expected):
        await purge_retained(world.context(), SHOP, [AssetId(raw)], allow_data_loss=False)
    world.now_ms += world.context().timings.late_request_ms
    purged = await purge_retained(world.context(), SHOP, [AssetId(raw)], allow_data_loss=False)
    assert purged == [raw]


async def test_a_purge_counts_a_request_that_arrived_late() -> None:
    world, raw = await dropped()
    await world.ledger.run(lambda tx: tx.fix_partition_count(SHOP, 2))
    world.now_ms += world.context().timings.late_request_ms
    world.topics.messages[raw] = 1
    with pytest.raises(DataLossNotConfirmed, match="at most 1 message"):
        await purge_retained(world.context(), SHOP, [AssetId(raw)], allow_data_loss=False)
    confirmed = await purge_retained(world.context(), SHOP, [AssetId(raw)], allow_data_loss=True)
    assert confirmed == [raw]
