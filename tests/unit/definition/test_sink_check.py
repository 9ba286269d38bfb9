"""The sinks of a commit are reached before anything exists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from fennel_core.blueprints.spec import Catalog, SinkBinding
from fennel_core.connections import external_kafka
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.definition import sink_check
from fennel_core.definition.sink_check import AddedSink
from fennel_core.vocab.ids import BranchName, DatasetName, TopicName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import (
    Cdc,
    Http,
    HttpPath,
    JsonFormat,
    Kafka,
    KafkaTopic,
    Login,
    PlainSecret,
    Sink,
)
from tests.support.compiler_inputs import schema
from tests.support.http_receivers import Receiver, served
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


async def sink_problems(
    sinks: Collection[Sink],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: None,
    allowed: AllowedHosts,
) -> tuple[Problem, ...]:
    added = [AddedSink(each, schema("user")) for each in sinks]
    return await sink_check.sink_problems(added, others, workspace, sealer, allowed)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_kafka, "REQUEST_S", 1.0)


async def test_a_cluster_that_does_not_respond_is_named_with_its_dataset() -> None:
    (problem,) = await sink_problems((sink(),), {}, SHOP, None, AllowedHosts())
    assert problem.code == "sink-unreachable"
    assert "Dataset `Large`: connector `out`: Kafka at" in problem.text


@pytest.mark.parametrize("topic", ["w.raw.ab12.1", "__consumer_offsets", "fennel-sink-positions"])
async def test_topics_of_a_platform_are_no_sinks(topic: str) -> None:
    (problem,) = await sink_problems((sink(topic),), {}, SHOP, None, AllowedHosts())
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
    found = await sink_problems((moved,), {MAIN: main}, SHOP, None, AllowedHosts())
    assert [each.code for each in found] == ["connector-redefined", "sink-unreachable"]
    agreed = Catalog(SHOP, (), (), (), 1, (replace(there, sink=moved),))
    (other,) = await sink_problems((moved,), {MAIN: agreed}, SHOP, None, AllowedHosts())
    assert other.code == "sink-unreachable"


def http_sink(host: str, ca_cert: str = "", headers: tuple[tuple[str, str], ...] = ()) -> Sink:
    db = Http("hooks", PlainSecret(host), "/health", PlainSecret(ca_cert) if ca_cert else None)
    table = HttpPath(db, "/rows", None, tuple((n, PlainSecret(v)) for n, v in headers))
    return replace(sink(), table=table)


async def test_a_host_of_an_http_sink_is_allowed_by_the_operator() -> None:
    (problem,) = await sink_problems(
        (http_sink("https://a.example"),), {}, SHOP, None, AllowedHosts()
    )
    assert problem.code == "sink-host-not-allowed"
    assert "Dataset `Large`: connector `hooks`: this platform sends no rows to" in problem.text
    assert "FENNEL_HTTP_SINK_HOSTS" in problem.text


async def test_an_http_sink_must_be_healthy_and_its_headers_are_sent() -> None:
    answers: list[int] = [503, 200]
    receiver = Receiver(lambda *_: (answers.pop(0), {"text": "it is token-of-ann"}))
    headers = (("Authorization", "Bearer token-of-ann"),)
    with served(receiver) as port:
        allowed = AllowedHosts((), (f"127.0.0.1:{port}",))
        added = http_sink(f"http://127.0.0.1:{port}/v1", headers=headers)
        (problem,) = await sink_problems((added,), {}, SHOP, None, allowed)
        assert problem.code == "sink-unreachable"
        assert "connector `hooks`: the health check" in problem.text
        assert "status 503: it is ***" in problem.text
        assert "token-of-ann" not in problem.text
        assert not await sink_problems((added,), {}, SHOP, None, allowed)
    assert [path for path, _ in receiver.seen] == ["/v1/health"] * 2
    assert receiver.seen[0][1]["Authorization"] == "Bearer token-of-ann"
    assert receiver.seen[0][1]["Host"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("ca_cert", "headers", "text"),
    [
        ("no certificate", (), "`ca_cert` is no certificate"),
        ("", (("X-Team", "a\r\nX-Other: b"),), "characters that cannot be sent"),
    ],
)
async def test_what_cannot_be_sent_is_found_at_the_commit(
    ca_cert: str, headers: tuple[tuple[str, str], ...], text: str
) -> None:
    with served(Receiver()) as port:
        added = http_sink(f"http://127.0.0.1:{port}", ca_cert, headers)
        allowed = AllowedHosts((), (f"127.0.0.1:{port}",))
        (problem,) = await sink_problems((added,), {}, SHOP, None, allowed)
    assert problem.code == "sink-unreachable"
    assert text in problem.text
