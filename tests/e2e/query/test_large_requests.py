"""Large requests: worked on beside small ones, with the same results and the same deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.query import batch_thread, lookups
from fennel_core.query.batch_thread import BYTES_IN_LOOP, ROWS_IN_LOOP, SLICE_ROWS
from fennel_core.query.service import QueryLimits
from tests.support.query_world import World
from tests.support.served_users import query, serving_users

ROWS = SLICE_ROWS + 1
UIDS = [n % 12 for n in range(ROWS)]
"""Some exist and some do not."""
OUTPUTS = ["User.age", "User.name", "User.next", "User.now"]
LARGE = query(["User.uid"], OUTPUTS, {"User.uid": UIDS})
BY_ROW = LARGE | {"data": [{"User.uid": uid} for uid in UIDS]}
LISTED = query(["Many.uids"], ["Many.ages"], {"Many.uids": [UIDS]})
LOOKUP = {"keys": [{"uid": uid} for uid in UIDS]}
AS_OF = LOOKUP | {"timestamps": [1.0] * ROWS}
assert ROWS > ROWS_IN_LOOP


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_users(tmp_path) as made:
        yield made


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """The batch thread does nothing until this event is set."""
    event = threading.Event()
    batch_thread._thread.submit(event.wait)
    yield event
    event.set()


async def one(world: World, uid: int, outputs: list[str] | None = None) -> dict[str, Any]:
    body = query(["User.uid"], outputs or OUTPUTS, {"User.uid": [uid]})
    status, answer = await world.post("query", body)
    assert status == 200, answer
    return {name: value for name, [value] in answer.items()}


async def test_a_large_query_has_the_results_of_its_rows_alone(world: World) -> None:
    rows = [await one(world, uid) for uid in range(12)]
    expected = [rows[uid] for uid in UIDS]
    status, columns = await world.post("query", LARGE)
    assert status == 200
    assert columns == {name: [row[name] for row in expected] for name in OUTPUTS}
    assert await world.post("query", BY_ROW) == (200, expected)


async def test_a_large_lookup_has_the_results_of_its_keys_alone(world: World) -> None:
    for large in (LOOKUP, AS_OF):
        answers = [
            (await world.post("dataset/Users/lookup", small))[1]
            for uid in range(12)
            for small in [
                {name: values[uid : uid + 1] for name, values in large.items()},
            ]
        ]
        status, found = await world.post("dataset/Users/lookup", large)
        assert status == 200
        assert found["found"] == [answers[uid]["found"][0] for uid in UIDS]
        assert found["data"] == {
            name: [answers[uid]["data"][name][0] for uid in UIDS] for name in found["data"]
        }


async def test_one_row_with_many_keys_has_the_value_of_each_key(world: World) -> None:
    ages = [(await one(world, uid, ["User.age"]))["User.age"] for uid in range(10)]
    status, answer = await world.post("query", LISTED)
    assert (status, answer) == (
        200,
        {"Many.ages": [[ages[uid] if uid < 10 else 0 for uid in UIDS]]},
    )


@pytest.mark.parametrize(
    ("path", "body"), [("query", LARGE), ("query", BY_ROW), ("dataset/Users/lookup", LOOKUP)]
)
async def test_small_queries_do_not_wait_for_a_large_request(
    world: World, held: threading.Event, path: str, body: dict[str, Any]
) -> None:
    large = asyncio.create_task(world.post(path, body))
    for uid in range(10):
        assert (await one(world, uid))["User.age"] == 20 + uid
    assert not large.done()
    held.set()
    status, _ = await large
    assert status == 200


async def test_a_body_of_unknown_rows_is_not_parsed_on_the_event_loop(
    world: World, held: threading.Event
) -> None:
    padded = query(["User.uid"], ["User.age"], {"User.uid": [1], "x": ["y" * BYTES_IN_LOOP]})
    large = asyncio.create_task(world.post("query", padded))
    for uid in range(10):
        await one(world, uid)
    assert not large.done()
    held.set()
    assert await large == (200, {"User.age": [21]})


@pytest.mark.parametrize(("path", "body"), [("query", LARGE), ("dataset/Users/lookup", LOOKUP)])
async def test_a_request_that_waits_for_the_thread_ends_at_its_deadline(
    world: World, held: threading.Event, path: str, body: dict[str, Any]
) -> None:
    world.service._bounds = QueryLimits(1000, 0.05, 1.0)
    status, text = await world.post(path, body)
    assert (status, "FENNEL_QUERY_TIMEOUT_MS" in text) == (504, True)
    held.set()
    world.service._bounds = QueryLimits(1000, 10.0, 1.0)
    assert (await one(world, 1))["User.age"] == 21
    assert len(world.slot.requests) == 1, "the first request was withdrawn from the thread"


async def test_the_keys_of_a_large_request_are_sent_in_several_frames(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "KEYS_PER_FRAME", 100)
    uids = list(range(ROWS))
    for uid in uids[10:]:
        world.slot.put("job-Users", [uid], 1, [20 + uid, ""])
    body = query(["User.uid"], ["User.age"], {"User.uid": uids})
    expected = {"User.age": [20 + uid for uid in uids]}
    assert await world.post("query", body) == (200, expected)
    # Each partition has more than 100 keys, which stay together: they are read from one view.
    frames = [argument["items"] for _, argument in world.slot.requests]
    assert [len(items) for items in frames] == [1] * 4
    assert sorted(part for [(_, part, _, _)] in frames) == [0, 1, 2, 3]
