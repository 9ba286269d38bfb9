"""A Kinesis and an STS over HTTP: moto, with the corrections without which it cannot reshard.

In moto, records of a shard that is split or merged move to its children or are put again, records
are put to closed shards, and closed shards have no end. In AWS they stay, go to the open shard, and
the iterator behind the last record is missing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto.kinesis.models import KinesisBackend, Stream
from moto.kinesis.utils import decompose_shard_iterator
from moto.server import ThreadedMotoServer

from fennel_core.settings.model import Settings

REGION, ACCOUNT = "eu-west-1", "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/kinesis-reader"
KEY = "test"
"""Of the user that assumes roles; moto takes any."""


@dataclass(frozen=True)
class KinesisServer:
    """Where it is, and what AWS is told to do there."""

    url: str

    def client(self, service: str = "kinesis") -> Any:
        return boto3.client(  # type: ignore[call-overload]  # a name, not a literal
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
        )

    def settings(self, **changes: Any) -> Settings:
        given = {
            "kinesis_endpoint": self.url,
            "sts_endpoint": self.url,
            "aws_access_key": KEY,
            "aws_secret_key": KEY,
            "source_roles": (ROLE,),
        }
        return Settings(**(given | changes))

    def create(self, name: str, shards: int = 1) -> str:
        """Create a stream; return its ARN."""
        self.client().create_stream(StreamName=name, ShardCount=shards)
        return f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"


@pytest.fixture(scope="session")
def kinesis_server() -> Iterator[KinesisServer]:
    with pytest.MonkeyPatch.context() as patch:
        _correct(patch)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield KinesisServer(f"http://{host}:{port}")
        server.stop()


def _correct(patch: pytest.MonkeyPatch) -> None:
    split, merge, get = Stream.split_shard, Stream.merge_shards, KinesisBackend.get_records

    def keeping(self: Stream, names: tuple[str, ...], reshard: Any) -> None:
        kept = {name: self.shards[name].records for name in names}
        for name in names:
            self.shards[name].records = OrderedDict()
        reshard()
        for name, records in kept.items():
            self.shards[name].records = records

    def split_shard(self: Stream, name: str, new_starting_hash_key: str) -> None:
        keeping(self, (name,), lambda: split(self, name, new_starting_hash_key))

    def merge_shards(self: Stream, one: str, other: str) -> None:
        keeping(self, (one, other), lambda: merge(self, one, other))

    def shard_for_key(self: Stream, partition_key: str, explicit_hash_key: str) -> Any:
        found = {name: shard for name, shard in self.shards.items() if shard.is_open}
        mine = Stream.__new__(Stream)
        mine.shards = found
        return choose(mine, partition_key, explicit_hash_key)

    def get_records(self: KinesisBackend, arn: str, iterator: str, limit: int | None) -> Any:
        following, records, behind_ms = get(self, arn, iterator, limit)
        _, name, last = decompose_shard_iterator(following)
        shard = self.describe_stream(stream_arn=arn, stream_name=None).shards[name]
        read = records[-1].sequence_number if records else int(last)
        if not shard.is_open and read >= shard.get_max_sequence_number():
            following = None
        return following, records, behind_ms

    choose = Stream.get_shard_for_key
    patch.setattr(Stream, "split_shard", split_shard)
    patch.setattr(Stream, "merge_shards", merge_shards)
    patch.setattr(Stream, "get_shard_for_key", shard_for_key)
    patch.setattr(KinesisBackend, "get_records", get_records)
