"""Rows of Protobuf become JSON values, by the schema text of a registry."""

import datetime as dt
import json

import pytest
from google.protobuf.message_factory import GetMessageClass

from fennel_core.connections.schema_registry import (
    RegisteredSchema,
    SchemaReference,
    SchemaRegistryUnusable,
)
from fennel_core.sources import protobuf
from fennel_core.sources.errors import SchemaRefused
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.protobuf import compile_protobuf
from tests.support.schema_registry import MemoryRegistry, framed

TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/duration.proto";

message Other { string x = 1; message Inner { int32 y = 1; } message Second { int32 z = 1; } }
enum Kind { NONE = 0; CARD = 1; }
message Order {
  string user = 1;
  int64 amount = 2;
  optional int32 age = 3;
  Kind kind = 4;
  repeated Kind kinds = 5;
  Other.Inner inner = 6;
  repeated Other.Inner inners = 7;
  map<string, int64> counts = 8;
  map<int32, Other.Inner> byId = 9;
  map<bool, string> flags = 10;
  bytes raw = 11;
  double score = 12;
  oneof choice { string left = 13; Other.Inner right = 14; }
  google.protobuf.Timestamp at = 15;
  google.protobuf.Int64Value wrapped = 16;
  google.protobuf.Struct extra = 17;
  google.protobuf.Duration took = 18;
  Order parent = 19;
  message Empty {}
  Empty nothing = 20;
}
"""
ORDER = b"\x02\x02"  # one index, 1: the second message


@pytest.fixture(scope="module")
def registry() -> MemoryRegistry:
    made = MemoryRegistry()
    made.add(TEXT, "PROTOBUF")
    return made


@pytest.fixture(scope="module")
def decode(registry: MemoryRegistry) -> FramedDecoder:
    return FramedDecoder(registry, compile_protobuf)


@pytest.fixture(scope="module")
def order(registry: MemoryRegistry):
    rows = compile_protobuf(registry.by_id(1), registry)
    descriptor = rows.message((1,))
    assert descriptor is not None
    return GetMessageClass(descriptor)


def test_what_is_not_set_is_null_only_where_presence_is_known(decode, order) -> None:
    found = decode([framed(1, ORDER)])
    assert found.rows == [
        {
            "user": "",
            "amount": 0,
            "age": None,
            "kind": "NONE",
            "kinds": [],
            "inner": None,
            "inners": [],
            "counts": {},
            "byId": {},
            "flags": {},
            "raw": "",
            "score": 0.0,
            "left": None,
            "right": None,
            "at": None,
            "wrapped": None,
            "extra": None,
            "took": None,
            "parent": None,
            "nothing": None,
        }
    ]


def test_each_kind_of_field_has_a_value(decode, order) -> None:
    one = order(
        user="ann",
        amount=2**62,
        age=0,
        kind=1,
        kinds=[1, 7],
        raw=b"\xff",
        counts={"a": 1},
        flags={True: "x"},
        score=float("inf"),
    )
    one.inner.y = 1
    one.inners.add(y=2)
    one.inners.add()
    one.byId[5].y = 6
    one.right.y = 3
    one.at.FromDatetime(dt.datetime(2024, 1, 2, 12, tzinfo=dt.UTC))
    one.wrapped.value = 0
    one.extra.update({"k": [1, None, "t"]})
    one.took.FromTimedelta(dt.timedelta(seconds=1.5))
    one.parent.parent.user = "eve"
    one.nothing.SetInParent()
    plain = order(user="bob")
    found = decode([framed(1, ORDER + each.SerializeToString()) for each in (one, plain)])
    row = found.rows[0]
    assert row["amount"] == 2**62
    assert (row["age"], row["kind"], row["kinds"], row["raw"]) == (0, "CARD", ["CARD", 7], "/w==")
    assert (row["inner"], row["inners"]) == ({"y": 1}, [{"y": 2}, {"y": 0}])
    assert (row["counts"], row["byId"]) == ({"a": 1}, {"5": {"y": 6}})
    assert (row["flags"], row["left"], row["right"]) == ({"true": "x"}, None, {"y": 3})
    assert (row["at"], row["wrapped"], row["took"]) == ("2024-01-02T12:00:00Z", 0, "1.500s")
    assert row["extra"] == {"k": [1.0, None, "t"]}
    assert row["parent"]["parent"]["user"] == "eve"
    assert row["nothing"] == {}
    assert row["score"] == float("inf")
    assert json.loads(found.texts[0]) == row
    assert [row["user"] for row in found.rows] == ["ann", "bob"]


def test_the_index_of_a_message_may_be_short_or_nested(decode) -> None:
    found = decode(
        [
            framed(1, b"\x00" + b"\x0a\x01a"),
            framed(1, b"\x02\x00" + b"\x0a\x01b"),
            framed(1, b"\x04\x00\x02" + b"\x08\x07"),
        ]
    )
    assert found.rows == [{"x": "a"}, {"x": "b"}, {"z": 7}]


@pytest.mark.parametrize(
    "body",
    [b"", b"\x02", b"\x02\x08", b"\x04\x00\x08", b"\x01\x00", b"\x80" * 9, b"\x7e" + b"\0" * 63],
)
def test_a_message_that_names_no_type_is_unreadable(decode, body) -> None:
    found = decode([framed(1, body), framed(1, ORDER)])
    assert list(found.numbers) == [1]
    assert "names no message type" in found.unreadable[0].reason


def test_a_message_that_does_not_fit_is_unreadable_alone(decode) -> None:
    found = decode([framed(1, ORDER + b"\x0a\x05a"), framed(1, ORDER), framed(1, ORDER + b"\xff")])
    assert list(found.numbers) == [1]
    assert found.unreadable[0].numbers == [0, 2]
    assert "does not fit" in found.unreadable[0].reason


def test_a_value_without_a_json_form_makes_its_row_unreadable(decode, order) -> None:
    late, long, nan, fine = order(), order(), order(), order(user="ann")
    late.inners.add()
    late.at.seconds = 10**17
    long.took.seconds = 10**17
    nan.extra.update({"x": float("nan")})
    given = [fine, late, long, fine, nan, fine]
    found = decode([framed(1, ORDER + each.SerializeToString()) for each in given])
    assert list(found.numbers) == [0, 3, 5]
    assert [row["user"] for row in found.rows] == ["ann"] * 3
    assert found.unreadable[0].numbers == [1, 2, 4]
    assert "JSON has no form" in found.unreadable[0].reason


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("package google.protobuf; message Timestamp { string x = 1; }", b"\x0a\x01a"),
        ("message M { optional int32 HasField = 1; }", b"\x08\x01"),
    ],
)
def test_names_that_mean_something_else_break_no_batch(text, body) -> None:
    registry = MemoryRegistry()
    number = registry.add(f'syntax="proto3"; {text}', "PROTOBUF")
    other = registry.add('syntax="proto3"; message P { int32 x = 1; }', "PROTOBUF")
    decode = FramedDecoder(registry, compile_protobuf)
    found = decode([framed(number, b"\0" + body), framed(other, b"\0\x08\x05")])
    assert found.rows[-1] == {"x": 5}
    assert len(found.rows) + sum(len(each.numbers) for each in found.unreadable) == 2


def test_short_messages_do_not_become_many_values() -> None:
    fields = " ".join(f"int32 f{n} = {n};" for n in range(1, 1001))
    registry = MemoryRegistry()
    text = f'syntax="proto3"; message M {{ repeated Wide w = 1; }} message Wide {{ {fields} }}'
    number = registry.add(text, "PROTOBUF")
    many = protobuf.VALUES // 1000
    found = FramedDecoder(registry, compile_protobuf)(
        [framed(number, b"\0" + b"\x0a\0" * count) for count in (1, many, 2)]
    )
    assert list(found.numbers) == [0, 2]
    assert "too many values" in found.unreadable[0].reason


def test_of_names_for_one_number_the_first_counts() -> None:
    registry = MemoryRegistry()
    kinds = "enum Kind { option allow_alias = true; A = 0; B = 1; C = 1; D = 1; }"
    registry.add(f'syntax = "proto3"; message M {{ Kind kind = 1; }} {kinds}', "PROTOBUF")
    found = FramedDecoder(registry, compile_protobuf)([framed(1, b"\0\x08\x01")])
    assert found.rows == [{"kind": "B"}]


def test_the_entry_of_a_map_has_no_index() -> None:
    registry = MemoryRegistry()
    text = "message M { map<string, int32> m = 1; message In { int32 y = 1; } }"
    number = registry.add(f'syntax="proto3"; {text}', "PROTOBUF")
    decode = FramedDecoder(registry, compile_protobuf)
    found = decode([framed(number, b"\x04\0\0\x08\x05"), framed(number, b"\x04\0\x02\x08\x05")])
    assert found.rows == [{"y": 5}]
    assert list(found.numbers) == [0]


FINE = 'syntax="proto3"; message P { int32 x = 1; }'


@pytest.mark.parametrize(
    "program",
    [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; sys.exit('made: No space left on device')",
        "import sys; sys.exit('fennel_registered_schema.proto:1:1: warning: Import is unused.')",
        "x = bytearray(1 << 31)",
    ],
)
def test_a_compiler_that_fails_says_nothing_about_the_schema(monkeypatch, program) -> None:
    registry = MemoryRegistry()
    number = registry.add(FINE, "PROTOBUF")
    decode = FramedDecoder(registry, compile_protobuf)
    limits = protobuf.LIMITED.partition("from grpc_tools")[0]
    with monkeypatch.context() as failing:
        failing.setattr(protobuf, "LIMITED", limits + program)
        with pytest.raises(SchemaRegistryUnusable, match="tried again"):
            decode([framed(number, b"\0\x08\x05")])
    assert decode([framed(number, b"\0\x08\x05")]).rows == [{"x": 5}]


def test_a_process_that_cannot_be_made_says_nothing_about_the_schema(monkeypatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(protobuf.subprocess, "run", run)
    with pytest.raises(SchemaRegistryUnusable, match="BlockingIOError"):
        compile_protobuf(RegisteredSchema(FINE, "PROTOBUF"), MemoryRegistry())


def test_imports_of_other_subjects_are_compiled() -> None:
    registry = MemoryRegistry()
    registry.add('syntax="proto3"; message Point { int32 x = 1; }', "PROTOBUF", "point")
    number = registry.add(
        'syntax="proto3"; import "geo/point.proto"; message At { Point at = 1; }',
        "PROTOBUF",
        references=(SchemaReference("geo/point.proto", "point", 1),),
    )
    found = FramedDecoder(registry, compile_protobuf)([framed(number, b"\x00\x0a\x02\x08\x05")])
    assert found.rows == [{"at": {"x": 5}}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no schema", "protoc: schema:1"),
        ('syntax="proto3"; import "missing.proto";', "protoc: missing.proto"),
        ('syntax="proto3"; import "/etc/passwd";', "protoc"),
        ('syntax="proto3"; import "../../etc/passwd";', "protoc"),
    ],
)
def test_a_schema_that_does_not_compile_is_refused(text, reason) -> None:
    with pytest.raises(SchemaRefused, match=reason) as refused:
        compile_protobuf(RegisteredSchema(text, "PROTOBUF"), MemoryRegistry())
    assert "/tmp" not in str(refused.value)  # noqa: S108 - our folder, which says nothing


@pytest.mark.parametrize("name", ["../x.proto", "/x.proto", "a//b.proto", "x", "a/../b.proto"])
def test_an_import_stays_inside_of_its_folder(name) -> None:
    registry = MemoryRegistry()
    registry.add('syntax="proto3";', "PROTOBUF", "other")
    schema = RegisteredSchema("", "PROTOBUF", (SchemaReference(name, "other", 1),))
    with pytest.raises(SchemaRefused, match="path of a"):
        compile_protobuf(schema, registry)


def test_a_schema_of_another_format_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="AVRO"):
        compile_protobuf(RegisteredSchema("{}"), MemoryRegistry())
