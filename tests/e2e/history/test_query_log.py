"""The query log over real Kafka, S3, Postgres and Spark: from served queries to DataFrames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from fennel_core.connections import erasures
from fennel_core.connections.kafka import client_config
from fennel_core.definition.query_log_topics import QueryLogTopics
from fennel_core.history.errors import ReadFailed
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.query.columns import QueryColumn
from fennel_core.query.execution import KeyTrace
from fennel_core.query.log_blocks import LoggedQuery, LogOptions
from fennel_core.query.log_kafka import KafkaLogProducer
from fennel_core.query.postgres import PostgresReader
from fennel_core.query.program import ErasableLookup, QueryProgram
from fennel_core.query.query_log import QueryLog, RowOutcome
from fennel_core.telemetry import metrics
from fennel_core.vocab.dtypes import Dtype, Field, Float, Int, List, Optional, Str, Struct
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, TopicName
from tests.e2e.history.rolling import answers, read, roll_all
from tests.e2e.history.world import TOKEN, WORKSPACE, World, writer
from tests.support.polling import eventually

pytestmark = [pytest.mark.platform, pytest.mark.timeout(600)]
USERS = DatasetName("Users")
LOOKUP = ErasableLookup(USERS, ("uid",), (0,), (Int(),), listed=False)
PROGRAM = QueryProgram((), (), (), 1, frozenset(), (LOOKUP,))
PLACE = Struct("Place", (Field("city", Str()), Field("at", List(Float()))))
MINUTE_US = 60_000_000
BEGIN_US = 1_777_777_777_000_000


def served(
    number: int,
    uids: list[int],
    *,
    workflow: str = "fraud",
    commit: str = "c1",
    features: dict[str, tuple[Dtype, list[Any]]] | None = None,
) -> LoggedQuery:
    column = QueryColumn(Int(), uids)
    made = {name: QueryColumn(dtype, values) for name, (dtype, values) in (features or {}).items()}
    return LoggedQuery(
        (WORKSPACE, BranchName("main")),
        CommitId(commit),
        LogOptions(workflow, 1.0),
        f"r{number}",
        BEGIN_US + number * MINUTE_US,
        PROGRAM,
        {"User.uid": column, **made},
        range(len(uids)),
        KeyTrace({0: column}),
        200,
    )


@asynccontextmanager
async def opened(world: World) -> AsyncIterator[QueryLog]:
    """A log as a query server opens it; what it holds is written when the block ends."""
    log = QueryLog(KafkaLogProducer(world.settings), PostgresReader(world.pool), 64_000_000)
    finding = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        await log.close(30)
        finding.cancel()


@pytest.fixture
async def topics(world: World) -> AsyncIterator[QueryLogTopics]:
    """The loop of the definition server that creates topics; the topics are deleted at the end."""
    async with world.pool.connection() as connection:
        await connection.execute("UPDATE workspace SET partitions = 2")
    ledger = PostgresLedger(world.pool)
    context = LedgerContext(ledger, KafkaTopicAdmin(world.settings), asyncio.sleep)
    yield QueryLogTopics(world.pool, context)
    async with world.pool.connection() as connection:
        cursor = await connection.execute("SELECT id FROM asset WHERE kind = 'querylog'")
        names = [str(name) for (name,) in await cursor.fetchall()]
    if names:
        AdminClient(client_config(world.settings)).delete_topics(names)


def written() -> float:
    labels = {"workspace": WORKSPACE, "outcome": RowOutcome.WRITTEN.value}
    return metrics.REGISTRY.get_sample_value("fennel_query_log_rows_total", labels) or 0.0


def by_request(answer: dict[str, Any]) -> list[list[Any]]:
    assert "error" not in answer, answer["error"]
    names = [name for name, _ in answer["columns"]]
    request, row = names.index("request_id"), names.index("row")
    return sorted(answer["rows"], key=lambda each: (each[request], each[row]))


@pytest.mark.long
async def test_logged_queries_become_rows_of_a_dataframe(
    world: World, topics: QueryLogTopics
) -> None:
    place = {"User.place": (Optional(PLACE), [{"city": "Rome", "at": [1.5]}, None])}
    before = written()
    async with opened(world) as log:
        assert log.put(served(1, [1, 2], features=place))
        assert log.put(served(2, [3], features={"User.tags": (List(Str()), [["a", "b"]])}))
        assert log.put(served(3, [4], workflow="ads"))
        await asyncio.sleep(0)
        await eventually(lambda: wished(world), within_s=10)
        assert not await live_topics(world), "query servers create no topics"
        await topics.create_missing()
        await eventually(lambda: written() - before == 4, within_s=30)
        [topic] = await live_topics(world)
        async with writer(world):
            await eventually(partial(all_in_history, world, topic, 4), within_s=240)
        assert await roll_all(world) == 0, "the writer left nothing"
    async with opened(world) as log:
        assert log.put(served(4, [2], commit="c2"))
    await erasures.add(world.pool, WORKSPACE, USERS, ("uid",), [msgspec.msgpack.encode([2])])
    everything, fraud, recent, wrong = await answers(
        world,
        {"query_log": "*", "token": TOKEN},
        {"query_log": "fraud", "token": TOKEN},
        {"query_log": "fraud", "token": TOKEN, "from": iso(2), "until": iso(4), "features": "U.x"},
        {"query_log": "fraud", "token": TOKEN, "branch": "other", "features": "User.uid"},
    )
    assert [row[3] for row in by_request(everything)] == ["r1", "r2", "r3"]
    assert fraud["columns"] == [
        *[[name, "string"] for name in ("workflow", "branch", "commit", "request_id")],
        ["row", "bigint"],
        ["timestamp", "timestamp"],
        ["sampling_rate", "double"],
        ["User.place", "struct<city:string,at:array<double>>"],
        ["User.tags", "array<string>"],
        ["User.uid", "bigint"],
    ]
    assert [[row[3], row[4], *row[7:]] for row in by_request(fraud)] == [
        ["r1", 0, ["Rome", [1.5]], None, 1],
        ["r2", 0, None, ["a", "b"], 3],
    ], "user 2 was erased, in history and in the tail"
    assert "no selected row has the feature `U.x`" in recent["error"]
    assert "`User.uid`" in wrong["error"]


async def test_a_feature_that_changed_its_type_is_refused_with_both_commits(
    world: World, topics: QueryLogTopics
) -> None:
    async with opened(world) as log:
        log.put(served(1, [1], features={"User.x": (Int(), [1])}))
        log.put(served(2, [1], commit="c2", features={"User.x": (Str(), ["a"])}))
        await eventually(lambda: wished(world), within_s=10)
        await topics.create_missing()
    asked = {"query_log": "fraud", "token": TOKEN}
    with pytest.raises(ReadFailed, match=r"\[read-feature-type\]"):
        await read(world, asked)
    [one] = await read(world, {**asked, "from": iso(2)})
    assert one[-2:] == (1, "a")
    assert len(await read(world, {**asked, "features": "User.uid"})) == 2


async def test_a_workspace_without_a_log_says_so(world: World) -> None:
    with pytest.raises(ReadFailed, match=r"\[read-query-log\]"):
        await read(world, {"query_log": "fraud", "token": TOKEN})


def iso(number: int) -> str:
    return datetime.fromtimestamp((BEGIN_US + number * MINUTE_US) / 1e6, UTC).isoformat()


async def wished(world: World) -> bool:
    async with world.pool.connection() as connection:
        cursor = await connection.execute("SELECT workspace FROM query_log")
        return await cursor.fetchall() == [(WORKSPACE,)]


async def live_topics(world: World) -> list[TopicName]:
    async with world.pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT id FROM asset WHERE kind = 'querylog' AND state = 'live'"
        )
        return [TopicName(str(name)) for (name,) in await cursor.fetchall()]


async def all_in_history(world: World, topic: TopicName, rows: int) -> bool:
    """Return whether the blocks in history have so many rows."""
    found = 0
    for part in range(2):
        _, messages = await world.history_of(topic, part)
        found += sum(int(frame["rows"].sum()) for _, frame in messages)
    return found == rows
