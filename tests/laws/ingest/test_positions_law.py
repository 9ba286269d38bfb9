"""The law of positions: unique, in the order of acknowledgement on one server, causal across
servers, whatever the split and the clocks.
"""

import asyncio
import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.versions import POS
from tests.support.ingest_world import (
    MAIN,
    WORKSPACE,
    ScriptedProducer,
    World,
    binding,
    body,
    catalog,
)

START_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Request:
    server: int
    users: tuple[int, ...]
    pause: int
    """Turns of the loop between the request before and this one."""


REQUESTS = st.lists(
    st.builds(
        Request,
        server=st.integers(0, 1),
        users=st.lists(st.integers(0, 8), min_size=1, max_size=6).map(tuple),
        pause=st.sampled_from([0, 0, 1, 3, 40]),
    ),
    min_size=1,
    max_size=12,
)


@dataclass
class Heard:
    """What a client saw of one request, in ticks of one global counter."""

    request: Request
    sent: int
    answered: int = 0
    written: bool = False
    status: int = 200


async def play(
    world: World, requests: list[Request], delays: list[int], failures: list[Exception | None]
) -> list[Heard]:
    pulls, faults = itertools.cycle(delays), itertools.cycle(failures)
    producers = [
        [ScriptedProducer(world.log, lambda: next(pulls), lambda: next(faults)) for _ in range(2)]
        for _ in range(2)
    ]
    servers = [world.server(each) for each in producers]
    world.clock.turns = lambda: next(pulls)
    ticks = iter(range(10**6))
    heard: list[Heard] = []
    tasks = []

    async def send(seen: Heard, number: int) -> None:
        users = seen.request.users
        columns = {
            "user": [f"u{u}" for u in users],
            "age": [number * 100 + i for i in range(len(users))],
            "at": [START_US] * len(users),
        }
        try:
            await servers[seen.request.server].log(WORKSPACE, MAIN, body(**columns))
            seen.written = True
        except ApiError as refused:
            seen.status = refused.status
        seen.answered = next(ticks)

    for number, request in enumerate(requests):
        for _ in range(request.pause):
            await asyncio.sleep(0)
        seen = Heard(request, next(ticks))
        heard.append(seen)
        tasks.append(asyncio.create_task(send(seen, number)))
    await asyncio.gather(*tasks)
    await world.close()
    return heard


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    clock=st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5),
    delays=st.lists(st.integers(0, 12), min_size=1, max_size=7),
    failures=st.lists(
        st.sampled_from(
            [None, None, None, TransactionAborted("no"), TransactionOutcomeUnknown("no response")]
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_positions_are_unique_causal_and_in_order_of_acknowledgement(
    requests, clock, delays, failures
):
    readings = iter(clock * 1000)
    world = World(now_us=lambda: Micros(START_US + next(readings)))  # a clock that jumps both ways
    world.commit(main=catalog(binding()))
    heard = asyncio.run(play(world, requests, delays, failures))

    assert {seen.status for seen in heard} <= {200, 503}
    rows = world.rows("w.topic.users.1")
    positions = [row[POS] for row in rows]
    assert len(set(positions)) == len(positions)

    by_request: dict[int, list[tuple[int, bytes]]] = {}
    for row in rows:
        by_request.setdefault(row["age"] // 100, []).append((row["age"] % 100, row[POS]))
    for number, seen in enumerate(heard):
        found = by_request.get(number, [])
        assert len(found) == (
            len(seen.request.users) if seen.written else 0
        )  # all of it or nothing
        assert [p for _, p in sorted(found)] == sorted(
            p for _, p in found
        )  # rows in the order they were logged

    written = [
        (seen, sorted(p for _, p in by_request[n])) for n, seen in enumerate(heard) if seen.written
    ]
    for a, at in written:
        for b, bt in written:
            if a.answered < b.sent:
                assert at[-1] < bt[0], (
                    "an acknowledged request precedes requests that were sent later"
                )
            if a.request.server == b.request.server and a.answered < b.answered:
                assert at[-1] < bt[0], (
                    "on one server, positions follow the order of acknowledgements"
                )

    places: dict[str, set[int]] = {}
    for row in rows:
        places.setdefault(row["user"], set()).add(row["__part"])
    assert all(len(parts) == 1 for parts in places.values())
