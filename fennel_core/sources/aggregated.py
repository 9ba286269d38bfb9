"""Records of Kinesis that hold several: the Kinesis Producer Library (KPL) aggregates small ones.

Such a record begins with four bytes, ends with an MD5 digest, and has a Protobuf message in
between: https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md

The library chooses a shard for all records that it aggregates. If the stream was resharded since it
last looked, some of them belong to another shard, and it puts these again by themselves, so a
reader leaves out what is not in the range of the shard that it reads.
"""

from __future__ import annotations

from hashlib import md5
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from fennel_core.connections.external_kinesis import Shard

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
DAMAGED: Final = (
    "the record begins like one that the Kinesis Producer Library has aggregated, and the rest is "
    "none; what it holds cannot be read"
)
_KIND = descriptor_pb2.FieldDescriptorProto


def user_records(data: bytes, shard: Shard) -> list[bytes] | str:
    """Return the records that a record of `shard` holds, or why it cannot be read."""
    if not data.startswith(MAGIC):
        return [data]
    body, digest = data[len(MAGIC) : -DIGEST_BYTES], data[-DIGEST_BYTES:]
    if md5(body, usedforsecurity=False).digest() != digest:
        return DAMAGED
    found: Any = AGGREGATED()
    try:
        found.ParseFromString(body)
        keys = [_hash(key) for key in found.partition_key_table]
        explicit = [int(key) for key in found.explicit_hash_key_table]
        hashes = [
            explicit[each.explicit_hash_key_index]
            if each.HasField("explicit_hash_key_index")
            else keys[each.partition_key_index]
            for each in found.records
        ]
    except (DecodeError, IndexError, ValueError):
        return DAMAGED
    return [
        each.data
        for at, each in zip(hashes, found.records, strict=True)
        if shard.first_hash <= at <= shard.last_hash
    ]


def _hash(key: str) -> int:
    """Return the hash key by which Kinesis chooses the shard of a partition key."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big")


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="fennel/aggregated.proto", package="fennel.kpl")
    record = file.message_type.add(name="Record")
    record.field.add(
        name="partition_key_index", number=1, label=_KIND.LABEL_REQUIRED, type=_KIND.TYPE_UINT64
    )
    record.field.add(
        name="explicit_hash_key_index", number=2, label=_KIND.LABEL_OPTIONAL, type=_KIND.TYPE_UINT64
    )
    record.field.add(name="data", number=3, label=_KIND.LABEL_REQUIRED, type=_KIND.TYPE_BYTES)
    whole = file.message_type.add(name="AggregatedRecord")
    for number, name in enumerate(("partition_key_table", "explicit_hash_key_table"), start=1):
        whole.field.add(
            name=name, number=number, label=_KIND.LABEL_REPEATED, type=_KIND.TYPE_STRING
        )
    whole.field.add(
        name="records",
        number=3,
        label=_KIND.LABEL_REPEATED,
        type=_KIND.TYPE_MESSAGE,
        type_name=".fennel.kpl.Record",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("fennel.kpl.AggregatedRecord")
    )


AGGREGATED: Final = _message_class()
