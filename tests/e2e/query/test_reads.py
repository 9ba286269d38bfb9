"""What every read has in common: erased keys, marks, deadlines, disconnects and parked jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.query.owners import Parked
from fennel_core.query.service import QueryLimits
from fennel_core.vocab.dtypes import Int
from fennel_core.vocab.ids import JobId
from fennel_core.wire import entities as wire
from fennel_core.wire.expr import Binary, BinaryOp, Ref
from tests.support.fake_slots import encode
from tests.support.featuresets import USERS, extractor, lookup, request
from tests.support.polling import eventually
from tests.support.query_world import World, table_view
from tests.support.served_users import query, serving_users


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_users(tmp_path) as made:
        yield made


READS: list[tuple[str, str, Any]] = [
    ("POST", "query", query(["User.uid"], ["User.age"], {"User.uid": [1]})),
    ("POST", "dataset/Users/lookup", {"keys": [{"uid": 1}]}),
    ("POST", "dataset/Users/lookup", {"keys": [{"uid": 1}], "timestamps": [1]}),
    ("GET", "dataset/Users/inspect?n=100", None),
]


async def read(world: World, method: str, path: str, body: Any) -> tuple[int, Any]:
    return await (world.post(path, body) if method == "POST" else world.get(f"api/v1/{path}"))


@pytest.mark.parametrize(("method", "path", "body"), READS)
async def test_every_read_hides_erased_keys_and_is_refused_while_they_are_unknown(
    world: World, method: str, path: str, body: Any
) -> None:
    assert "21" in json.dumps(await read(world, method, path, body))
    world.erased.keys = {encode([1])}
    assert "21" not in json.dumps(await read(world, method, path, body))
    world.erased.unknown = True
    status, text = await read(world, method, path, body)
    assert (status, "erased keys" in text) == (503, True)


@pytest.mark.parametrize(("method", "path", "body"), READS)
async def test_a_read_that_a_slot_served_without_a_live_lease_is_marked(
    world: World, method: str, path: str, body: Any
) -> None:
    for stale in (False, True):
        world.slot.stale = stale
        async with world.client.request(
            method, f"{world.url}/api/v1/{path}", json=body, headers={"Authorization": "Bearer t"}
        ) as answer:
            assert answer.status == 200
            assert answer.headers.get("X-Fennel-Stale") == ("true" if stale else None)


@pytest.mark.parametrize(("method", "path", "body"), READS)
async def test_a_read_whose_client_disconnects_ends_in_the_slot_too(
    world: World, method: str, path: str, body: Any
) -> None:
    world.slot.release.clear()
    reading = asyncio.create_task(read(world, method, path, body))
    await eventually(lambda: world.slot.running > 0)
    reading.cancel()
    await eventually(lambda: world.slot.running == 0)


async def test_a_read_ends_at_its_deadline_in_the_slot_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = QueryLimits(1000, 0.05, 5.0)
    monkeypatch.setattr(world.service, "_bounds", bounds)
    world.slot.release.clear()
    status, text = await read(world, *READS[0])
    assert (status, "FENNEL_QUERY_TIMEOUT_MS" in text) == (504, True)
    await eventually(lambda: world.slot.running == 0)


async def test_a_parked_job_fails_only_queries_that_need_it_and_names_their_features(
    world: World,
) -> None:
    world.registry.addresses = {
        partition: address
        for partition, address in world.registry.addresses.items()
        if partition[0] != "job-Users"
    }
    world.registry.parked = {(JobId("job-Users"), part): Parked("boom") for part in range(4)}
    status, text = await read(world, *READS[0])
    assert status == 500
    assert "boom" in text
    assert "`User.age`" in text
    body = query(["User.uid", "User.age"], ["User.next"], {"User.uid": [1], "User.age": [2]})
    assert await world.post("query", body) == (200, {"User.next": [3]})


async def test_a_row_is_read_once_per_query_however_many_levels_need_it(world: World) -> None:
    chained = [
        extractor("User.age", lookup("Users", "age", default="-1"), "User.uid"),
        extractor(
            "Again.uid",
            wire.ExprExtractor(Binary(BinaryOp.SUB, Ref("age"), Ref("age"))),
            "User.age",
        ),
        extractor("Again.age", lookup("Users", "age", default="-1"), "Again.uid"),
    ]
    features = {"User.uid": Int(), "User.age": Int(), "Again.uid": Int(), "Again.age": Int()}
    world.platform.serve(request(features, chained, [USERS]), [table_view(USERS)], commit="c5")

    def changed(op: str, item: Any) -> None:
        world.slot.put("job-Users", [0], 10**14 + len(world.slot.requests), [77, "newer"])

    world.slot.misbehave = changed
    body = query(["User.uid"], ["User.age", "Again.age"], {"User.uid": [0]})
    status, answer = await world.post("query", body)
    assert (status, answer["User.age"]) == (200, answer["Again.age"])
    assert len(world.slot.requests) == 1
