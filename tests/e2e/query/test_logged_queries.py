"""`log=True`: what is logged of a query, over real HTTP; the log itself is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Float, List, Str, Timestamp
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.query_log_blocks import subject
from tests.support.featuresets import extractor, lookup, request
from tests.support.query_world import World, table_view
from tests.support.served_users import RICH, query, serving_users

HEADERS = {"Authorization": "Bearer t"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_users(tmp_path) as made:
        yield made


async def post(world: World, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, str]]:
    """Send a query that is logged; return the status and the headers about the log."""
    sent = {"log": True, **{k: v for k, v in body.items() if k != "log"}}
    url = f"{world.url}/api/v1/query"
    async with world.client.post(url, json=sent, headers=HEADERS | headers) as answer:
        await answer.read()
        found = {k.lower(): v for k, v in answer.headers.items()}
        return answer.status, {
            name.removeprefix("x-fennel-"): value
            for name, value in found.items()
            if name.startswith("x-fennel-")
        }


def users(uids: list[Any], *outputs: str) -> dict[str, Any]:
    return query(["User.uid"], list(outputs), {"User.uid": uids, "label": ["a"] * len(uids)})


def erased(uid: int) -> bytes:
    return subject(DatasetName("Users"), ("uid",), msgspec.msgpack.encode([uid]))


async def test_inputs_and_outputs_are_logged_as_they_were_served(world: World) -> None:
    body = users([3, 99], "User.next", "User.name", "User.uid") | {"workflow": "fraud"}
    assert await post(world, body, **{"X-FENNEL-REQUEST-ID": "r-1"}) == (
        200,
        {"request-id": "r-1", "logged-rows": "2"},
    )
    [logged] = world.query_log.queries
    assert (logged.key, logged.commit, logged.now_us) == (("w", "main"), "c1", world.clock[0])
    assert (logged.options.workflow, logged.options.sampling_rate) == ("fraud", 1.0)
    at = datetime.fromtimestamp(world.clock[0] / 1_000_000, UTC)
    own = {"request_id": ["r-1"] * 2, "row": [0, 1], "timestamp": [at] * 2}
    assert world.query_log.rows().to_dict(as_series=False) == own | {
        "User.uid": [3, 99],
        "User.next": [26, 98],
        "User.name": ["user 3", None],
    }


async def test_values_keep_their_types(world: World) -> None:
    types = {"when": Timestamp(), "price": dtypes.Decimal(2), "day": dtypes.Date()} | {
        "raw": dtypes.Bytes(),
        "ratio": dtypes.optional(Float()),
        "times": List(Timestamp()),
    }
    features = {"R.id": Str()} | {f"R.{name}": each for name, each in types.items()}
    steps = [extractor(f"R.{n}", lookup("Rich", n, each), "R.id") for n, each in types.items()]
    world.platform.serve(request(features, steps, [RICH]), [table_view(RICH)])
    values = [5, "1.25", 1, b"\xff", {"a": 1}, float("nan"), [7]]
    world.slot.put("job-Rich", ["x"], 1, values)
    status, _ = await post(world, query(["R.id"], ["R"], {"R.id": ["x"]}))
    assert status == 200
    [row] = world.query_log.rows().to_dicts()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert row["R.when"] == epoch.replace(microsecond=5)
    assert row["R.price"] == Decimal("1.25")
    assert row["R.day"] == date(1970, 1, 2)
    assert row["R.raw"] == b"\xff"
    assert row["R.times"] == [epoch.replace(microsecond=7)]
    assert row["R.ratio"] != row["R.ratio"]


async def test_without_an_id_each_query_gets_one_and_the_default_workflow(world: World) -> None:
    answers = [await post(world, users([1], "User.age")) for _ in range(2)]
    ids = {headers["request-id"] for _, headers in answers}
    assert len(ids) == 2
    assert ids == {logged.request_id for logged in world.query_log.queries}
    assert {logged.options.workflow for logged in world.query_log.queries} == {"default"}


async def test_queries_that_are_not_logged_carry_nothing(world: World) -> None:
    body = users([1], "User.age") | {"workflow": "fraud"}
    assert await world.post("query", body) == (200, {"User.age": [21]})
    assert world.query_log.queries == []


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"log": False, "sampling_rate": 0.5}, "`sampling_rate` has no effect without `log`"),
        ({"log": True, "sampling_rate": 1.5}, "`sampling_rate` must be a number from 0 to 1"),
        ({"log": True, "sampling_rate": -0.1}, "`sampling_rate` must be a number from 0 to 1"),
        ({"log": True, "workflow": "w" * 201}, "`workflow` of a logged query must have at most"),
    ],
)
async def test_options_that_cannot_be_kept_are_refused(
    world: World, extra: dict[str, Any], text: str
) -> None:
    status, answer = await world.post("query", users([1], "User.age") | extra)
    assert (status, text in answer) == (400, True), answer
    assert world.query_log.queries == []


@pytest.mark.parametrize("id_", ["", "a b", "x" * 65, "ä"])
async def test_an_id_that_cannot_be_stored_is_refused(world: World, id_: str) -> None:
    status, _ = await post(world, users([1], "User.age"), **{"X-FENNEL-REQUEST-ID": id_})
    assert (status, world.query_log.queries) == (400, [])


async def test_a_query_that_fails_is_not_logged(world: World) -> None:
    status, headers = await post(world, users(["x"], "User.age"))
    assert (status, world.query_log.queries) == (400, [])
    assert set(headers) == {"error-code"}


async def test_what_does_not_fit_is_reported_in_the_response(world: World) -> None:
    world.query_log.full = True
    status, headers = await post(world, users([1, 2], "User.age"))
    del headers["request-id"]
    assert (status, headers) == (200, {"logged-rows": "0", "dropped-rows": "2"})


async def test_a_sample_of_the_rows_is_logged_and_the_same_for_the_same_id(world: World) -> None:
    body = users(list(range(10)) * 40, "User.age") | {"sampling_rate": 0.25}
    for _ in range(2):
        await post(world, body, **{"X-FENNEL-REQUEST-ID": "again"})
    first, second = world.query_log.queries
    assert list(first.kept) == list(second.kept)
    assert 50 <= len(first.kept) <= 150
    rows = world.query_log.rows()
    assert rows["row"].to_list() == [*first.kept, *first.kept]
    assert rows["User.age"].to_list() == [20 + row % 10 for row in (*first.kept, *first.kept)]


async def test_of_a_sample_nothing_else_is_kept(world: World) -> None:
    uids = [*range(10)] * 40
    await post(
        world, users(uids, "User.age") | {"sampling_rate": 0.1}, **{"X-FENNEL-REQUEST-ID": "s"}
    )
    [logged] = world.query_log.queries
    held = [*logged.columns.values(), *logged.trace.registers.values()]
    assert len(held) >= 3, "an input, an output and a key"
    assert {len(column) for column in held} == {len(logged.kept)}
    hidden = [row for row in logged.kept if uids[row] == 3]
    shown = [row for row in logged.kept if uids[row] != 3]
    assert hidden, "the sample has rows of the erased key"
    assert world.query_log.rows(erased(3))["row"].to_list() == shown


async def test_nothing_is_logged_at_rate_zero(world: World) -> None:
    _, headers = await post(world, users([1], "User.age") | {"sampling_rate": 0})
    assert headers["logged-rows"] == "0"


async def test_rows_of_an_erased_key_are_recognised(world: World) -> None:
    await post(world, users([3, 4, 3], "User.age"))
    assert world.query_log.rows(erased(3))["row"].to_list() == [1]
    assert world.query_log.rows(erased(5)).height == 3


async def test_a_row_of_many_keys_goes_with_each_of_them(world: World) -> None:
    await post(world, query(["Many.uids"], ["Many.ages"], {"Many.uids": [[1, 2], [], [2]]}))
    assert world.query_log.rows(erased(1))["row"].to_list() == [1, 2]
    assert world.query_log.rows(erased(2))["row"].to_list() == [1]
