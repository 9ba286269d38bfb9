"""A test of a source shows what would become of its newest messages, and leaves no trace."""

from __future__ import annotations

import threading
from dataclasses import replace

import polars as pl
import pytest

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.external_kafka import (
    ExternalKafka,
    ExternalKafkaUnusable,
    ExternalMessage,
)
from fennel_core.ingest.store import MemoryDirectory
from fennel_core.sources import trial
from fennel_core.sources.api_errors import SourceIsSent, SourceNotReadable
from fennel_core.sources.controls import MemorySourceControls
from fennel_core.sources.file_trial import FileRow
from fennel_core.sources.kinesis_orders import StreamRow
from fennel_core.sources.service import SourceService
from fennel_core.sources.trial import SourceTrials
from fennel_core.vocab.ids import DatasetName, Identity, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.connectors import (
    S3,
    Cdc,
    FromLatest,
    Kinesis,
    KinesisStream,
    Login,
    Postgres,
    PostgresChanges,
    S3Table,
)
from tests.support.ingest_world import KEYED, WORKSPACE, NoExecutors, binding, branches, catalog
from tests.support.source_world import message, stream_source

AT = "2026-01-01T00:00:00Z"
OTHERS = replace(
    stream_source("Others", since_us=4 * 10**15),
    identity=Identity("others"),
    topic=TopicName("w.topic.others.1"),
)
WORLD = branches("1", main=catalog(stream_source(), OTHERS, binding()))
MESSAGES = [
    ExternalMessage(0, 7, message(user="ann", age=31, at=AT)),
    ExternalMessage(0, 9, b"no json"),
    ExternalMessage(1, 3, message(user="bob", age="old", at=AT)),
    ExternalMessage(1, 4, message(user="eve", age=5, at=AT)),
]


LAKE = S3Table(S3("lake", None, Login(None, None)), "b", "in/", "", "json", "", (), False, None)
FILE_ROWS = [
    FileRow("in/b", 0, {"user": "ann", "age": 31, "at": AT}),
    FileRow("in/b", 1, "the message is not JSON"),
    FileRow("in/a", 0, {"user": "bob", "age": "old", "at": AT}),
]
CHANGES = PostgresChanges(Postgres("shop", "db", 5432, "shop", None, Login(None, None)), "users")
CHANGED_ROWS = [
    message(op="r", after={"user": "ann", "age": 31, "at": AT}, source={"ts_ms": 1}),
    message(op="r", after={"user": "bob", "age": "old", "at": AT}, source={"ts_ms": 1}),
]
STREAM = KinesisStream(
    Kinesis("shop", "arn:aws:iam::123456789012:role/reader"),
    "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
    FromLatest(),
    "json",
)
STREAM_ROWS = [
    StreamRow(3, "4959033827", message(user="ann", age=31, at=AT)),
    StreamRow(4, "4959033828", b"no json"),
]


async def secret(_: WorkspaceId, code: str, name: str) -> str | None:
    raise AssertionError((code, name))


def trials(world: object = WORLD, reads: list[object] | None = None) -> SourceTrials:
    def read(kafka: ExternalKafka, topic: str, count: int) -> list[ExternalMessage]:
        if reads is None:
            raise ExternalKafkaUnusable("the cluster is away")
        reads.append((kafka.name, topic, count))
        return MESSAGES

    sources = SourceService(
        MemoryDirectory({WORKSPACE: world}),  # type: ignore[dict-item]  # branches
        MemorySourceControls(lambda: None, ()),  # type: ignore[arg-type,return-value]  # no clock
        lambda _: {},
    )

    def read_files(table: S3Table, _: object, count: int) -> list[FileRow]:
        assert (table, count) == (LAKE, 5)
        return FILE_ROWS

    def read_streams(table: KinesisStream, workspace: str, count: int) -> list[StreamRow]:
        assert (table, workspace, count) == (STREAM, WORKSPACE, 5)
        return STREAM_ROWS

    def read_changes(table: PostgresChanges, _: object, count: int) -> list[bytes]:
        assert (table, count) == (CHANGES, 5)
        return CHANGED_ROWS

    return SourceTrials(
        *(sources, NoExecutors(), secret, lambda *_: "", read_files, read_streams),
        *(read_changes, read),
    )


async def test_messages_are_shown_typed_or_with_the_reason() -> None:
    reads: list[object] = []
    found = await trials(reads=reads).run(WORKSPACE, "kafka/orders")
    assert reads == [("kafka", "orders", 5)]
    assert found["messages"] == 4
    users, others = found["datasets"]
    assert users["fields"] == {"user": "str", "age": "int", "at": "datetime"}
    first, second, third, fourth = users["messages"]
    assert (first["partition"], first["offset"]) == (0, 7)
    assert first["row"] | {"at": ""} == {"user": "ann", "age": 31, "at": ""}
    assert second["error"] == "the message is not JSON"
    assert "age" in third["error"]
    assert fourth["row"]["user"] == "eve"
    assert others["messages"][0] == {"partition": 0, "offset": 7, "left_out": True}


async def test_rows_of_changes_are_shown_typed_or_with_the_reason() -> None:
    world = branches("1", main=catalog(stream_source(table=CHANGES, cdc=Cdc.DEBEZIUM)))
    found = await trials(world).run(WORKSPACE, "kafka/orders")
    first, second = found["datasets"][0]["messages"]
    assert first["row"] | {"at": ""} == {"user": "ann", "age": 31, "at": ""}
    assert "age" in second["error"]


async def test_rows_of_files_are_shown_typed_or_with_the_reason() -> None:
    world = branches("1", main=catalog(stream_source(table=LAKE)))
    found = await trials(world).run(WORKSPACE, "kafka/orders")
    first, second, third = found["datasets"][0]["messages"]
    assert (first["file"], first["offset"], first["row"]["user"]) == ("in/b", 0, "ann")
    assert (second["file"], second["offset"]) == ("in/b", 1)
    assert second["error"] == "the message is not JSON"
    assert third["file"] == "in/a"
    assert "age" in third["error"]


async def test_records_of_kinesis_are_shown_with_shard_and_sequence_number() -> None:
    world = branches("1", main=catalog(stream_source(table=STREAM)))
    found = await trials(world).run(WORKSPACE, "kafka/orders")
    first, second = found["datasets"][0]["messages"]
    assert (first["partition"], first["offset"], first["row"]["user"]) == (3, "4959033827", "ann")
    assert second == {"partition": 4, "offset": "4959033828", "error": "the message is not JSON"}


async def test_erased_keys_are_left_out() -> None:

    (key,) = key_bytes(pl.DataFrame({"user": ["ann"]}), KEYED.key_names)
    erased = {DatasetName("Users"): (ErasedKeys(("user",), frozenset({key})),)}
    found = await trials(replace(WORLD, erased=erased), []).run(WORKSPACE, "kafka/orders")
    assert found["datasets"][0]["messages"][0] == {"partition": 0, "offset": 7, "left_out": True}


async def test_a_stream_that_cannot_be_read_is_named_with_the_reason() -> None:
    with pytest.raises(SourceNotReadable, match=r"`kafka/orders` cannot be read: .*away"):
        await trials().run(WORKSPACE, "kafka/orders")
    with pytest.raises(SourceIsSent, match="cannot test it"):
        await trials().run(WORKSPACE, "hook/e")


async def test_a_system_that_does_not_respond_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "TRIED_S", 0.05)
    hangs = threading.Event()
    tried = trials(reads=[])

    def read(*_: object) -> list[ExternalMessage]:
        hangs.wait(60)
        return []

    tried._read = read
    try:
        with pytest.raises(SourceNotReadable, match="nothing came in 0 s"):
            await tried.run(WORKSPACE, "kafka/orders")
        names = [each.name for each in threading.enumerate() if not each.daemon]
        assert "try" not in names, "a thread that does not end would keep the process alive"
        assert "try" in [each.name for each in threading.enumerate()]
    finally:
        hangs.set()
