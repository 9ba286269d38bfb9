"""What a reader of a Kinesis stream does at its edges: the start, losses, aggregated records."""

from __future__ import annotations

from fennel_core.connections.external_kinesis import Shard, StreamThrottled
from fennel_core.sources.aggregated import DAMAGED, MAGIC
from fennel_core.sources.shards import decode_cursor
from fennel_core.vocab.ids import Micros
from fennel_core.wire.connectors import (
    FromLatest,
    FromTimestamp,
)
from tests.support.kinesis_reading import HOUR_US, Reading
from tests.support.kinesis_streams import EXPIRED, THROTTLED, aggregated, hash_of


async def test_latest_is_where_reading_began_whatever_is_killed() -> None:
    reading = Reading(FromLatest())
    reading.put(2)
    reading.pass_hours(0.1)
    await reading.process().round(1)
    reading.put(3)
    reading.stream.split(0)
    reading.pass_hours(0.1)
    reading.put(4)
    await reading.process().round(1e9)
    assert reading.ages() == list(range(3, 10))


async def test_a_time_is_where_reading_begins_in_every_shard() -> None:
    reading = Reading()
    reading.put(2)
    reading.pass_hours(1)
    since = reading.stream.now_us
    reading.put(2)
    reading.stream.split(0)
    reading.put(2)
    reading._first = FromTimestamp(Micros(since))
    await reading.process().round(1e9)
    assert reading.ages() == [3, 4, 5, 6]
    assert reading.letters() == []


async def test_a_position_counts_more_than_where_reading_should_begin() -> None:
    reading = Reading()
    reading.put(2)
    await reading.process().round(1)
    reading.put(2)
    reading._first = FromLatest()
    reading.pass_hours(1)
    await reading.process().round(1)
    assert reading.ages() == [1, 2, 3, 4]


async def test_records_that_were_deleted_before_they_were_read_are_reported_once() -> None:
    reading = Reading()
    reading.put(2)
    await reading.process().round(1)
    reading.put(3)
    reading.pass_hours(25)
    reading.put(1)
    (end,) = await reading.process().round(1)
    assert end.lost
    await reading.process().round(1)
    assert reading.ages() == [1, 2, 6]
    (letter,) = reading.letters()
    assert "shardId-000000000000" in letter
    assert "from 2023-11-14T22:13:20Z to 2023-11-15T23:13:20Z are lost, if there were any" in letter


async def test_nothing_is_reported_where_the_last_record_is_still_there() -> None:
    reading = Reading()
    reading.put(2)
    await reading.process().round(1)
    reading.put(3)
    reading.stream.now_us += 25 * HOUR_US  # Kinesis deletes when it likes
    await reading.process().round(1)
    assert (reading.ages(), reading.letters()) == ([1, 2, 3, 4, 5], [])


async def test_an_idle_shard_loses_nothing_as_long_as_it_is_looked_at() -> None:
    reading = Reading()
    reading.put(2)
    reader = reading.process()
    for _ in range(30):
        await reader.round(1)
        reading.pass_hours(2)
    reading.put(1)
    await reading.process().round(1)
    assert (reading.ages(), reading.letters()) == ([1, 2, 3], [])


async def test_a_shard_that_is_gone_with_records_is_reported_and_its_children_are_read() -> None:
    reading = Reading()
    reading.put(2)
    await reading.process().round(1)
    reading.put(1)
    reading.stream.split(0)
    reading.pass_hours(30)
    reading.put(1)
    await reading.process().round(1e9)
    await reading.process().round(1e9)
    assert reading.ages() == [1, 2, 4]
    assert any("the shard ended before they were read" in each for each in reading.letters())


async def test_what_an_aggregated_record_holds_are_rows_and_damaged_ones_are_dead_letters() -> None:
    reading = Reading()
    reading.stream.put(aggregated([("a", reading.row()), ("b", reading.row())]))
    sequence = reading.stream.put(MAGIC + b"damaged")
    reading.stream.put(aggregated([("a", reading.row()), ("b", b"no json")]))
    await reading.process().round(1)
    assert reading.ages() == [1, 2, 3]
    damaged, text = sorted(reading.letters(), key=lambda each: DAMAGED not in each)
    assert damaged == f"Kinesis stream `orders`, shardId-000000000000 at {sequence}: {DAMAGED}"
    assert "the message is not JSON" in text


async def test_a_throttled_shard_is_asked_later_and_later_and_then_left() -> None:
    reading = Reading()
    reading.put(1)
    reading.stream.fault = lambda: THROTTLED
    (end,) = await reading.process().round(10)
    assert end.throttled
    assert reading.slept == [1, 2, 4]
    reading.stream.fault = lambda: None
    await reading.process().round(10)
    assert reading.ages() == [1]
    assert THROTTLED.error is StreamThrottled


async def test_an_empty_closed_shard_is_done() -> None:
    reading = Reading()
    reading.stream.split(0)
    reader = reading.process()
    ends = await reader.round(1e9)
    assert [end.shard for end in ends] == [0, 1, 2]
    cursor = decode_cursor(reader.places[0].cursor)
    assert cursor is not None
    assert cursor.done


async def test_an_iterator_that_expires_is_replaced_within_the_round() -> None:
    reading = Reading()
    reading.put(4)
    reading.stream.limit, answers = 1, iter([None, None, EXPIRED])
    reading.stream.fault = lambda: next(answers, None)
    await reading.process().round(1e9)
    assert reading.ages() == [1, 2, 3, 4]
    assert reading.letters() == []


async def test_a_record_that_holds_nothing_for_the_shard_is_passed() -> None:
    reading = Reading()
    reading.stream.split(0)
    low, high = (reading.stream.stores[number].shard for number in (1, 2))
    keys = [str(n) for n in range(100)]
    own = next(key for key in keys if low.first_hash <= hash_of(key) <= low.last_hash)
    other = next(key for key in keys if high.first_hash <= hash_of(key) <= high.last_hash)
    reading.stream.put(reading.row(), own)
    sequence = reading.stream.put(aggregated([(other, reading.row())]), own)
    reader = reading.process()
    await reader.round(1e9)
    assert reading.ages() == [1]
    cursor = decode_cursor(reader.places[1].cursor)
    assert cursor is not None
    assert (cursor.sequence, cursor.passed) == (sequence, -1)


async def test_a_round_of_some_rows_ends_behind_them_and_the_next_goes_on() -> None:
    reading = Reading()
    reading.put(2)
    reading.stream.split(0)
    reading.put(4)
    process = reading.process()
    ages = []
    for _ in range(6):
        await process.round(1e9, 1)
        ages.append(len(reading.ages()))
    assert ages[0] == 1
    assert ages[-1] == 6
    assert reading.ages() == [1, 2, 3, 4, 5, 6]


async def test_children_for_which_there_was_no_time_are_known_to_be_unread() -> None:
    reading = Reading()
    reading.put(2)
    reading.stream.split(0)
    reading.put(2)
    process = reading.process()
    ends = await process.round(1e9, 2)
    assert [(end.shard, end.iterator) for end in ends] == [(0, None), (1, None), (2, None)]
    assert reading.ages() == [1, 2]


async def test_a_shard_that_is_gone_is_part_of_what_a_round_returns() -> None:
    reading = Reading()
    reading.put(2)
    await reading.process().round(1)
    reading.stream.split(0)
    reading.pass_hours(30)
    gone, *_ = await reading.process().round(1e9)
    cursor = decode_cursor(gone.place.cursor)
    assert cursor is not None
    assert (gone.shard, gone.lost, cursor.done) == (0, True, True)


async def test_a_round_asks_for_no_more_records_than_it_may_read() -> None:
    reading = Reading()
    reading.put(30)
    process = reading.process()
    for count in range(1, 4):
        await process.round(1e9, 5)
        assert (len(reading.ages()), process.rows) == (5 * count, 5)


async def test_idle_shards_do_not_take_the_time_of_one_that_has_records() -> None:
    reading = Reading()
    for number in (0, 1, 2, 3, 4, 5, 6):
        reading.stream.split(number)
    await reading.process().round(1e9)
    reading.pass_hours(0.1)
    busy = reading.stream.open()[-1]
    key = next(k for k in map(str, range(99)) if in_shard(reading.stream.stores[busy].shard, k))
    unread: set[int] = set()
    for age in range(1, 4):
        reading.stream.put(reading.row(), key)
        for _ in range(2):  # as many as it takes to ask all: four at once, and there are eight
            ends = await reading.process(unread).round(0)
            unread = {end.shard for end in ends if end.iterator is None}
        assert reading.ages() == list(range(1, age + 1))


def in_shard(shard: Shard, key: str) -> bool:
    return shard.first_hash <= hash_of(key) <= shard.last_hash
