"""A system that does not respond costs a commit one deadline, and no thread of the server."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from fennel_core.connections.external_kafka import ExternalKafka, ExternalKafkaAway, ExternalTopic
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.definition import external_checks, sink_check, source_check
from fennel_core.definition.external_checks import THREADS, answers
from fennel_core.definition.sink_check import AddedSink, sink_problems
from fennel_core.definition.source_check import source_problems
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.connectors import Cdc, JsonFormat, KafkaTopic, Sink
from tests.support.compiler_inputs import schema
from tests.support.ingest_world import WORKSPACE, source
from tests.support.source_world import CONNECTOR

NO_HOSTS = AllowedHosts()
SINK = Sink(
    *(DatasetName("Large"), 1, KafkaTopic(CONNECTOR, "out", JsonFormat()), Cdc.DEBEZIUM),
    *(None, None, False, False, (), None, None),
)


async def test_systems_that_hang_block_no_other_thread_and_end_at_the_deadline() -> None:
    hang, begun = threading.Event(), []

    def silent() -> str:
        begun.append(1)
        hang.wait(30)
        return "late"

    try:
        started_s = time.monotonic()
        commits = [answers([silent] * THREADS, within_s=0.3) for _ in range(3)]
        waiting = asyncio.gather(*commits)
        assert await asyncio.to_thread(lambda: "decoded") == "decoded"
        assert time.monotonic() - started_s < 0.3, "other threads are free"
        assert await waiting == [[None] * THREADS] * 3
    finally:
        hang.set()
    assert await answers([lambda: "up"]) == ["up"]
    assert len(begun) == THREADS, "what has not begun by the deadline does not begin"


async def test_what_a_question_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await answers([lambda: 1 // 0])
    assert await answers([]) == []


def topics(count: int) -> list[KafkaTopic]:
    return [KafkaTopic(CONNECTOR, f"orders{n}", JsonFormat()) for n in range(count)]


async def test_a_cluster_that_is_away_is_asked_once_for_all_its_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def away(_: ExternalKafka, topic: str) -> ExternalTopic:
        asked.append(topic)
        raise ExternalKafkaAway("the cluster is away")

    monkeypatch.setattr(source_check, "describe_topic", away)
    monkeypatch.setattr(sink_check, "check_sink_topic", away)
    sources = [source(f"D{n}", table=table) for n, table in enumerate(topics(9))]
    found = await source_problems(sources, {}, WORKSPACE, None)
    assert {problem.entity for problem in found} == {each.dataset for each in sources}
    assert len(asked) == 1
    sinks = [
        AddedSink(replace(SINK, dataset=DatasetName(f"D{n}"), table=table), schema("user"))
        for n, table in enumerate(topics(9))
    ]
    assert len(await sink_problems(sinks, {}, WORKSPACE, None, NO_HOSTS)) == 9
    assert len(asked) == 2


async def test_a_stream_that_was_not_reached_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(questions: list[object]) -> list[None]:
        return [None for _ in questions]

    monkeypatch.setattr(source_check, "answers", late)
    monkeypatch.setattr(sink_check, "answers", late)
    (table,) = topics(1)
    (problem,) = await source_problems([source("Orders", table=table)], {}, WORKSPACE, None)
    assert (problem.code, problem.entity) == ("source-unreachable", "Orders")
    assert f"was not reached in {external_checks.REACHED_S:.0f} s" in problem.text
    sinks = [AddedSink(replace(SINK, table=table), schema("user"))]
    (problem,) = await sink_problems(sinks, {}, WORKSPACE, None, NO_HOSTS)
    assert (problem.code, problem.entity) == ("sink-unreachable", SINK.dataset)
