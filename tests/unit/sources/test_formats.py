"""Messages of each format enter by the writer, and a registry that is away loses none of them."""

import io

import fastavro
import pytest

from fennel_core.connections.schema_registry import SchemaRegistryUnusable
from fennel_core.sources.avro import compile_avro
from fennel_core.sources.formats import decoder_of
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.messages import decode_messages
from fennel_core.vocab.ids import Micros
from fennel_core.wire.connectors import (
    AvroFormat,
    BasicAuth,
    Cdc,
    JsonFormat,
    Login,
    PlainSecret,
    ProtobufFormat,
    SchemaRegistry,
    SealedSecret,
)
from tests.support.ingest_world import World, catalog
from tests.support.schema_registry import MemoryRegistry, basic, framed, http_registry
from tests.support.source_world import POSITIONS, SourceWorld, batch, message, stream_source
from tests.support.table_changes import START_US, event

ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "age", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
ANN = {"user": "ann", "age": 3, "at": START_US // 1000}
DAY_US = 86_400 * 10**6


def written(row: dict) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, ROW, row)
    return stream.getvalue()


def world(**changes: object) -> SourceWorld:
    made = SourceWorld(world=World(now_us=lambda: Micros(START_US + 1000 * DAY_US)))
    made.world.commit(main=catalog(stream_source(**changes)))
    return made


async def test_a_registry_that_is_away_writes_nothing_and_loses_nothing() -> None:
    sources, registry = world(), MemoryRegistry()
    number = registry.add(ROW)
    writer = sources.writer()
    writer._decode = FramedDecoder(registry, compile_avro)
    messages = batch([framed(number, written(ANN)), b"no header", framed(number, written(ANN))])
    registry.away = True
    with pytest.raises(SchemaRegistryUnusable):
        await writer.write(messages)
    assert sources.world.messages(POSITIONS) == []
    registry.away = False
    position = await writer.write(messages)
    assert position is not None
    assert position.next == 3
    rows = sources.world.rows("w.topic.users.1")
    assert [(row["user"], row["age"]) for row in rows] == [("ann", 3)] * 2
    assert sources.read()[0] == {"user": "ann", "age": 3, "at": "2023-11-14T22:13:20Z"}
    assert len(sources.world.rows("w.dead.1")) == 1


async def test_an_unreadable_framed_message_is_kept_as_base64() -> None:
    sources, registry = world(), MemoryRegistry()
    writer = sources.writer()
    writer._decode = FramedDecoder(registry, compile_avro, sleep=lambda _: None)
    await writer.write(batch([framed(7, b"\xff")]))
    (letter,) = sources.world.rows("w.dead.1")
    assert letter["row"] == '{"value":"AAAAAAf/"}'


@pytest.mark.parametrize("kind", [AvroFormat, ProtobufFormat])
def test_the_decoder_of_a_format_opens_its_credentials(kind) -> None:
    with http_registry() as registry:
        registry.auth = basic("ann", "opened")
        login = Login(PlainSecret("ann"), SealedSecret("f", "t"))
        of = kind(SchemaRegistry(registry.url, BasicAuth(login)))
        number = registry.memory.add(ROW)
        (unreadable,) = decoder_of(of, lambda _: "opened")([framed(number, b"")]).unreadable
        assert "does not fit" in unreadable.reason or "of type AVRO" in unreadable.reason
        with pytest.raises(SchemaRegistryUnusable, match="credentials"):
            decoder_of(of, lambda _: "other")([framed(number, b"")])
    assert decoder_of(JsonFormat(), lambda _: "") is decode_messages


@pytest.mark.parametrize(("cdc", "letters"), [(Cdc.DEBEZIUM, 0), (Cdc.UPSERT, 1)])
async def test_a_message_without_a_value_is_expected_after_a_delete_only(cdc, letters) -> None:
    sources = world(cdc=cdc)
    position = await sources.writer().write(batch([None]))
    assert position is not None
    assert position.next == 1
    assert len(sources.world.rows("w.dead.1")) == letters


async def test_snapshots_and_deletes_are_never_late_and_deletes_make_no_row_late() -> None:
    sources = world(cdc=Cdc.DEBEZIUM, disorder_us=0)
    writer = sources.writer()

    def row(user: str, day: int) -> dict:
        return {"user": user, "age": day, "at": START_US + day * DAY_US}

    new, old = START_US + 50 * DAY_US, START_US + 2 * DAY_US
    parts = [
        [event("r", None, row("a", 5), new)],
        [event("d", row("z", 1), None, new)],
        [event("r", None, row("b", 3), new)],
        [event("c", None, row("c", 6), new)],
        [event("c", None, row("d", 4), new), event("d", row("y", 1), None, old)],
    ]
    for number, part in enumerate(parts):
        await writer.write(batch(part, first=sum(map(len, parts[:number]))))
    found = sources.world.rows("w.topic.users.1")
    assert sorted(each["user"] for each in found) == ["a", "b", "c", "y", "z"]
    assert [each["user"] for each in found if each["__tombstone"]] == ["z", "y"]
    position = await writer.position()
    assert position is not None
    (counts,) = position.datasets.values()
    assert (counts.accepted, counts.late) == (5, 1)
    assert counts.latest_us == START_US + 6 * DAY_US


async def test_json_is_read_as_before() -> None:
    sources = world()
    await sources.writer().write(batch([message(user="ann", age=1, at=START_US // 1000)]))
    assert [row["user"] for row in sources.world.rows("w.topic.users.1")] == ["ann"]
