"""A rewind moves positions when its user accepts what that does, and no reader undoes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.connections.external_kafka import ExternalKafka, StreamBounds
from fennel_core.connections.external_postgres import CursorKind
from fennel_core.sources import rewind as rewind_module
from fennel_core.sources.api_errors import (
    RewindEndedEarly,
    RewindNeedsConsent,
    RewindPlaceInvalid,
    SourceIsSent,
    SourceNotPaused,
    SourceNotReadable,
)
from fennel_core.sources.controls import MemorySourceControls
from fennel_core.sources.errors import SourceRewound
from fennel_core.sources.kinesis_orders import StreamState
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.rewind import Consent, SourceRewinds
from fennel_core.sources.service import SourceService
from fennel_core.sources.table_reads import (
    ReadLevel,
    TableCursor,
    cursor_of,
    encode,
    taken,
)
from fennel_core.vocab.ids import Identity, TopicName
from fennel_core.wire.connectors import S3, Login, Postgres, PostgresTable, S3Table
from tests.support.ingest_world import KEYLESS, WORKSPACE, binding, catalog
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    ORIGIN,
    RAW,
    SourceWorld,
    batch,
    message,
    partition,
    row_batch,
    stream_source,
)

AT = 1_700_000_000_000
NAME = "kafka/orders"
BOUNDS = StreamBounds(ORIGIN, {0: 0}, {0: 9}, {0: 2})
SALES = replace(
    stream_source("Sales"),
    identity=Identity("sales"),
    schema=KEYLESS,
    topic=TopicName("w.topic.sales.1"),
)
BOTH = Consent(duplicates_rows=True, skips_messages=True)


def messages(*numbers: int) -> list[bytes]:
    return [message(user=f"u{n}", age=n, amount=1.5, at=AT + n) for n in numbers]


class Rewinding:
    """A stream of six messages, of which a reader has read those that a test says."""

    def __init__(self, *bindings: SourceBinding) -> None:
        self.sources = SourceWorld()
        found = catalog(*(bindings or (stream_source(),)), binding())
        self.sources.world.commit("1", main=found)
        self.controls = MemorySourceControls(lambda: datetime.now(UTC), {RAW})
        self.bounds = BOUNDS

    async def position(self) -> SourcePosition | None:
        return (await self.sources.memory.open(partition())).position

    async def rewind(
        self, to: str, consent: Consent = BOTH, *, dry_run: bool = False, name: str = NAME
    ) -> dict:
        position = await self.position()

        def read(_: object) -> Mapping[TopicName, Mapping[int, SourcePosition]]:
            return {RAW: {} if position is None else {0: position}}

        def bounds(_: ExternalKafka, topic: str, time_ms: int | None) -> StreamBounds:
            assert topic == "orders"
            return self.bounds

        def no_stream(*_: object) -> StreamState:
            raise AssertionError("not of Kinesis")

        sources = SourceService(self.sources.world.directory, self.controls, read)
        rewinds = SourceRewinds(
            sources, self.controls, self.sources, lambda *_: "", bounds, no_stream, 60.0
        )
        return await rewinds.run(WORKSPACE, name, to, consent, dry_run=dry_run)

    async def paused(self) -> Rewinding:
        await self.controls.pause([RAW], "token 1")
        return self


async def test_rows_of_a_keyed_dataset_are_read_again_from_the_place() -> None:
    world = await Rewinding().paused()
    await world.sources.writer().write(batch(messages(0, 1, 2, 3)))
    before = await world.position()
    assert before is not None
    assert before.datasets[Identity("users")].latest_us is not None
    done = await world.rewind("0:1", Consent())
    assert done["moves"] == [{"partition": 0, "from": 4, "to": 1}]
    assert (done["read_again"], done["skipped"], done["dry_run"]) == (3, 0, False)
    position = await world.position()
    assert position is not None
    assert (position.next, position.rewinds) == (1, 1)
    assert position.datasets[Identity("users")].accepted == 4
    assert position.datasets[Identity("users")].latest_us is None
    again = world.sources.writer(rewinds=1)
    await again.write(batch(messages(1, 2, 3), 1))
    assert [row["user"] for row in world.sources.read()] == [
        *("u0", "u1", "u2", "u3"),
        *("u1", "u2", "u3"),
    ]


async def test_a_reader_that_began_before_the_rewind_writes_nothing() -> None:
    world = await Rewinding().paused()
    reader = world.sources.writer()
    await reader.write(batch(messages(0, 1, 2)))
    await world.rewind("earliest")
    with pytest.raises(SourceRewound, match="rewound to 0"):
        await reader.write(batch(messages(3), 3))
    assert len(world.sources.read()) == 3


async def test_what_a_rewind_does_is_refused_with_numbers_unless_it_is_accepted() -> None:
    world = await Rewinding(stream_source(), SALES).paused()
    await world.sources.writer().write(batch(messages(0, 1, 2, 3)))
    with pytest.raises(RewindNeedsConsent, match=r"4 messages .* Sales has no keys"):
        await world.rewind("earliest", Consent())
    with pytest.raises(RewindNeedsConsent, match=r"5 messages .* would never be read"):
        await world.rewind("latest", Consent(duplicates_rows=True))
    dry = await world.rewind("earliest", Consent(), dry_run=True)
    assert (dry["read_again"], dry["dry_run"]) == (4, True)
    position = await world.position()
    assert position is not None
    assert (position.next, position.rewinds) == (4, 0)
    assert (await world.rewind("latest"))["skipped"] == 5


async def test_a_time_and_places_of_the_stream_are_understood() -> None:
    world = await Rewinding().paused()
    await world.sources.writer().write(batch(messages(0, 1, 2, 3)))
    assert (await world.rewind("2026-01-01T00:00:00Z", dry_run=True))["moves"][0]["to"] == 2
    assert (await world.rewind("0:4"))["moves"] == []
    for place in ("yesterday", "0:10", "1:0", "0"):
        with pytest.raises(RewindPlaceInvalid):
            await world.rewind(place)


async def test_only_a_paused_stream_that_is_the_same_is_rewound() -> None:
    world = Rewinding()
    await world.sources.writer().write(batch(messages(0)))
    with pytest.raises(SourceNotPaused):
        await world.rewind("earliest")
    await world.paused()
    with pytest.raises(SourceIsSent):
        await world.rewind("earliest", name="hook/e")
    world.bounds = replace(BOUNDS, origin="cluster/other")
    with pytest.raises(SourceNotReadable, match="cluster/other"):
        await world.rewind("earliest")


async def test_a_rewind_begins_a_generation_before_and_after_its_moves() -> None:
    world = await Rewinding().paused()
    await world.sources.writer().write(batch(messages(0, 1)))
    await world.rewind("earliest", dry_run=True)
    assert await world.controls.generations() == {}
    seen = []

    def fault() -> None:
        seen.append(dict(world.controls._generations))

    world.sources.fault = fault
    await world.rewind("earliest")
    assert (seen, await world.controls.generations()) == ([{RAW: 1}], {RAW: 2})
    await world.rewind("earliest")
    assert await world.controls.generations() == {RAW: 4}, "a repeated order ends the readers, too"


async def test_a_stream_that_is_resumed_while_it_is_rewound_is_reported() -> None:
    world = await Rewinding().paused()
    await world.sources.writer().write(batch(messages(0, 1)))
    world.sources.fault = lambda: world.controls._pauses.clear()
    with pytest.raises(RewindEndedEarly, match=r"resumed while .* repeat the order"):
        await world.rewind("earliest")


async def test_a_rewind_that_ends_early_says_what_is_moved() -> None:
    world = await Rewinding().paused()
    await world.sources.writer().write(batch(messages(0, 1)))
    world.sources.fault = lambda: LOST_BEFORE
    with pytest.raises(RewindEndedEarly, match=r"0 of 1 partitions .* repeat the order"):
        await world.rewind("earliest")


async def test_files_are_read_again_from_the_earliest_one_only() -> None:
    lake = S3Table(S3("lake", None, Login(None, None)), "b", "in/", "", "json", "", (), False, None)
    world = await Rewinding(stream_source(table=lake)).paused()
    name = "kafka/orders"
    await world.sources.writer().write_rows(row_batch(0, 3))
    for place in ("latest", "0:1", "2026-01-01T00:00:00Z"):
        with pytest.raises(RewindPlaceInvalid, match=r"S3 files `b/in/`.* from `earliest` only"):
            await world.rewind(place, name=name)
    dry = await world.rewind("earliest", name=name, dry_run=True)
    assert (dry["read_again"], await world.controls.generations()) == (3, {})
    await world.rewind("earliest", Consent(), name=name)
    position = await world.position()
    assert position is not None
    assert (position.next, position.cursor, position.rewinds) == (3, "", 1)
    assert await world.controls.generations() == {RAW: 2}, "readers begin again"
    assert (await world.rewind("earliest", name=name))["moves"] == []
    assert await world.controls.generations() == {RAW: 4}, "a repeated order ends the readers, too"
    await world.controls.resume([RAW])
    with pytest.raises(SourceNotPaused):
        await world.rewind("earliest", name=name)


async def test_a_table_is_read_on_with_what_is_there_taken_for_read() -> None:
    login = Login(None, None)
    table = PostgresTable(Postgres("shop", "db", 5432, "shop", None, login), "orders", None)
    world = await Rewinding(stream_source(table=table)).paused()
    name = "kafka/orders"
    assert (await world.rewind("current", name=name))["moves"] == [], "it was never read"
    level = ReadLevel(7, None, 100)
    cursor = TableCursor((level,), {"at": "bigint"}, 4, "at", CursorKind.INTEGER)
    end = StreamPlace(3, encode(cursor).decode())
    await world.sources.writer().write_rows(row_batch(0, 3, end=end))
    with pytest.raises(RewindPlaceInvalid, match=r"from `earliest`, or on from `current`, only"):
        await world.rewind("latest", name=name)
    with pytest.raises(RewindNeedsConsent, match=r"would never be read .* `skips_messages`"):
        await world.rewind("current", Consent(duplicates_rows=True), name=name)
    done = await world.rewind("current", Consent(skips_messages=True), name=name)
    assert (done["moves"], done["read_again"]) == ([{"partition": 0, "from": 3, "to": 3}], 0)
    position = await world.position()
    assert position is not None
    assert (position.next, position.rewinds) == (3, 1)
    assert cursor_of(position.cursor) == taken(cursor)


async def test_a_reader_of_files_that_has_not_seen_the_pause_does_not_end_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewind_module, "RESTART_PAUSE_S", 0)
    lake = S3Table(S3("lake", None, Login(None, None)), "b", "in/", "", "json", "", (), False, None)
    world = await Rewinding(stream_source(table=lake)).paused()
    await world.sources.writer().write_rows(row_batch(0, 3))
    faults = [LOST_BEFORE, LOST_AFTER]
    world.sources.fault = lambda: faults.pop(0) if faults else None
    await world.rewind("earliest")
    position = await world.position()
    assert position is not None
    assert (position.next, position.cursor, position.rewinds) == (3, "", 1)
    await world.sources.writer(rewinds=1).write_rows(
        replace(row_batch(3, 1), after=StreamPlace(3, ""))
    )
    world.sources.fault = lambda: LOST_BEFORE
    with pytest.raises(RewindEndedEarly, match="repeat the order"):
        await world.rewind("earliest")
