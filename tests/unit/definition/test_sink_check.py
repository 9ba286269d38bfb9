"""The sinks of a commit are reached before anything exists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.spec import Catalog, SinkBinding
from fennel_core.connections import external_kafka
from fennel_core.definition.sink_check import sink_problems
from fennel_core.vocab.ids import BranchName, DatasetName, TopicName, WorkspaceId
from fennel_core.wire.connectors import Cdc, JsonFormat, Kafka, KafkaTopic, Login, Sink
from tests.support.compiler_inputs import schema
from tests.support.ports import free_port

SHOP = WorkspaceId("shop")
MAIN = BranchName("main")


def sink(topic: str = "large", address: str = "") -> Sink:
    db = Kafka(
        "out", address or f"127.0.0.1:{free_port()}", "", "PLAIN", None, "", Login(None, None)
    )
    table = KafkaTopic(db, topic, JsonFormat())
    name = DatasetName("Large")
    return Sink(name, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_kafka, "REQUEST_S", 1.0)


async def test_a_cluster_that_does_not_respond_is_named_with_its_dataset() -> None:
    (problem,) = await sink_problems((sink(),), {}, SHOP, None)
    assert problem.code == "sink-unreachable"
    assert "Dataset `Large`: connector `out`: Kafka at" in problem.text


@pytest.mark.parametrize("topic", ["w.raw.ab12.1", "__consumer_offsets", "fennel-sink-positions"])
async def test_topics_of_a_platform_are_no_sinks(topic: str) -> None:
    (problem,) = await sink_problems((sink(topic),), {}, SHOP, None)
    assert problem.code == "connector-not-served"
    assert f"`{topic}`" in problem.text


async def test_branches_must_agree_on_the_address_of_a_sink_that_they_share() -> None:
    there = SinkBinding(
        TopicName("shop.sink.a.1"),
        sink(address="a:1"),
        DatasetName("Large"),
        schema("user"),
        (),
        TopicName("shop.topic.a.1"),
    )
    main = Catalog(SHOP, (), (), (), 1, (there,))
    moved = sink(address=f"127.0.0.1:{free_port()}")
    found = await sink_problems((moved,), {MAIN: main}, SHOP, None)
    assert [each.code for each in found] == ["connector-redefined", "sink-unreachable"]
    agreed = Catalog(SHOP, (), (), (), 1, (replace(there, sink=moved),))
    (other,) = await sink_problems((moved,), {MAIN: agreed}, SHOP, None)
    assert other.code == "sink-unreachable"
