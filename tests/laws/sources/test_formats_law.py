"""Rows enter as the same versions, whatever format and schema version their messages have."""

import asyncio
import io

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.sources.avro import compile_avro
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.messages import decode_messages
from fennel_core.sources.protobuf import compile_protobuf
from fennel_core.vocab.versions import POS
from tests.support.ingest_world import catalog
from tests.support.schema_registry import MemoryRegistry, framed
from tests.support.source_world import SourceWorld, batch, message, stream_source

AT = 1_700_000_000_000
FIELDS = {"user": "string", "age": "long", "at": "long", "city": ["null", "string"]}
AVRO = [
    {
        "type": "record",
        "name": f"Row{version}",
        "fields": [{"name": name, "type": FIELDS[name]} for name in names],
    }
    for version, names in enumerate(
        [("user", "age", "at"), ("at", "city", "user", "age"), ("city", "user", "at")]
    )
]
PROTO = [
    'syntax="proto3"; message Row { string user=1; int64 age=2; int64 at=3; }',
    'syntax="proto3"; message X {} message Row { int64 at=1; optional string city=2;'
    " string user=3; int64 age=4; }",
    'syntax="proto3"; message Row { optional string city=9; string user=7; int64 at=8; }',
]
REGISTRY = MemoryRegistry()
AVRO_IDS = [REGISTRY.add(schema) for schema in AVRO]
PROTO_IDS = [REGISTRY.add(text, "PROTOBUF", "proto") for text in PROTO]
DECODE_AVRO = FramedDecoder(REGISTRY, compile_avro)
DECODE_PROTO = FramedDecoder(REGISTRY, compile_protobuf)
TAGS = [
    {"user": 1, "age": 2, "at": 3},
    {"at": 1, "city": 2, "user": 3, "age": 4},
    {"city": 9, "user": 7, "at": 8},
]
INDEX = [b"\0", b"\x02\x02", b"\0"]
rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.fixed_dictionaries(
            {
                "user": st.text(max_size=5),
                "age": st.integers(0, 2**62),
                "at": st.integers(AT, AT + 1000),
                "city": st.none() | st.text(max_size=3),
            }
        ),
    ),
    min_size=1,
    max_size=8,
)


def own(version: int, row: dict) -> dict:
    return {name: row[name] for name in TAGS[version]}


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def protobuf(version: int, row: dict) -> bytes:
    """Encode by hand: the wire format needs no schema."""
    out = b""
    for name, tag in TAGS[version].items():
        value = row[name]
        if isinstance(value, str):
            text = value.encode()
            out += varint(tag << 3 | 2) + varint(len(text)) + text
        elif value is not None:
            out += varint(tag << 3) + varint(value)
    return framed(PROTO_IDS[version], INDEX[version] + out)


def avro(version: int, row: dict) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO[version], own(version, row))
    return framed(AVRO_IDS[version], stream.getvalue())


async def outcome(messages, decode) -> tuple[list, list]:
    sources = SourceWorld()
    sources.world.commit(main=catalog(stream_source(disorder_us=10**15)))
    writer = sources.writer()
    writer._decode = decode
    await writer.write(batch(messages))
    await sources.world.close()
    typed = [
        {name: value for name, value in row.items() if name != POS}
        for row in sorted(sources.world.rows("w.topic.users.1"), key=lambda row: row[POS])
    ]
    return typed, sorted(row["row"] for row in sources.world.rows("w.dead.1"))


@settings(deadline=None)
@given(rows)
def test_the_rows_of_each_format_are_those_of_json(found) -> None:
    json = [message(**own(version, row)) for version, row in found]
    expected = asyncio.run(outcome(json, decode_messages))
    for encode, decode in ((avro, DECODE_AVRO), (protobuf, DECODE_PROTO)):
        messages = [encode(version, row) for version, row in found]
        assert asyncio.run(outcome(messages, decode)) == expected
