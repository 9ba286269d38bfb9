"""What a plan says about requests that do not fit the new version of their dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.plan_entries import DeadLetterForecast, PlanEntry, PlanRecord
from fennel_core.blueprints.plan_text import entry_line
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger import replay_forecast
from fennel_core.ledger.planning import preview
from fennel_core.ledger.replay_forecast import RANGE_MESSAGES, spread_ranges
from fennel_core.ledger.store import HistoryRange
from fennel_core.ledger.topics import OffsetRange, ReadRange
from fennel_core.vocab import raw_batches
from fennel_core.vocab.dtypes import Field, OneOf, Str
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from fennel_core.vocab.position import LENGTH
from fennel_core.vocab.raw_batches import RawRequest
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import EvalCode, Source
from tests.support.compiler_inputs import code, schema, sourced, webhook
from tests.support.ledger_world import SHOP, World


def users(version: int, fields: str, source: Source | None = None) -> Compiled:
    made = sourced("Users", schema("user", fields), version=version, source=source or webhook("e"))
    return compile_datasets([made], 2)


BEFORE = users(1, "city:str")
AFTER = users(2, "city:str age")


def request(rows: Sequence[dict[str, Any]], late: Sequence[int] = ()) -> RawRequest:
    body = {"webhook": "hook", "endpoint": "e", "data": list(rows)}
    return RawRequest(
        json.dumps(body).encode(),
        len(rows),
        frozenset(),
        {DatasetName("Users"): late} if late else {},
        Micros(0),
        bytes(LENGTH),
    )


def row(user: int, **values: Any) -> dict[str, Any]:
    return {"user": user, "city": "Bonn", "at": 1_700_000_000, **values}


class Endpoint:
    """A platform with a dataset over an endpoint, whose messages are written directly."""

    def __init__(self) -> None:
        self.world = World()

    async def open(self) -> None:
        await self.world.open()
        await self.world.commit("first", BEFORE)
        (self.topic,) = (t for t in self.world.topics.partition_counts if ".raw." in t)

    def write(self, *messages: Sequence[RawRequest], part: int = 0) -> None:
        topics, at = self.world.topics, (self.topic, PartitionIndex(part))
        held = topics.values.setdefault(at, {})
        for requests in messages:
            held[Offset(len(held))] = raw_batches.encode(requests)
        topics.log_ends[at] = Offset(len(held))
        topics.messages[self.topic] = topics.messages.get(self.topic, 0) + len(messages)

    async def plan(self, compiled: Compiled = AFTER) -> PlanRecord:
        return await preview(self.world.context(), SHOP, MAIN_BRANCH, compiled, backfill=True)


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """Return an endpoint whose plans have time enough on a busy machine."""
    monkeypatch.setattr(replay_forecast, "SECONDS", 600.0)
    made = Endpoint()
    await made.open()
    return made


def replay_of(record: PlanRecord) -> PlanEntry:
    (entry,) = (e for e in record.entries if e.requests_of is not None)
    return entry


def forecast_of(record: PlanRecord) -> DeadLetterForecast:
    forecast = replay_of(record).dead_letters
    assert forecast is not None
    return forecast


async def test_rows_that_lack_a_new_field_are_counted_before_they_become_dead_letters(
    endpoint: Endpoint,
) -> None:
    endpoint.write([request([row(1), row(2)]), request([row(3, age=30)])], part=0)
    endpoint.write([request([row(4, age=40), row(5)])], part=1)
    record = await endpoint.plan()
    forecast = forecast_of(record)
    assert (forecast.messages_read, forecast.rows_read, forecast.rows_dead) == (2, 5, 3)
    assert forecast.unchecked is None
    assert forecast.reason is not None
    assert "age" in forecast.reason
    assert "dead letters: 3 of 5 rows read, which are all" in entry_line(replay_of(record))
    (notice,) = record.notices
    assert (notice.code, notice.entity) == ("requests-not-typed", "Users")
    assert "`hook/e`" in notice.text
    assert "3 of 5 rows read, which are all; most frequent reason: " in notice.text


async def test_a_plan_which_is_stored_holds_no_value_of_a_row(endpoint: Endpoint) -> None:
    ages = [f"ann{n}@example.com" for n in range(4)]
    endpoint.write([request([row(n, age=age)]) for n, age in enumerate(ages)])
    record = await endpoint.plan()
    stored = json.dumps(asdict(record), default=str)
    assert [value for value in (*ages, "example", "ann") if value in stored] == []
    forecast = forecast_of(record)
    assert forecast.reason == "field `age` of type `int` has values that are not of its type"
    assert forecast.rows_dead == 4


async def test_a_plan_names_the_kind_of_values_that_a_new_type_forbids(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1)]), request([row(2, city="Köln")])])
    city = Field("city", OneOf(Str(), ("Rom",)))
    shape = Schema(schema("user").keys, (city,), "at")
    forbidden = sourced("Users", shape, version=2, source=webhook("e"))
    record = await endpoint.plan(compile_datasets([forbidden], 2))
    reason = forecast_of(record).reason
    assert reason is not None
    assert reason.endswith("has values that its type forbids")
    assert [value for value in ("Bonn", "Köln") if value in str(record)] == []


async def test_rows_that_fit_need_no_notice(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1, age=30)])])
    record = await endpoint.plan()
    assert record.notices == ()
    assert "dead letters: 0 of 1 row read, which are all" in entry_line(replay_of(record))


async def test_late_rows_are_not_admitted_and_not_counted(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1), row(2, age=2)], late=[0])])
    forecast = forecast_of(await endpoint.plan())
    assert (forecast.rows_read, forecast.rows_dead) == (1, 0)


async def test_of_a_long_log_a_part_is_read_and_the_plan_says_which(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_forecast, "MESSAGES", 2 * RANGE_MESSAGES)
    old, new = [request([row(1)])], [request([row(2, age=2)])]
    endpoint.write(*([old] * RANGE_MESSAGES), *([new] * 9 * RANGE_MESSAGES))
    record = await endpoint.plan()
    forecast = forecast_of(record)
    assert (forecast.rows_read, forecast.rows_dead) == (200, 100), "the oldest and the newest"
    text = "dead letters: 100 of 200 rows read, in 200 of at most 1,000 messages"
    assert text in entry_line(replay_of(record))


async def test_requests_that_only_history_holds_are_named_as_not_read(endpoint: Endpoint) -> None:
    endpoint.write(*([[request([row(1, age=30)])]] * 8))
    at = (endpoint.topic, PartitionIndex(0))
    endpoint.world.topics.first_offsets[at] = Offset(6)
    endpoint.world.ledger.state.history[at] = HistoryRange(Offset(2), Offset(6))
    record = await endpoint.plan()
    forecast = forecast_of(record)
    assert (forecast.rows_read, forecast.rows_dead, forecast.only_in_history) == (2, 0, 4)
    text = (
        "0 of 2 rows read, in 2 of at most 8 messages; "
        "of 4 messages that only history holds, no row was read"
    )
    assert text in entry_line(replay_of(record))
    unreadable, notice = record.notices
    assert unreadable.text.endswith("in neither Kafka nor history: those of at most 2 messages")
    assert notice.code == "requests-not-typed"
    assert text in notice.text


async def test_an_endpoint_whose_requests_are_all_in_history_is_named_as_not_checked(
    endpoint: Endpoint,
) -> None:
    endpoint.write([request([row(1)])])
    at = (endpoint.topic, PartitionIndex(0))
    endpoint.world.topics.first_offsets[at] = Offset(1)
    endpoint.world.ledger.state.history[at] = HistoryRange(Offset(0), Offset(1))
    record = await endpoint.plan()
    assert forecast_of(record).unchecked == "only history holds the requests"
    (notice,) = record.notices
    assert "not known, because only history holds the requests" in notice.text


async def test_reading_ends_after_enough_rows(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_forecast, "ROWS", 3)
    monkeypatch.setattr(replay_forecast, "ROWS_TOGETHER", 1)
    endpoint.write(*([[request([row(1), row(2)])]] * 5))
    forecast = forecast_of(await endpoint.plan())
    assert (forecast.messages_read, forecast.rows_read) == (2, 4)


async def test_sources_with_user_code_are_named_as_not_checked(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1)])])
    source = webhook("e", where=EvalCode(code("def f(): ..."), ()))
    record = await endpoint.plan(users(2, "city:str age", source))
    assert forecast_of(record).unchecked == "the source runs user code"
    (notice,) = record.notices
    assert "not known, because the source runs user code" in notice.text


async def test_requests_that_cannot_be_read_do_not_fail_the_plan(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1)])])

    async def unavailable(*_: object, **__: object) -> list[ReadRange]:
        raise SystemUnavailable("Kafka did not respond")

    endpoint.world.topics.read = unavailable
    forecast = forecast_of(await endpoint.plan())
    assert forecast.unchecked == "the requests could not be read in time"


async def test_a_plan_that_is_made_again_soon_reads_nothing_again(endpoint: Endpoint) -> None:
    endpoint.write([request([row(1)])])
    context, reads = endpoint.world.context(), 0
    read = endpoint.world.topics.read

    async def counted(*args: Any, **kwargs: Any) -> Sequence[ReadRange]:
        nonlocal reads
        reads += 1
        return await read(*args, **kwargs)

    endpoint.world.topics.read = counted
    for _ in range(3):
        await preview(context, SHOP, MAIN_BRANCH, AFTER, backfill=True)
    assert reads == 1


def log_range(first: int, end: int, part: int = 0) -> OffsetRange:
    at: TopicPartition = (TopicName("t"), PartitionIndex(part))
    return OffsetRange(at, Offset(first), Offset(end))


def test_a_short_log_is_read_as_a_whole() -> None:
    bounds = [log_range(7, 260), log_range(0, 0, 1), log_range(0, 30, 2)]
    found = sorted(spread_ranges(bounds, 5_000), key=lambda r: (r.partition, r.first))
    assert found == [
        log_range(7, 107),
        log_range(107, 207),
        log_range(207, 260),
        log_range(0, 30, 2),
    ]


def test_ranges_of_a_long_log_are_spread_and_begin_far_apart() -> None:
    found = spread_ranges([log_range(0, 100_000)], 4 * RANGE_MESSAGES)
    assert [r.first for r in found] == [0, 66_600, 33_300, 99_900]


def test_nothing_is_read_of_an_empty_log() -> None:
    assert spread_ranges([log_range(5, 5)], 5_000) == []
    assert spread_ranges([], 5_000) == []
