"""The query log's queue: nothing waits for Kafka, everything is bounded, every loss is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.query import query_log
from fennel_core.query.columns import QueryColumn
from fennel_core.query.execution import KeyTrace
from fennel_core.query.log_blocks import (
    BLOCK_ROWS,
    LoggedQuery,
    LogOptions,
    blocks_of_queries,
    sampled_rows,
)
from fennel_core.query.program import QueryProgram
from fennel_core.query.query_log import NotDelivered, OnDelivery, QueryLog, RowOutcome
from fennel_core.telemetry import metrics
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.dtypes import Int, Str
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.versions import decode
from tests.support.polling import eventually

PROGRAM = QueryProgram((), (), (), 0, frozenset())
LIMIT = 1_000_000
_numbers: Iterator[int] = iter(range(1_000_000))


@pytest.fixture
def shop() -> WorkspaceId:
    """A workspace whose metrics no other test has."""
    return WorkspaceId(f"shop-{next(_numbers)}")


def query(
    workspace: WorkspaceId,
    ids: list[object],
    *,
    size: int = 100,
    now_us: int = 10**15,
    workflow: str = "fraud",
    name: str = "F.id",
) -> LoggedQuery:
    return LoggedQuery(
        (workspace, BranchName("main")),
        CommitId("c1"),
        LogOptions(workflow, 1.0),
        "r",
        now_us,
        PROGRAM,
        {name: QueryColumn(Int(), ids)},
        range(len(ids)),
        KeyTrace(),
        size,
    )


@dataclass
class FakeKafka:
    """The messages. `holding`: none is acknowledged; `refused`: why none is taken.

    `polls`: calls of `poll` wait for it.
    """

    messages: list[tuple[TopicName, bytes]] = field(default_factory=list)
    held: list[OnDelivery] = field(default_factory=list)
    holding: bool = False
    refused: NotDelivered | None = None
    polls: threading.Event | None = None

    def produce(self, topic: TopicName, value: bytes, on_delivery: OnDelivery) -> None:
        if self.refused is None:
            self.messages.append((topic, value))
        self.held.append(on_delivery)

    def poll(self) -> None:
        if self.polls is not None:
            assert self.polls.wait(10)
        if not self.holding:
            while self.held:
                self.held.pop()(self.refused)

    def flush(self, seconds: float) -> None:
        self.poll()
        while self.held:
            self.held.pop()(NotDelivered("not in time", unknown_topic=False))

    def ids(self) -> list[int]:
        return [
            id_
            for _, value in self.messages
            for block in query_log_blocks.blocks_of(decode(value))
            for id_ in query_log_blocks.rows_of(block)["F.id"].to_list()
        ]


@dataclass
class FakeTopics:
    """Which workspaces have a topic. `down`: the database cannot be reached."""

    number: int = 1
    exists: bool = True
    down: bool = False
    asked: int = 0

    async def query_log_topic(self, workspace: WorkspaceId) -> TopicName | None:
        self.asked += 1
        if self.down:
            raise DatabaseUnavailable("down")
        return TopicName(f"{workspace}.querylog.{self.number}") if self.exists else None


@asynccontextmanager
async def opened(
    kafka: FakeKafka, topics: FakeTopics, limit: int = LIMIT
) -> AsyncIterator[QueryLog]:
    log = QueryLog(kafka, topics, limit)
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        await log.close(1.0)
        task.cancel()


def counted(workspace: WorkspaceId, outcome: RowOutcome) -> float:
    value = metrics.REGISTRY.get_sample_value(
        "fennel_query_log_rows_total", {"workspace": workspace, "outcome": outcome.value}
    )
    return value or 0.0


async def until(condition: Callable[[], bool]) -> None:
    await eventually(condition)


async def test_queries_reach_their_topic_in_order_and_are_counted(shop: WorkspaceId) -> None:
    kafka = FakeKafka()
    async with opened(kafka, FakeTopics()) as log:
        for number in range(20):
            assert log.put(query(shop, [number]))
        await until(lambda: counted(shop, RowOutcome.WRITTEN) == 20)
    assert kafka.ids() == list(range(20))
    assert {topic for topic, _ in kafka.messages} == {f"{shop}.querylog.1"}
    assert len(kafka.messages) < 20, "queries share messages"


async def test_what_is_queued_when_the_server_ends_is_written(shop: WorkspaceId) -> None:
    kafka = FakeKafka()
    async with opened(kafka, FakeTopics()) as log:
        log.put(query(shop, [1]))
        await until(lambda: bool(kafka.messages))
        log.put(query(shop, [2]))
    assert kafka.ids() == [1, 2]
    assert counted(shop, RowOutcome.WRITTEN) == 2
    assert not log.put(query(shop, [3])), "a closed log takes nothing"


async def test_a_first_query_is_written_although_the_server_ends_at_once(
    shop: WorkspaceId,
) -> None:
    kafka = FakeKafka()
    async with opened(kafka, FakeTopics()) as log:
        log.put(query(shop, [1]))
    assert kafka.ids() == [1]
    assert counted(shop, RowOutcome.NO_TOPIC) == 0


async def test_a_query_put_during_the_last_pass_is_written(shop: WorkspaceId) -> None:
    kafka = FakeKafka(polls=threading.Event())
    assert kafka.polls is not None
    async with opened(kafka, FakeTopics()) as log:
        log.put(query(shop, [1]))
        await until(lambda: bool(kafka.messages))
        assert log.put(query(shop, [2])), "the pass has taken the queue and is in `poll`"
        closing = asyncio.create_task(log.close(1.0))
        await asyncio.sleep(0)
        kafka.polls.set()
        await closing
    assert kafka.ids() == [1, 2]
    assert counted(shop, RowOutcome.WRITTEN) == 2


async def test_what_kafka_does_not_acknowledge_in_time_is_counted(shop: WorkspaceId) -> None:
    kafka = FakeKafka(holding=True)
    async with opened(kafka, FakeTopics()) as log:
        log.put(query(shop, [1, 2, 3]))
        await until(lambda: bool(kafka.messages))
    assert counted(shop, RowOutcome.NOT_WRITTEN) == 3
    assert counted(shop, RowOutcome.WRITTEN) == 0


async def test_what_is_not_acknowledged_counts_against_the_limit(shop: WorkspaceId) -> None:
    kafka = FakeKafka(holding=True)
    async with opened(kafka, FakeTopics(), limit=40_000) as log:
        taken = [log.put(query(shop, [n], size=5_000)) for n in range(10)]
        assert taken == [True] * 2 + [False] * 8, "half of the limit"
        assert counted(shop, RowOutcome.QUEUE_FULL) == 8
        await until(lambda: bool(kafka.messages))
        other = WorkspaceId(f"{shop}-other")
        assert log.put(query(other, [1], size=5_000)), "the other half is left to others"
        kafka.holding = False
        await until(lambda: counted(shop, RowOutcome.WRITTEN) == 2)
        assert log.put(query(shop, [11], size=15_000)), "acknowledged messages make room"
        await until(lambda: counted(other, RowOutcome.WRITTEN) == 1)


async def test_keys_that_user_code_looked_up_count_against_the_limit(shop: WorkspaceId) -> None:
    kafka = FakeKafka(holding=True)
    async with opened(kafka, FakeTopics(), limit=40_000) as log:
        large = replace(query(shop, [1], size=10), trace=KeyTrace(looked_up_bytes=18_000))
        assert not log.put(large)
        small = replace(query(shop, [2], size=10), trace=KeyTrace(looked_up_bytes=17_000))
        assert log.put(small)
        assert not log.put(query(shop, [3], size=10))
        await until(lambda: bool(kafka.messages))
        assert log.put(query(shop, [4], size=10)), "only its message is left"
        kafka.holding = False


def test_a_subject_does_not_depend_on_the_order_of_the_columns() -> None:
    """A commit may reorder erase keys; erasures and rows of both orders mean the same."""
    users, encode = DatasetName("Users"), msgspec.msgpack.encode
    subjects = {
        query_log_blocks.subject(users, ("city", "uid"), encode(["Rome", 7])),
        query_log_blocks.subject(users, ("uid", "city"), encode([7, "Rome"])),
    }
    assert len(subjects) == 1
    assert query_log_blocks.subject(users, ("uid", "city"), encode(["Rome", 7])) not in subjects


async def test_queries_wait_for_their_topic(shop: WorkspaceId) -> None:
    kafka, topics = FakeKafka(), FakeTopics(exists=False)
    async with opened(kafka, topics) as log:
        log.put(query(shop, [1]))
        await until(lambda: topics.asked > 1)
        topics.down = True
        topics.exists = True
        asked = topics.asked
        await until(lambda: topics.asked > asked)
        assert not kafka.messages
        topics.down = False
        await until(lambda: kafka.ids() == [1])


async def test_a_topic_that_does_not_come_is_waited_for_a_bounded_time(
    shop: WorkspaceId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_log, "TOPIC_WAIT_S", 0.2)
    kafka, topics = FakeKafka(), FakeTopics(exists=False)
    async with opened(kafka, topics) as log:
        log.put(query(shop, [1, 2]))
        await until(lambda: counted(shop, RowOutcome.NO_TOPIC) == 2)
        topics.exists = True
        log.put(query(shop, [3]))
        await until(lambda: kafka.ids() == [3])


async def test_after_a_topic_was_deleted_the_new_one_is_found(shop: WorkspaceId) -> None:
    kafka, topics = FakeKafka(), FakeTopics()
    async with opened(kafka, topics) as log:
        log.put(query(shop, [1]))
        await until(lambda: kafka.ids() == [1])
        topics.number, kafka.refused = 2, NotDelivered("no such topic", unknown_topic=True)
        log.put(query(shop, [2]))
        await until(lambda: counted(shop, RowOutcome.NOT_WRITTEN) == 1)
        kafka.refused = None
        log.put(query(shop, [3]))
        await until(lambda: kafka.ids() == [1, 3])
    assert kafka.messages[-1][0] == f"{shop}.querylog.2"


async def test_a_query_that_cannot_be_encoded_costs_no_other_one(shop: WorkspaceId) -> None:
    kafka = FakeKafka()
    async with opened(kafka, FakeTopics()) as log:
        for values in ([1], ["no number"], [2]):
            log.put(query(shop, list(values)))
        await until(lambda: counted(shop, RowOutcome.WRITTEN) == 2)
    assert sorted(kafka.ids()) == [1, 2]
    assert counted(shop, RowOutcome.NOT_ENCODED) == 1


async def test_users_values_are_not_in_the_report_of_losses(
    shop: WorkspaceId, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    recorder = SimpleNamespace(error=lambda _text, **values: reported.append(values))
    monkeypatch.setattr(query_log, "log", recorder)
    async with opened(FakeKafka(), FakeTopics()) as log:
        log.put(query(shop, ["123-45-6789"]))
    [lost] = reported
    assert lost["outcome"] == RowOutcome.NOT_ENCODED
    assert lost["reason"] == "TypeError in column `F.id`"


# --- blocks ---------------------------------------------------------------------------------------


def test_queries_of_one_shape_share_a_block_and_others_do_not(shop: WorkspaceId) -> None:
    asked = [query(shop, [1]), query(shop, [2]), query(shop, [3], workflow="ads")]
    asked.append(query(shop, [4], name="F.other"))
    made = [block for block, _ in blocks_of_queries(asked)]
    assert [(block.workflow, block.rows) for block in made] == [
        ("fraud", 2),
        ("ads", 1),
        ("fraud", 1),
    ]


def test_large_queries_are_split_and_distant_ones_kept_apart(shop: WorkspaceId) -> None:
    count = 2 * BLOCK_ROWS + 1
    large = query(shop, list(range(count)))
    later = query(shop, [7], now_us=large.now_us + query_log_blocks.SPAN_US)
    made = [block for block, _ in blocks_of_queries([large, later])]
    assert [block.rows for block in made] == [BLOCK_ROWS, BLOCK_ROWS, 1, 1]
    rows = [row for block in made[:3] for row in query_log_blocks.rows_of(block)["row"].to_list()]
    assert rows == list(range(count))
    assert all(block.last_us - block.first_us <= query_log_blocks.SPAN_US for block in made)


def test_rows_of_a_sample_keep_their_numbers(shop: WorkspaceId) -> None:
    kept = range(0, 5 * BLOCK_ROWS, 3)
    sample = replace(query(shop, list(kept)), kept=list(kept))
    rows = [
        row
        for block, _ in blocks_of_queries([sample])
        for row in query_log_blocks.rows_of(block).select("row", "F.id").rows()
    ]
    assert rows == [(number, number) for number in kept]


def test_rows_of_large_values_make_small_blocks(shop: WorkspaceId) -> None:
    wide = query(shop, [1, 2, 3, 4], size=8 * 1024 * 1024)
    assert [block.rows for block, _ in blocks_of_queries([wide])] == [1] * 4


def test_a_sample_has_about_its_rate_and_depends_on_the_id_only() -> None:
    rows = sampled_rows("a", 10_000, 0.1)
    assert rows == sampled_rows("a", 10_000, 0.1)
    assert rows != sampled_rows("b", 10_000, 0.1)
    assert 800 < len(rows) < 1_200
    assert list(sampled_rows("a", 5, 1.0)) == [0, 1, 2, 3, 4]
    assert sampled_rows("a", 5, 0.0) == []


def test_types_of_columns_separate_blocks(shop: WorkspaceId) -> None:
    texts = query(shop, [1])
    texts.columns["F.id"] = QueryColumn(Str(), ["x"])  # type: ignore[index]  # a dict in this test
    assert len(list(blocks_of_queries([query(shop, [1]), texts]))) == 2
