"""Large requests in a process of their own: same answers, and none is lost with that process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.query_worker import serve_large_reads
from fennel_core.connections import frames
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.frames import RemoteError, WithBytes, frame, read_frame, serve
from fennel_core.query.batch_thread import BYTES_IN_LOOP, ROWS_IN_LOOP
from fennel_core.query.bodies import DEFAULT_WORKFLOW
from fennel_core.query.large_reads import DividedReads, LargeReadServer
from fennel_core.query.view import Views
from fennel_core.telemetry import metrics
from fennel_core.vocab.ids import MAIN_BRANCH
from tests.support.featuresets import USERS
from tests.support.featuresets import request as definitions
from tests.support.polling import eventually
from tests.support.query_world import (
    WORKSPACE,
    FakeErasures,
    RecordedLog,
    World,
    helper_socket,
    query_service,
    table_view,
)
from tests.support.served_users import EXTRACTORS, FEATURES, query, serving_users

ROWS = ROWS_IN_LOOP + 1
UIDS = [n % 12 for n in range(ROWS)]
"""Some exist and some do not."""
OUTPUTS = ["User.age", "User.name", "User.next"]
LARGE = query(["User.uid"], OUTPUTS, {"User.uid": UIDS})
BY_ROW = LARGE | {"data": [{"User.uid": uid} for uid in UIDS]}
LOOKUP = {"keys": [{"uid": uid} for uid in UIDS]}
PATH = "dataset/Users/lookup"
GRACE_S = 30.0


@dataclass
class Helper:
    """A helper with what it knows, and the operations that it was asked."""

    views: Views
    erased: FakeErasures
    query_log: RecordedLog
    large: LargeReadServer
    asked: list[str] = field(default_factory=list)

    async def handle(self, op: str, argument: Any) -> object:
        self.asked.append(op)
        return await self.large.handle(op, argument)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_users(tmp_path) as made:
        yield made


@asynccontextmanager
async def helping(world: World, folder: Path) -> AsyncIterator[Helper]:
    views, erased, log = Views(world.platform), FakeErasures(), RecordedLog()
    service = query_service(folder, world.platform, world.registry, views, erased, world.clock, log)
    made = Helper(views, erased, log, LargeReadServer(service, views, erased))
    server = await serve(str(helper_socket(folder)), made.handle)
    try:
        yield made
    finally:
        server.close()


@pytest.fixture
async def helper(world: World, tmp_path: Path) -> AsyncIterator[Helper]:
    async with helping(world, tmp_path) as made:
        yield made


def refusals() -> float:
    """Return how many queries this process has refused because Postgres is away."""
    labels = (DEFAULT_WORKFLOW, DatabaseUnavailable.CODE)
    return float(metrics.EXTRACT_FEATURES_ERRORS.labels(*labels)._value.get())


async def refused(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize(
    ("path", "body", "op"),
    [("query", LARGE, "query"), ("query", BY_ROW, "query"), (PATH, LOOKUP, "lookup")],
)
async def test_a_helper_gives_the_answer_that_the_server_gives_without_it(
    world: World, tmp_path: Path, path: str, body: dict[str, Any], op: str
) -> None:
    alone = await world.post(path, body)
    async with helping(world, tmp_path) as helper:
        assert await world.post(path, body) == alone
    assert (alone[0], helper.asked) == (200, [op])


async def test_a_long_answer_comes_in_pieces(
    world: World, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await world.post("query", LARGE)
    monkeypatch.setattr(frames, "PART_BYTES", 100)
    assert await world.post("query", LARGE) == whole


async def test_requests_of_few_rows_stay_in_the_server(world: World, helper: Helper) -> None:
    few = query(["User.uid"], OUTPUTS, {"User.uid": UIDS[:ROWS_IN_LOOP]})
    # Many commas, and one row.
    wide = few | {"data": {"User.uid": [1]}, "outputs": OUTPUTS * ROWS_IN_LOOP}
    for body in (few, wide):
        await world.post("query", body)
    await world.post(PATH, {"keys": LOOKUP["keys"][:ROWS_IN_LOOP]})
    assert helper.asked == []


async def test_a_body_of_many_bytes_goes_to_the_helper_unparsed(
    world: World, helper: Helper
) -> None:
    padded = query(["User.uid"], ["User.age"], {"User.uid": [1], "x": ["y" * BYTES_IN_LOOP]})
    assert await world.post("query", padded) == (200, {"User.age": [21]})
    assert helper.asked == ["query"]


@pytest.mark.parametrize(
    "body",
    [
        LARGE | {"outputs": ["User.nothing"]},
        LARGE | {"inputs": ["User.age"]},
        LARGE | {"data": {"User.uid": UIDS * 5}},
        LARGE | {"data": {"User.uid": ["x"] * ROWS}},
        LARGE | {"unknown": 1},
    ],
)
async def test_a_helper_refuses_as_the_server_does(
    world: World, tmp_path: Path, body: dict[str, Any]
) -> None:
    alone = await world.post("query", body)
    async with helping(world, tmp_path):
        assert await world.post("query", body) == alone
    assert alone[0] >= 400


async def test_a_helper_serves_the_version_that_the_server_serves(
    world: World, helper: Helper
) -> None:
    await world.post("query", LARGE)
    without_names = {name: dtype for name, dtype in FEATURES.items() if name != "User.name"}
    extractors = [each for each in EXTRACTORS if "User.name" not in str(each.outputs)]
    changed = definitions(without_names, extractors, [USERS])
    world.platform.serve(changed, [table_view(USERS)], commit="c2")
    await world.views.reload((WORKSPACE, "main"))  # type: ignore[arg-type]  # a branch
    body = LARGE | {"outputs": ["User.age"]}
    status, _ = await world.post("query", body)
    assert status == 200
    assert [view.commit for view in helper.views.known().values()] == ["c2"]


async def test_a_helper_that_has_the_version_needs_no_postgres(
    world: World, helper: Helper
) -> None:
    body = LARGE | {"log": True}
    await world.post("query", body)
    world.platform.unreachable = True
    assert (await world.post("query", body))[0] == 200
    assert (len(helper.query_log.queries), len(world.query_log.queries)) == (2, 0)


async def test_a_helper_hides_what_another_process_has_erased(world: World, helper: Helper) -> None:
    helper.erased.behind.append(WORKSPACE)
    await world.post("query", LARGE)
    assert helper.erased.behind == []


async def test_what_a_helper_answers_is_logged_there(world: World, helper: Helper) -> None:
    status, _ = await world.post("query", LARGE | {"log": True})
    assert (status, len(helper.query_log.queries), len(world.query_log.queries)) == (200, 1, 0)


async def test_a_helper_that_is_lost_ends_its_request_with_a_reason(
    world: World, tmp_path: Path
) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            number, op, _ = await read_frame(reader)
            if op != "ping":
                writer.close()
                return
            writer.write(frame([number, "ok", None]))

    server = await asyncio.start_unix_server(broken, helper_socket(tmp_path))
    status, text = await world.post("query", LARGE)
    assert (status, "try again" in text) == (503, True)
    server.close()
    # Without it, the server does its work.
    assert (await world.post("query", LARGE))[0] == 200


async def test_a_frozen_helper_delays_one_request_and_no_other(tmp_path: Path) -> None:
    connected = 0

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        await reader.read()
        writer.close()

    async with serving_users(tmp_path, helper_silence_s=0.2) as world:
        server = await asyncio.start_unix_server(frozen, helper_socket(tmp_path))
        for _ in range(2):
            assert (await world.post("query", LARGE))[0] == 200
        assert connected == 1, "it is tried again beside requests"
        server.close()


async def test_a_request_that_the_helper_works_on_ends_at_its_deadline(
    world: World, helper: Helper
) -> None:
    world.divided._timeout_s = 0.2
    world.slot.release.clear()
    status, text = await world.post("query", LARGE)
    assert (status, "FENNEL_QUERY_TIMEOUT_MS" in text) == (504, True)
    await eventually(lambda: world.slot.running == 0)
    assert helper.asked == ["query"]


async def test_a_helper_that_does_not_end_its_work_is_not_waited_for(
    world: World, tmp_path: Path
) -> None:
    async def endless(op: str, argument: Any) -> object:
        return await asyncio.Event().wait()

    server = await serve(str(helper_socket(tmp_path)), endless)
    world.divided._timeout_s = 0.2
    async with asyncio.timeout(10):
        assert (await world.post("query", LARGE))[0] == 504
    server.close()


async def test_without_a_version_the_server_refuses_and_counts_a_large_request_as_a_small_one(
    world: World, helper: Helper
) -> None:
    world.platform.unreachable = True
    few = query(["User.uid"], OUTPUTS, {"User.uid": [1]})
    found = []
    for body in (few, LARGE):
        before = refusals()
        status, _ = await world.post("query", body)
        found.append((status, refusals() - before))
    assert found == [(503, 1.0)] * 2
    assert helper.asked == []


async def test_without_postgres_the_server_serves_what_the_helper_cannot(
    world: World, helper: Helper
) -> None:
    alone = await world.post("query", query(["User.uid"], OUTPUTS, {"User.uid": [1]}))
    world.platform.unreachable = True
    assert alone[0] == (await world.post("query", LARGE))[0] == 200
    helper.erased.unknown = True
    world.platform.unreachable = False
    assert (await world.post("query", LARGE))[0] == 200
    assert helper.asked == ["query", "query"]


async def test_the_server_serves_what_is_too_much_for_the_helper(
    world: World, tmp_path: Path
) -> None:
    async def overloaded(op: str, argument: Any) -> object:  # as a handler has
        raise RemoteError(frames.OVERLOADED, "1024 requests are in flight")

    server = await serve(str(helper_socket(tmp_path)), overloaded)
    assert (await world.post("query", LARGE))[0] == 200
    server.close()


async def test_a_defect_of_a_helper_is_reported(world: World, tmp_path: Path) -> None:
    async def failing(op: str, argument: Any) -> object:
        raise ValueError("a defect")

    server = await serve(str(helper_socket(tmp_path)), failing)
    assert (await world.post("query", LARGE))[0] == 500
    server.close()


async def test_a_request_goes_to_the_helper_with_the_fewest(world: World, tmp_path: Path) -> None:
    asked, release = "", asyncio.Event()

    def handler(name: str) -> frames.Handler:
        async def handle(op: str, argument: Any) -> object:
            nonlocal asked
            asked += name
            await release.wait()
            return WithBytes({"stale": False, "logged": None}, [b"{}"])

        return handle

    servers = [await serve(str(tmp_path / name), handler(name)) for name in "ab"]
    addresses = [str(tmp_path / name) for name in "ab"]
    divided = DividedReads(world.divided._service, world.views, addresses, 10_000, 10.0)
    key, body = (WORKSPACE, MAIN_BRANCH), json.dumps(LARGE).encode()
    under_way = []
    for expected in ("a", "ab"):
        under_way.append(asyncio.create_task(divided.query(key, body)))
        await eventually(lambda expected=expected: asked == expected)
    release.set()
    await asyncio.gather(*under_way)
    for _ in range(2):
        await divided.query(key, body)
    assert asked == "abaa"
    await divided.close()
    for server in servers:
        server.close()


async def test_a_request_whose_client_has_gone_is_cancelled_in_the_helper(
    world: World, helper: Helper
) -> None:
    world.slot.release.clear()
    request = asyncio.create_task(world.post("query", LARGE))
    await eventually(lambda: world.slot.running == 1)
    request.cancel()
    await eventually(lambda: world.slot.running == 0)


async def test_a_helper_that_is_stopped_finishes_its_requests(
    world: World, helper: Helper, tmp_path: Path
) -> None:
    path, stopping = helper_socket(tmp_path), asyncio.Event()
    path.unlink()
    served = asyncio.create_task(serve_large_reads(str(path), helper.large, stopping, GRACE_S))
    await eventually(path.exists)
    world.slot.release.clear()
    request = asyncio.create_task(world.post("query", LARGE))
    await eventually(lambda: world.slot.running == 1)
    stopping.set()
    await eventually(lambda: refused(path))
    assert not served.done()
    world.slot.release.set()
    assert (await request)[0] == 200
    await world.divided.close()
    assert await served < GRACE_S
