"""A Kinesis stream: what its reader relies on, in memory and over HTTP; and what AWS refuses."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from botocore.exceptions import ClientError

from fennel_core.connections.external_kinesis import (
    ExternalKinesis,
    ExternalStreamUnusable,
    FromOldest,
    FromSequence,
    FromTime,
    IteratorExpired,
    Shard,
    ShardStore,
    StreamThrottled,
    opened,
    shard_id,
)
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.kinesis import origin_of, stream_start
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.shard_reader import StreamReader, StreamReads
from fennel_core.vocab.ids import Micros
from fennel_core.wire.connectors import FromTrimHorizon, Kinesis
from tests.support.ingest_world import WORKSPACE, catalog
from tests.support.kinesis_server import KEY, ROLE, KinesisServer, kinesis_server
from tests.support.kinesis_streams import MemoryKinesis
from tests.support.source_world import SourceWorld, message, stream_source

__all__ = ["kinesis_server"]
MIDDLE = 2**127


@dataclass
class Stream:
    """A stream and what is done to it. `put`: data and partition key."""

    store: ShardStore
    put: Callable[[bytes, str], None]
    split: Callable[[int], None]
    merge: Callable[[int, int], None]


def connector(role: str = ROLE) -> Kinesis:
    return Kinesis("shop", role)


def stream_over_http(server: KinesisServer) -> ExternalKinesis:
    arn = server.create(f"orders-{uuid.uuid4().hex[:8]}")
    return opened(connector(), arn, server.settings(), WORKSPACE)


@pytest.fixture
def external(kinesis_server: KinesisServer) -> ExternalKinesis:
    return stream_over_http(kinesis_server)


def over_http(server: KinesisServer, external: ExternalKinesis) -> Stream:
    client, name = server.client(), external.name
    store = external.open()

    def split(number: int) -> None:
        shard = next(each for each in store.shards() if each.number == number)
        client.split_shard(
            StreamName=name,
            ShardToSplit=shard_id(number),
            NewStartingHashKey=str((shard.first_hash + shard.last_hash + 1) // 2),
        )

    return Stream(
        store,
        lambda data, key: client.put_record(StreamName=name, Data=data, PartitionKey=key),
        split,
        lambda one, other: client.merge_shards(
            StreamName=name, ShardToMerge=shard_id(one), AdjacentShardToMerge=shard_id(other)
        ),
    )


@pytest.fixture(params=["memory", "http"])
def stream(request: pytest.FixtureRequest) -> Stream:
    if request.param == "memory":
        kinesis = MemoryKinesis()
        return Stream(kinesis, kinesis.put, kinesis.split, kinesis.merge)  # type: ignore[arg-type]  # `put` returns
    server = request.getfixturevalue("kinesis_server")
    return over_http(server, stream_over_http(server))


def test_a_new_stream_has_one_open_shard(stream: Stream) -> None:
    (shard,) = stream.store.shards()
    assert (shard.number, shard.parents, shard.first_hash) == (0, (), 0)
    facts = stream.store.describe()
    assert facts.retention_us == 24 * 3_600_000_000
    assert facts.created_us <= facts.now_us + 1_000_000


def test_records_come_in_order_from_the_place_that_was_asked_for(stream: Stream) -> None:
    store = stream.store
    for number in range(5):
        stream.put(b"%d" % number, "a")
    found = store.records(store.iterator(0, FromOldest()), 3)
    assert [each.data for each in found.records] == [b"0", b"1", b"2"]
    assert found.following is not None
    rest = store.records(found.following, 10)
    assert [each.data for each in rest.records] == [b"3", b"4"]
    assert (rest.behind_ms, rest.following is None) == (0, False)
    second = found.records[1]
    at = store.iterator(0, FromSequence(second.sequence, behind=False))
    assert store.records(at, 1).records[0].data == b"1"
    behind = store.iterator(0, FromSequence(second.sequence, behind=True))
    assert store.records(behind, 1).records[0].data == b"2"
    since = store.iterator(0, FromTime(second.arrived_us))
    assert b"1" in [each.data for each in store.records(since, 10).records]
    later = store.iterator(0, FromTime(Micros(rest.records[-1].arrived_us + 1_000_000)))
    assert store.records(later, 10).records == []


def test_a_shard_that_was_split_or_merged_ends_behind_its_records(stream: Stream) -> None:
    store = stream.store
    stream.put(b"first", "a")
    stream.split(0)
    stream.put(b"second", "a")
    parent = store.records(store.iterator(0, FromOldest()), 10)
    assert [each.data for each in parent.records] == [b"first"]
    assert parent.following is None
    assert store.shards()[1:] == [
        Shard(1, (0,), 0, MIDDLE - 1),
        Shard(2, (0,), MIDDLE, 2**128 - 1),
    ]
    stream.merge(1, 2)
    assert store.shards()[3] == Shard(3, (1, 2))
    children = [store.records(store.iterator(n, FromOldest()), 10) for n in (1, 2)]
    assert [each.data for child in children for each in child.records] == [b"second"]
    assert [child.following for child in children] == [None, None]
    merged = store.records(store.iterator(3, FromOldest()), 10)
    assert (merged.records, merged.following is None) == ([], False)


def reader_over(sources: SourceWorld, external: ExternalKinesis, origin: str) -> StreamReader:
    store, writers = external.open(), {}

    def writer(number: int):
        return writers.setdefault(number, sources.writer(number, origin=origin))

    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    first = stream_start({}, FromTrimHorizon(), store.describe())
    reads = StreamReads("orders", origin, first, writer, lambda facts: origin_of(external, facts))
    places: dict[int, StreamPlace] = {}
    clock = itertools.count().__next__
    return StreamReader(store, reads, places, clock=clock, sleep=no_pause)


async def test_records_enter_once_and_in_order_over_http(
    kinesis_server: KinesisServer, external: ExternalKinesis
) -> None:
    stream, sources = over_http(kinesis_server, external), SourceWorld()
    sources.world.commit(main=catalog(stream_source()))
    reader = reader_over(sources, external, origin_of(external, stream.store.describe()))
    keys = itertools.cycle("abcdef")
    rows = itertools.count()

    def put(count: int) -> None:
        for key, number in zip(keys, itertools.islice(rows, count), strict=False):
            stream.put(message(user=key, age=number, at=1_700_000_000), key)

    put(20)
    await reader.round(2)
    stream.split(0)
    put(20)
    await reader.round(1e9)
    stream.split(1)
    put(11)
    stream.merge(3, 4)
    put(9)
    ends = await reader.round(1e9)
    assert {end.shard for end in ends if end.iterator} == {2, 5}
    found = sources.world.rows("w.topic.users.1")
    assert sorted(row["age"] for row in found) == list(range(60))
    for key in "abcdef":
        ages = [row["age"] for row in found if row["user"] == key]
        assert ages == sorted(ages)
    again = await reader.round(1e9)
    assert [(end.shard, end.behind_ms) for end in again] == [(2, 0), (5, 0)]
    await sources.world.close()


async def test_a_stream_that_was_created_again_is_refused(
    kinesis_server: KinesisServer, external: ExternalKinesis
) -> None:
    stream, sources = over_http(kinesis_server, external), SourceWorld()
    sources.world.commit(main=catalog(stream_source()))
    reader = reader_over(sources, external, origin_of(external, stream.store.describe()))
    stream.put(message(user="a", age=1, at=1_700_000_000), "a")
    await reader.round(1e9)
    kinesis_server.client().delete_stream(StreamName=external.name)
    with pytest.raises(ExternalStreamUnusable, match="does not exist"):
        await reader.round(1e9)
    kinesis_server.create(external.name)
    stream.put(message(user="a", age=2, at=1_700_000_000), "a")
    with pytest.raises(StreamReplaced, match="created again"):
        await reader.round(1e9)
    assert [row["age"] for row in sources.world.rows("w.topic.users.1")] == [1]
    await sources.world.close()


def test_a_stream_is_read_with_the_role_of_its_connector(
    external: ExternalKinesis,
) -> None:
    external.check()
    client = external._client()
    assert client._request_signer._credentials.method == "assume-role"
    client.list_shards(StreamARN=external.arn)
    used = client._request_signer._credentials.get_frozen_credentials()
    assert used.access_key != KEY
    assert used.token


def test_what_cannot_be_reached_is_said(
    kinesis_server: KinesisServer, external: ExternalKinesis
) -> None:
    other = replace(external, arn=external.arn + "-none")
    with pytest.raises(ExternalStreamUnusable, match="does not exist"):
        other.check()
    with pytest.raises(ExternalStreamUnusable, match="AWS cannot be used"):
        replace(external, sts_endpoint="http://127.0.0.1:1").check()
    with pytest.raises(ExternalStreamUnusable, match="AWS cannot be used"):
        replace(external, kinesis_endpoint="http://127.0.0.1:1").check()


@pytest.mark.parametrize(
    ("operation", "code", "error", "text"),
    [
        ("GetRecords", "ProvisionedThroughputExceededException", StreamThrottled, "for now"),
        ("GetRecords", "ExpiredIteratorException", IteratorExpired, "ExpiredIterator"),
        ("GetRecords", "AccessDeniedException", ExternalStreamUnusable, "does not allow reading"),
        ("AssumeRole", "AccessDenied", ExternalStreamUnusable, "external id `fennel-w`"),
    ],
)
def test_refusals_say_what_to_change(
    operation: str, code: str, error: type[Exception], text: str
) -> None:
    server = KinesisServer("http://127.0.0.1:1")
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    external = opened(connector(), arn, server.settings(), WORKSPACE)
    with pytest.raises(error, match=text), external.checked("reading"):
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, operation)
