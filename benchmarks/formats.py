"""Rows/s of decoding messages of a topic: JSON, Avro and Protobuf, each beside a plain peer.

The same rows in each format, decoded as a source does (rows, and their text for the raw request).
The peer is the loop that a consumer would have: the library's own decoder per message and no text.
Rounds alternate, and the fastest of each counts, because the machine is shared. `--json FILE`
writes the figures.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import msgspec
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from fennel_core.connections.schema_registry import RegisteredSchema
from fennel_core.sources.avro import compile_avro
from fennel_core.sources.framed import HEADER_BYTES, FramedDecoder
from fennel_core.sources.messages import decode_messages
from fennel_core.sources.protobuf import compile_protobuf

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "city", "type": ["null", "string"]},
        {"name": "items", "type": {"type": "array", "items": "long"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string user = 2; double amount = 3; optional string city = 4;
  repeated int64 items = 5; google.protobuf.Timestamp at = 6;
}
"""
AT_MS = 1_700_000_000_000
HEADER = b"\0\0\0\0\1"


class _OneSchema:
    """A registry with one schema."""

    def __init__(self, text: str, kind: str) -> None:
        self._schema = RegisteredSchema(text, kind)

    def by_id(self, number: int) -> RegisteredSchema:
        del number
        return self._schema

    def version(self, subject: str, version: int) -> RegisteredSchema:
        raise AssertionError((subject, version))


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "user": f"user{n % 997}",
            "amount": n / 7,
            "city": None if n % 3 else "Berlin",
            "items": [n, n + 1, n + 2],
            "at": AT_MS + n,
        }
        for n in range(count)
    ]


def avro_messages(found: Sequence[dict[str, Any]]) -> list[bytes]:
    out = []
    for row in found:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, row)
        out.append(HEADER + stream.getvalue())
    return out


def protobuf_class() -> Any:
    registry = _OneSchema(PROTO, "PROTOBUF")
    message = compile_protobuf(registry.by_id(1), registry).message((0,))
    assert message is not None, "the schema has one message"
    return GetMessageClass(message)


def protobuf_messages(found: Sequence[dict[str, Any]], made: Any) -> list[bytes]:
    out = []
    for row in found:
        at = {"seconds": row["at"] // 1000, "nanos": row["at"] % 1000 * 10**6}
        message = made(**{k: v for k, v in row.items() if v is not None} | {"at": at})
        out.append(HEADER + b"\0" + message.SerializeToString())
    return out


def fastest(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each, in s; rounds alternate."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = rows(given.rows)
    text = [msgspec.json.encode(row) for row in found]
    avro, made = avro_messages(found), protobuf_class()
    proto = protobuf_messages(found, made)
    read_avro = FramedDecoder(_OneSchema(json.dumps(AVRO), "AVRO"), compile_avro)
    read_proto = FramedDecoder(_OneSchema(PROTO, "PROTOBUF"), compile_protobuf)
    schema = fastavro.parse_schema(AVRO)
    for decode, messages in ((decode_messages, text), (read_avro, avro), (read_proto, proto)):
        assert len(decode(messages).rows) == given.rows, "every message is a row"
    seconds = fastest(
        given.rounds,
        {
            "json": lambda: decode_messages(text),
            "json_peer": lambda: [json.loads(each) for each in text],
            "avro": lambda: read_avro(avro),
            "avro_peer": lambda: [
                fastavro.schemaless_reader(io.BytesIO(each[HEADER_BYTES:]), schema, None)
                for each in avro
            ],
            "protobuf": lambda: read_proto(proto),
            "protobuf_peer": lambda: [
                json_format.MessageToDict(made.FromString(each[HEADER_BYTES + 1 :]))
                for each in proto
            ],
        },
    )
    figures: dict[str, float] = {}
    for name in ("json", "avro", "protobuf"):
        own, peer = seconds[name], seconds[f"{name}_peer"]
        figures[f"{name}_rows_per_s"] = round(given.rows / own)
        figures[f"{name}_ratio_peer"] = round(peer / own, 2)
        figures[f"{name}_ratio_json"] = round(seconds["json"] / own, 2)
        print(
            f"{name:9} {given.rows / own:10,.0f} rows/s   {peer / own:5.2f} of its peer"
            f"   {seconds['json'] / own:5.2f} of JSON"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
