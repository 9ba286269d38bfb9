"""What the plan of a commit says about the requests that a source dataset is recomputed from."""

from __future__ import annotations

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.plan_entries import Notice, PlanEntry, PlanRecord, RowAmount
from fennel_core.blueprints.plan_text import entry_line, render
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.planning import preview
from fennel_core.ledger.store import HistoryRange
from fennel_core.ledger.topic_amounts import unreadable_messages
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    DatasetName,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from fennel_core.wire.operators import DatasetRef
from tests.support.compiler_inputs import derived, node, schema, sourced, webhook
from tests.support.ledger_world import SHOP, World

TOPIC = TopicName("shop.raw.a.1")
USERS = schema("user", "city:str")


def users(version: int) -> Compiled:
    source = webhook("e")
    return compile_datasets([sourced("Users", USERS, version=version, source=source)], 2)


def at(part: int, topic: TopicName = TOPIC) -> TopicPartition:
    return topic, PartitionIndex(part)


def held(first: int, next_: int) -> HistoryRange:
    return HistoryRange(Offset(first), Offset(next_))


def lost(start: int, kept: HistoryRange | None) -> int:
    ranges = {} if kept is None else {at(0): kept}
    return unreadable_messages({at(0): Offset(start)}, ranges)[TOPIC]


def test_messages_before_the_log_count_as_lost_unless_history_holds_them() -> None:
    assert lost(0, None) == 0
    assert lost(90, None) == 90
    assert lost(90, held(0, 90)) == 0
    assert lost(90, held(0, 120)) == 0, "history and the log overlap"
    assert lost(90, held(10, 60)) == 40, "10 before history, 30 between it and the log"
    assert lost(90, held(95, 120)) == 90, "history starts after the log"
    assert lost(90, HistoryRange(Offset(0), Offset(90), lost=7)) == 7, (
        "deleted before history had them"
    )


def test_the_partitions_of_a_topic_are_added_up() -> None:
    starts = {at(0): Offset(5), at(1): Offset(7)}
    assert unreadable_messages(starts, {at(1): held(0, 7)}) == {TOPIC: 5}


class Endpoint:
    """A platform with a dataset over an endpoint that received messages."""

    def __init__(self) -> None:
        self.world = World()

    async def open(self) -> TopicName:
        await self.world.open()
        await self.world.commit("first", users(1))
        (topic,) = (t for t in self.world.topics.partition_counts if ".raw." in t)
        self.world.topics.messages[topic] = 12
        return topic

    async def plan(self) -> PlanRecord:
        return await preview(self.world.context(), SHOP, MAIN_BRANCH, users(2), backfill=True)


def replay_of(record: PlanRecord) -> PlanEntry:
    (entry,) = (e for e in record.entries if e.requests_of is not None)
    return entry


async def test_a_recompute_names_the_endpoint_and_how_much_is_read() -> None:
    endpoint = Endpoint()
    await endpoint.open()
    record = await endpoint.plan()
    entry = replay_of(record)
    assert (entry.requests_of, entry.rows_to_recompute) == ("hook/e", RowAmount(12))
    assert "recompute the requests of hook/e: those of at most 12 messages" in entry_line(entry)
    assert entry_line(entry) in render(record)
    assert record.notices == ()


async def test_an_amount_that_cannot_be_measured_is_unknown() -> None:
    endpoint = Endpoint()
    await endpoint.open()

    async def unavailable(_: object) -> dict[TopicName, int]:
        raise SystemUnavailable("Kafka did not respond")

    endpoint.world.topics.message_counts = unavailable
    line = entry_line(replay_of(await endpoint.plan()))
    assert "recompute an unknown number of requests of hook/e" in line


async def test_requests_that_nothing_holds_any_more_are_stated() -> None:
    endpoint = Endpoint()
    topic = await endpoint.open()
    endpoint.world.topics.first_offsets[at(0, topic)] = Offset(9)
    endpoint.world.ledger.state.history[at(0, topic)] = held(0, 6)
    text = (
        "dataset `Users` is recomputed without requests of endpoint `hook/e` that are in neither "
        "Kafka nor history: those of at most 3 messages"
    )
    record = await endpoint.plan()
    assert Notice("requests-unreadable", "Users", text) in record.notices
    assert f"! {text}" in render(record)
    endpoint.world.ledger.state.history[at(0, topic)] = held(0, 9)
    codes = {notice.code for notice in (await endpoint.plan()).notices}
    assert codes == {"requests-not-typed"}, "history has all of them"


async def test_rows_of_erased_keys_that_a_new_job_cannot_read_are_stated() -> None:
    world = World()
    await world.open()
    await world.commit("first", compile_datasets([sourced("Users", USERS)], 2))
    (topic,) = (t for t in world.topics.partition_counts if ".topic." in t)
    for part, removed in ((0, 2), (1, 3)):
        held_now = HistoryRange(Offset(0), Offset(9), removed)
        world.ledger.state.history[at(part, topic)] = held_now
    wanted = compile_datasets(
        [
            sourced("Users", USERS),
            derived("Copy", USERS, [node("Users", DatasetRef(DatasetName("Users")), USERS)]),
        ],
        2,
    )
    record = await preview(world.context(), SHOP, MAIN_BRANCH, wanted, backfill=True)
    text = (
        "dataset `Copy` is computed without 5 rows of erased keys that were removed from the "
        "history of what it reads"
    )
    assert record.notices == (Notice("erased-rows-removed", "Copy", text),)

    async def unavailable(_: object) -> dict[TopicName, int]:
        raise SystemUnavailable("Kafka did not respond")

    world.topics.message_counts = unavailable
    of_copy = node("Copy", DatasetRef(DatasetName("Copy")), USERS)
    chain = compile_datasets(
        [
            sourced("Users", USERS),
            derived("Copy", USERS, [node("Users", DatasetRef(DatasetName("Users")), USERS)]),
            derived("Second", USERS, [of_copy]),
        ],
        2,
    )
    record = await preview(world.context(), SHOP, MAIN_BRANCH, chain, backfill=True)
    assert [notice.entity for notice in record.notices] == ["Copy", "Second"], "and what it reads"


async def test_rows_that_were_too_old_and_that_a_new_job_cannot_read_are_stated() -> None:
    world = World()
    await world.open()
    await world.commit("first", compile_datasets([sourced("Users", USERS)], 2))
    (topic,) = (t for t in world.topics.partition_counts if ".topic." in t)
    for part, expired in ((0, 2), (1, 3)):
        held_now = HistoryRange(Offset(0), Offset(9), expired_rows=expired)
        world.ledger.state.history[at(part, topic)] = held_now
    copy = derived("Copy", USERS, [node("Users", DatasetRef(DatasetName("Users")), USERS)])
    wanted = compile_datasets([sourced("Users", USERS), copy], 2)
    record = await preview(world.context(), SHOP, MAIN_BRANCH, wanted, backfill=True)
    text = (
        "dataset `Copy` is computed without 5 rows that were older than the `history` of what it "
        "reads"
    )
    assert record.notices == (Notice("expired-rows-removed", "Copy", text),)


async def test_a_dataset_that_takes_over_a_topic_without_some_rows_is_stated() -> None:
    world = World()
    await world.open()
    await world.commit("first", compile_datasets([sourced("Users", USERS, source=webhook("e"))], 2))
    (topic,) = (t for t in world.topics.partition_counts if ".topic." in t)
    removed = HistoryRange(Offset(0), Offset(9), 5)

    async def notices(dataset: str) -> list[Notice]:
        wanted = compile_datasets([sourced(dataset, USERS, source=webhook("e"))], 2)
        record = await preview(world.context(), SHOP, MAIN_BRANCH, wanted, backfill=True)
        return list(record.notices)

    assert await notices("Customers") == [], "no row is removed"
    world.ledger.state.history[at(0, topic)] = removed
    assert await notices("Users") == [], "its erasures are known"
    (notice,) = await notices("Customers")
    assert (notice.code, notice.entity) == ("erased-rows-removed", "Customers")
    assert "takes over rows that exist, without 5 rows" in notice.text
    world.ledger.state.history[at(0, topic)] = HistoryRange(Offset(0), Offset(9), expired_rows=7)
    (notice,) = await notices("Customers")
    assert (notice.code, notice.entity) == ("expired-rows-removed", "Customers")
    assert "takes over rows that exist, without 7 rows" in notice.text
