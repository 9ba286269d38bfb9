"""Law of lateness: the accepted rows are those that a reader of the responses alone would accept,
one request after the other.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import POS
from tests.support.ingest_world import (
    DAY_US,
    MAIN,
    WORKSPACE,
    World,
    binding,
    body,
    catalog,
    source,
)

START_DAY = 20_000
NOW_US = (START_DAY + 1000) * DAY_US
"""Later than every row: the clock has its own test."""
DISORDER_DAYS = 3


def oracle(requests: list[list[int]]) -> list[list[int]]:
    """Keep the days that are not older than the newest accepted day of all accepted requests but
    the last, less the disorder.
    """
    accepted: list[list[int]] = []
    kept = []
    for days in requests:
        before = [d for request in accepted[:-1] for d in request]
        fine = [d for d in days if not before or d >= max(before) - DISORDER_DAYS]
        kept.append(fine)
        if fine:
            accepted.append(fine)
    return kept


async def play(world: World, requests: list[list[int]], servers: list[int]) -> None:
    flows = [world.server(), world.server()]
    for number, days in enumerate(requests):
        at = [(START_DAY + d) * DAY_US for d in days]
        columns = {"user": [str(number)] * len(days), "age": days, "at": at}
        await flows[servers[number % len(servers)]].log(WORKSPACE, MAIN, body(**columns))
    await world.close()


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5), min_size=1, max_size=8),
    servers=st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
def test_rows_enter_exactly_when_they_are_in_time(requests, servers):
    world = World(now_us=lambda: Micros(NOW_US))
    late = source(disorder_us=DISORDER_DAYS * DAY_US)
    world.commit(main=catalog(binding(of=late)))
    asyncio.run(play(world, requests, servers))
    rows = sorted(world.rows("w.topic.users.1"), key=lambda row: row[POS])
    found = [[row["age"] for row in rows if row["user"] == str(n)] for n in range(len(requests))]
    assert found == oracle(requests)
    assert world.clock.discarded.get("users", 0) == sum(map(len, requests)) - sum(map(len, found))


def test_a_future_row_makes_no_row_late_that_is_in_time_by_the_clock():
    today = 50
    world = World(now_us=lambda: Micros((START_DAY + today) * DAY_US))
    world.commit(main=catalog(binding(of=source(disorder_us=DISORDER_DAYS * DAY_US))))
    asyncio.run(
        play(world, [[9_000], [today], [today - DISORDER_DAYS], [today - DISORDER_DAYS - 1]], [0])
    )
    assert sorted(row["age"] for row in world.rows("w.topic.users.1")) == [
        today - DISORDER_DAYS,
        today,
        9_000,
    ]


def test_the_clients_own_watermark_test_holds():
    now, sixteen, forty = 100, 84, 60
    world = World(now_us=lambda: Micros(NOW_US))
    world.commit(main=catalog(binding(of=source(disorder_us=14 * DAY_US))))
    asyncio.run(play(world, [[now], [sixteen], [forty]], [0]))
    assert sorted(row["age"] for row in world.rows("w.topic.users.1")) == [sixteen, now]
