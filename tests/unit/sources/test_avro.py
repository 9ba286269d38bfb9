"""Rows of Avro become JSON values, whatever schema they were written with."""

import datetime as dt
import decimal
import io
import json
import uuid

import fastavro
import pytest

from fennel_core.connections.schema_registry import RegisteredSchema, SchemaReference
from fennel_core.sources.avro import DECIMAL_BYTES, compile_avro
from fennel_core.sources.errors import SchemaRefused
from fennel_core.sources.framed import FramedDecoder
from tests.support.schema_registry import MemoryRegistry, framed


def record(name: str = "R", **fields: object) -> dict:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": kind} for key, kind in fields.items()],
    }


def written(schema: dict, row: dict) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def decoded(schema: dict, *rows: dict):
    registry = MemoryRegistry()
    number = registry.add(schema)
    decode = FramedDecoder(registry, compile_avro)
    return decode([framed(number, written(schema, row)) for row in rows])


def read(kind: object, value: object) -> object:
    found = decoded(record(x=kind), {"x": value})
    assert found.unreadable == ()
    assert json.loads(found.texts[0]) == found.rows[0] or value != value
    return found.rows[0]["x"]


NOON = dt.datetime(2024, 1, 2, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, "2024-01-02T12:00:00Z"),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, "2024-01-02T12:00:00Z"),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            NOON.replace(tzinfo=None),
            "2024-01-02T12:00:00",
        ),
        ({"type": "int", "logicalType": "date"}, NOON.date(), "2024-01-02"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            decimal.Decimal("-12.34"),
            "-12.34",
        ),
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (["null", "long"], None, None),
        (["null", "long"], 3, 3),
        (["null", record("In", y="int")], {"y": 1}, {"y": 1}),
        (
            {"type": "map", "values": {"type": "array", "items": "int"}},
            {"k": [1]},
            {"k": [1]},
        ),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ("bytes", b"\xff\x00", "/wA="),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
        ("double", float("inf"), float("inf")),
        ({"type": "array", "items": "double"}, [1.5, float("-inf")], [1.5, float("-inf")]),
        ("long", 2**62, 2**62),
    ],
)
def test_a_value_becomes_what_json_has_for_it(kind, value, meant) -> None:
    assert read(kind, value) == meant


def test_not_a_number_stays_one() -> None:
    found = decoded(record(x="double"), {"x": float("nan")})
    assert found.texts == [b'{"x": NaN}']


@pytest.mark.parametrize(
    ("kind", "connect", "number", "meant"),
    [
        ("long", "io.debezium.time.MicroTimestamp", 1_000_000, "1970-01-01T00:00:01Z"),
        ("long", "io.debezium.time.Timestamp", 1_000, "1970-01-01T00:00:01Z"),
        ("long", "io.debezium.time.NanoTimestamp", -1_500, "1969-12-31T23:59:59.999998Z"),
        ("int", "io.debezium.time.Date", 1, "1970-01-02"),
        ("long", "io.debezium.time.MicroTime", 1, 1),
    ],
)
def test_numbers_of_connect_have_their_meaning(kind, connect, number, meant) -> None:
    schema = record(x=["null", {"type": kind, "connect.name": connect}])
    registry = MemoryRegistry()
    at = registry.add(schema)
    body = written(record(x=["null", kind]), {"x": number})
    assert FramedDecoder(registry, compile_avro)([framed(at, body)]).rows == [{"x": meant}]


@pytest.mark.parametrize("number", [0, 1_000_000_000, 1_704_196_800_123_456_789, -(2**63)])
def test_nanoseconds_are_a_time_whatever_their_magnitude(number: int) -> None:
    kind = {"type": "long", "logicalType": "timestamp-nanos"}
    schema = record(x=kind, y={"type": "array", "items": ["null", kind]})
    at = (registry := MemoryRegistry()).add(schema)
    plain = record(x="long", y={"type": "array", "items": ["null", "long"]})
    body = written(plain, {"x": number, "y": [number, None]})
    row = FramedDecoder(registry, compile_avro)([framed(at, body)]).rows[0]
    meant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number // 1000)
    assert row["y"] == [row["x"], None]
    assert dt.datetime.fromisoformat(row["x"]) == meant


@pytest.mark.parametrize(
    ("kind", "number", "meant"),
    [
        ({"type": "bytes", "precision": 4, "scale": 2}, 123_456_789, "1234567.89"),
        ({"type": "bytes", "precision": 4, "scale": 2}, -(10**40), "-" + "1" + "0" * 38 + ".00"),
        ({"type": "bytes", "precision": 64, "scale": 127}, 5, "5E-127"),
        ({"type": "bytes", "precision": 9}, 7, "7"),
        ({"type": "bytes", "scale": 1}, 75, "7.5"),
        ({"type": "fixed", "name": "F", "size": 5, "precision": 40, "scale": 2}, -150, "-1.50"),
    ],
)
def test_a_decimal_has_all_its_digits_whatever_its_schema_says(kind, number, meant) -> None:
    size = kind.get("size", 20)
    raw = number.to_bytes(size, "big", signed=True)
    plain = {key: value for key, value in kind.items() if key not in ("precision", "scale")}
    registry = MemoryRegistry()
    at = registry.add(record(x=["null", kind | {"logicalType": "decimal"}]))
    body = written(record(x=["null", plain]), {"x": raw})
    found = FramedDecoder(registry, compile_avro)([framed(at, body)])
    assert (found.rows, found.unreadable) == ([{"x": meant}], ())


def test_a_decimal_that_is_too_long_does_not_fit() -> None:
    registry = MemoryRegistry()
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    at = registry.add(record(x=kind))
    body = written(record(x="bytes"), {"x": b"\1" * (DECIMAL_BYTES + 1)})
    found = FramedDecoder(registry, compile_avro)([framed(at, body)])
    assert [each.reason for each in found.unreadable] == [
        "the message does not fit its Avro schema"
    ]


def test_a_message_with_bytes_left_over_or_missing_does_not_fit() -> None:
    schema = record(x="string")
    registry = MemoryRegistry()
    number = registry.add(schema)
    body = written(schema, {"x": "abc"})
    bad = [body + b"\0", body[:-1], b"", b"\xff" * 12, b"\x06\xff\xfe\xfd"]
    found = FramedDecoder(registry, compile_avro)([framed(number, each) for each in [body, *bad]])
    assert found.rows == [{"x": "abc"}]
    (unreadable,) = found.unreadable
    assert unreadable.numbers == [1, 2, 3, 4, 5]


EMPTY = {"type": "fixed", "name": "Z", "size": 0}
NODE = {
    "type": "record",
    "name": "Node",
    "namespace": "a",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def own(name: str, space: str | None, inner: object) -> dict:
    """Return a record with a namespace and a field beside `inner`."""
    spaces = {} if space is None else {"namespace": space}
    return record(name, x=inner, y="int") | spaces


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (json.dumps(own("x.A", "y", ["null", "A"])), "contains itself"),
        (json.dumps(own("x.A", "y", ["null", "x.A"])), "contains itself"),
        (json.dumps(own("A", None, own("B", "", ["null", "B"]))), "contains itself"),
        (json.dumps(own("A", "y", own("B", "", ["null", "B"]))), "contains itself"),
        (json.dumps(own("A", "y", own("x.B", "z", ["null", "y.A"]))), "contains itself"),
        (
            json.dumps(
                record(
                    "x.A",
                    f=["int", EMPTY | {"name": "p.Z", "namespace": "q"}],
                    z={"type": "array", "items": "p.Z"},
                )
            ),
            "without bytes",
        ),
        ("no json", "not a valid"),
        ("3", "not a valid"),
        ('"string"', "no records"),
        (json.dumps({"type": "record", "name": "R"}), "not a valid"),
        (json.dumps(record(x="Missing")), "not valid"),
        (json.dumps(NODE), "contains itself"),
        (json.dumps(record(x={"type": "array", "items": "null"})), "without bytes"),
        (json.dumps(record(x={"type": "array", "items": record("E", n="null")})), "without bytes"),
        (
            json.dumps(record(x={"type": "array", "items": EMPTY})),
            "without bytes",
        ),
        (json.dumps(record(x={"type": "record", "name": "E", "fields": []})), "without bytes"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema, text) -> None:
    with pytest.raises(SchemaRefused, match=text):
        compile_avro(RegisteredSchema(schema), MemoryRegistry())


def test_a_schema_of_another_format_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="PROTOBUF"):
        compile_avro(RegisteredSchema("", "PROTOBUF"), MemoryRegistry())


def test_a_marker_of_the_library_in_a_schema_has_no_effect() -> None:
    schema = record(x="int") | {"__fastavro_parsed__": True, "__named_schemas": {}}
    registry = MemoryRegistry()
    number = registry.add(schema)
    assert FramedDecoder(registry, compile_avro)([framed(number, b"\x02")]).rows == [{"x": 1}]


def test_types_of_other_subjects_are_read() -> None:
    registry = MemoryRegistry()
    registry.add(record("geo.Point", x="int"), subject="point")
    number = registry.add(
        record(at="geo.Point"), references=(SchemaReference("geo.Point", "point", 1),)
    )
    found = FramedDecoder(registry, compile_avro)([framed(number, b"\x02")])
    assert found.rows == [{"at": {"x": 1}}]


def test_three_versions_of_a_schema_in_one_batch() -> None:
    """A new field, a missing one, and one of another type."""
    versions = [
        record(user="string", age="int"),
        record(user="string", age=["null", "long"], city="string"),
        record(user="string", city="string", age="string"),
    ]
    rows = [
        {"user": "a", "age": 1},
        {"user": "b", "age": None, "city": "Rome"},
        {"user": "c", "city": "Oslo", "age": "7"},
    ]
    registry = MemoryRegistry()
    messages = [
        framed(registry.add(schema), written(schema, row))
        for schema, row in zip(versions, rows, strict=True)
    ]
    found = FramedDecoder(registry, compile_avro)([*messages, *reversed(messages)])
    assert found.rows == [*rows, *reversed(rows)]


def test_a_number_that_json_lacks_is_found_beside_null_and_in_nested_values() -> None:
    nested = record("In", y={"type": "map", "values": ["null", "float"]})
    schema = record(a="long", x=["null", "double"], z=nested)
    nan, inf = float("nan"), float("inf")
    rows = [
        {"a": 1, "x": None, "z": {"y": {}}},
        {"a": 2, "x": 0.0, "z": {"y": {"k": None}}},
        {"a": 3, "x": nan, "z": {"y": {"k": 1.5}}},
        {"a": 4, "x": 1.0, "z": {"y": {"k": inf}}},
    ]
    texts = decoded(schema, *rows).texts
    assert [b"NaN" in text for text in texts] == [False, False, True, False]
    assert [b"Infinity" in text for text in texts] == [False, False, False, True]
