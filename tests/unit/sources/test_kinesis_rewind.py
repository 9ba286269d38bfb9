"""A rewind of a Kinesis stream: from where its shards are read, and what its user accepts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from fennel_core.sources.api_errors import (
    RewindNeedsConsent,
    RewindPlaceInvalid,
    SourceNotPaused,
    SourceNotReadable,
)
from fennel_core.sources.controls import MemorySourceControls
from fennel_core.sources.kinesis_orders import StreamState, newest_of, shard_moves
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.rewind import Consent, SourceRewinds
from fennel_core.sources.service import SourceService
from fennel_core.sources.shards import decode_cursor, start_of_all
from fennel_core.vocab.ids import TopicName
from fennel_core.wire.connectors import FromLatest, Kinesis, KinesisStream
from tests.support.ingest_world import WORKSPACE, catalog
from tests.support.kinesis_reading import Reading
from tests.support.kinesis_streams import aggregated
from tests.support.source_world import ORIGIN, RAW, stream_source
from tests.support.stream_positions import positions_of

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
TABLE = KinesisStream(
    Kinesis("shop", "arn:aws:iam::123456789012:role/reader"), ARN, FromLatest(), "json"
)


class Rewinding(Reading):
    """A stream of which a reader has read some, and its orders."""

    def __init__(self) -> None:
        super().__init__()
        self.sources.world.commit("1", main=catalog(stream_source(table=TABLE)))
        self.controls = MemorySourceControls(lambda: datetime.now(UTC), {RAW})
        self.origin = ORIGIN

    async def rewind(self, to: str, *, skips: bool = False, dry_run: bool = False) -> dict:
        def positions(_: object) -> Mapping[TopicName, Mapping[int, SourcePosition]]:
            return {RAW: positions_of(self.sources)}

        def state(table: KinesisStream, _: object) -> StreamState:
            assert table == TABLE
            return StreamState(self.origin, self.stream.describe(), tuple(self.stream.shards()))

        def unused(*_: object) -> object:
            raise AssertionError("not of Kafka")

        sources = SourceService(self.sources.world.directory, self.controls, positions)
        rewinds = SourceRewinds(
            sources, self.controls, self.sources, lambda *_: "", unused, state, 60.0
        )
        consent = Consent(skips_messages=skips)
        return await rewinds.run(WORKSPACE, "kafka/orders", to, consent, dry_run=dry_run)

    async def read(self) -> None:
        positions = positions_of(self.sources)
        reader = self.process()
        writers = {n: self.sources.writer(n, rewinds=p.rewinds) for n, p in positions.items()}
        given = reader._reads.writer
        object.__setattr__(reader._reads, "writer", lambda n: writers.get(n) or given(n))
        await reader.round(1e9)


async def paused() -> Rewinding:
    world = Rewinding()
    await world.controls.pause([RAW], "token 1")
    world.put(2)
    await world.read()
    world.stream.split(0)
    world.pass_hours(1)
    world.put(1)
    return world


async def test_earliest_reads_all_shards_again_in_their_order() -> None:
    world = await paused()
    await world.read()
    done = await world.rewind("earliest")
    assert [move["partition"] for move in done["moves"]] == [0, 1, 2]
    assert (done["read_again"], done["skipped"]) == (3, 0)
    await world.read()
    found = [row["age"] for row in world.sources.world.rows("w.topic.users.1")]
    assert sorted(found) == [1, 1, 2, 2, 3, 3]


async def test_latest_skips_what_was_not_read_and_asks_first() -> None:
    world = await paused()
    with pytest.raises(RewindNeedsConsent, match="does not say how many"):
        await world.rewind("latest")
    world.pass_hours(1)
    done = await world.rewind("latest", skips=True)
    assert (done["read_again"], done["skipped"]) == (0, None)
    world.put(1)
    await world.read()
    assert world.ages() == [1, 2, 4]


async def test_a_time_is_where_every_shard_is_read_from() -> None:
    world = await paused()
    since = datetime.fromtimestamp(world.stream.now_us / 1e6, UTC).isoformat()
    await world.read()
    done = await world.rewind(since, skips=True)
    assert done["dry_run"] is False
    await world.read()
    assert world.ages() == [1, 2, 3, 3]


async def test_a_place_that_the_stream_does_not_have_is_refused() -> None:
    world = await paused()
    for place in ("0:12", "current", "2099-01-01T00:00:00Z"):
        with pytest.raises(RewindPlaceInvalid, match="no place in a Kinesis stream"):
            await world.rewind(place)
    world.origin = "another"
    with pytest.raises(SourceNotReadable, match="created again"):
        await world.rewind("earliest")
    world.origin = ORIGIN
    await world.controls.resume([RAW])
    with pytest.raises(SourceNotPaused):
        await world.rewind("earliest")
    assert (await world.rewind("earliest", dry_run=True))["dry_run"]


async def test_the_newest_rows_are_shown_with_shard_and_sequence_number() -> None:
    world = Rewinding()
    world.put(3)
    world.pass_hours(3)
    sequence = world.stream.put(aggregated([("a", b"1"), ("b", b"2")]))
    found = newest_of(world.stream, 3)
    assert [(row.sequence, row.value) for row in found] == [(sequence, b"1"), (sequence, b"2")]
    world.pass_hours(3)
    assert len(newest_of(world.stream, 4)) == 4


def test_the_second_of_two_rewinds_at_one_moment_counts() -> None:
    world = Rewinding()
    facts, shards = world.stream.describe(), tuple(world.stream.shards())
    state = StreamState(ORIGIN, facts, shards)
    (first,) = shard_moves(state, {}, facts.now_us - 5)
    (second,) = shard_moves(state, {0: first.after}, facts.now_us - 3)
    cursors = [decode_cursor(move.after.cursor) for move in (first, second)]
    start = start_of_all([each for each in cursors if each is not None])
    assert start is not None
    assert start.start_us == facts.now_us - 3
