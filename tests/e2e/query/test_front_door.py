"""The query server over real HTTP: responses, forwarded calls and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.telemetry import metrics
from fennel_core.vocab.dtypes import Int
from fennel_core.wire import entities as wire
from tests.support.featuresets import USERS, extractor, lookup, request
from tests.support.polling import eventually
from tests.support.query_world import BODY_LIMIT, World, branch, table_view
from tests.support.served_users import EXTRACTORS, FEATURES, query, serving_users


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_users(tmp_path) as made:
        yield made


# --- query ----------------------------------------------------------------------------------------


async def test_a_query_returns_columns_in_the_requested_order(world: World) -> None:
    body = query(
        ["User.uid"],
        ["User.next", "User.name", "User.age", "User.uid"],
        {"User.uid": [3, 99], "unknown column": ["x", "y"]},
    )
    status, answer = await world.post("query", body)
    assert status == 200
    assert list(answer) == ["User.next", "User.name", "User.age", "User.uid"]
    assert answer == {
        "User.next": [26, 98],
        "User.name": ["user 3", None],
        "User.age": [23, -1],
        "User.uid": [3, 99],
    }


async def test_a_featureset_name_requests_all_its_features(world: World) -> None:
    status, answer = await world.post("query", query(["User.uid"], ["User"], {"User.uid": [1]}))
    assert status == 200
    assert list(answer) == ["User.uid", "User.age", "User.name", "User.next", "User.now"]


async def test_list_lookups_pack_their_values_beside_the_keys(world: World) -> None:
    body = query(["Many.uids"], ["Many.ages"], {"Many.uids": [[1, 2, 99], [], [1]]})
    assert await world.post("query", body) == (200, {"Many.ages": [[21, 22, 0], [], [21]]})


async def test_rows_of_the_future_are_invisible_and_a_query_has_one_clock(world: World) -> None:
    world.clock[0] = 1003
    body = query(["User.uid"], ["User.age", "User.now"], {"User.uid": [3, 4]})
    assert await world.post("query", body) == (200, {"User.age": [23, -1], "User.now": [0, 0]})


async def test_nan_tokens_and_integral_floats_are_read(world: World) -> None:
    data = '{"User.uid": [1.0, 2], "User.age": [4, 5], "z": [NaN, Infinity]}'
    text = f'{{"inputs": ["User.uid", "User.age"], "outputs": ["User.next"], "data": {data}}}'
    assert await world.post("query", data=text.encode()) == (200, {"User.next": [5, 7]})


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_query_by_rows_is_answered_by_rows(world: World, as_text: bool) -> None:
    rows = [{"User.uid": 3, "extra": 1}, {"User.uid": 99}]
    body = query(["User.uid"], ["User.next", "User.name"], {}) | {
        "data": json.dumps(rows) if as_text else rows
    }
    assert await world.post("query", body) == (
        200,
        [{"User.next": 26, "User.name": "user 3"}, {"User.next": 98, "User.name": None}],
    )
    assert await world.post("query", body | {"data": []}) == (200, [])


async def test_a_query_of_json_text_is_answered_by_columns(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {}) | {"data": '{"User.uid": [3]}'}
    assert await world.post("query", body) == (200, {"User.age": [23]})


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("query", "logg", query(["User.uid"], ["User.age"], {"User.uid": [1]}) | {"logg": True}),
        ("dataset/Users/lookup", "field", {"keys": [{"uid": 1}], "field": ["age"]}),
        ("barrier", "timeout", {"timeout": 3}),
    ],
)
async def test_a_field_without_effect_is_refused_by_name(
    world: World, path: str, field: str, body: Any
) -> None:
    status, answer = await world.post(path, body)
    assert (status, f"`{field}`" in answer) == (400, True), answer


async def test_duplicate_keys_are_looked_up_once(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [5, 6, 5, 5, 6]})
    assert await world.post("query", body) == (200, {"User.age": [25, 26, 25, 25, 26]})
    [(_, argument)] = world.slot.requests
    assert sum(len(keys) for _, _, keys, _ in argument["items"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (
            query(["User.uid"], ["Many.ages"], {"User.uid": [1]}),
            400,
            "No extractor found for feature `Many.uids`.",
        ),
        (
            query(["User.uid"], ["Nowhere"], {"User.uid": [1]}),
            400,
            "featureset `Nowhere` not found",
        ),
        (
            query(["User.uid"], ["User.age"], {}),
            400,
            "the input feature `User.uid` has no column in `data`",
        ),
        (query(["User.uid"], ["User.age"], {"User.uid": ["x"]}), 400, "column `User.uid`"),
        (query(["User.uid"], ["User.age"], {"User.uid": [1.5]}), 400, "1.5"),
        (
            query(["User.uid"], ["User.age"], {"User.uid": [None]}),
            400,
            "Null values found in non-optional field.",
        ),
        (query(["User.uid"], ["User.age"], {"User.uid": [1], "b": [1, 2]}), 400, "one length"),
        (
            query(["User.uid"], ["User.age"], {"User.uid": [1] * 1001}),
            413,
            "1001 rows are over the limit of 1000",
        ),
        ({"inputs": "User.uid", "outputs": [], "data": {}}, 400, "`$.inputs`"),
    ],
)
async def test_a_query_is_rejected_with_the_reason(
    world: World, body: dict[str, Any], status: int, text: str
) -> None:
    code, answer = await world.post("query", body)
    assert code == status
    assert text in answer


async def test_a_body_that_is_not_json_is_refused(world: World) -> None:
    status, answer = await world.post("query", data=b"{]")
    assert status == 400
    assert "not JSON" in answer


async def test_a_missing_branch_has_the_text_that_clients_expect(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [1]})
    assert await world.post("query", body, branch="test-branch") == (
        500,
        "branch `test-branch` does not exist",
    )


async def test_a_request_without_token_is_refused(world: World) -> None:
    async with world.client.post(f"{world.url}/api/v1/query", json={}) as answer:
        assert answer.status == 401


async def test_a_feature_committed_a_moment_ago_is_found_without_a_notification(
    world: World,
) -> None:
    body = query(["User.uid"], ["Extra.age"], {"User.uid": [1]})
    assert (await world.post("query", body))[0] == 400
    more = request(
        FEATURES | {"Extra.age": Int()},
        [*EXTRACTORS, extractor("Extra.age", wire.Alias(None), "User.age")],
        [USERS],
    )
    world.platform.serve(more, [table_view(USERS)], commit="c2")
    assert await world.post("query", body) == (200, {"Extra.age": [21]})


async def test_a_view_is_read_once_for_many_queries(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [1]})
    answers = await asyncio.gather(*(world.post("query", body) for _ in range(20)))
    assert all(answer == (200, {"User.age": [21]}) for answer in answers)
    assert world.platform.serving_reads == 1


# --- lookup ---------------------------------------------------------------------------------------


async def test_a_lookup_returns_keys_values_timestamp_and_found(
    world: World,
) -> None:
    status, answer = await world.post(
        "dataset/Users/lookup", {"keys": [{"uid": 1}, {"uid": 99}], "fields": []}
    )
    assert status == 200
    assert answer == {
        "data": {
            "uid": [1, 99],
            "age": [21, None],
            "name": ["user 1", None],
            "ts": ["1970-01-01T00:00:00.001001+00:00", None],
        },
        "found": [True, False],
    }


async def test_a_lookup_with_timestamps_is_as_of_each_keys_own(world: World) -> None:
    world.slot.put("job-Users", [1], 2_000_000, [50, "older"])
    stamps = ["1970-01-01 00:00:01+00:00", "1970-01-01T00:00:02", 1, 2]
    status, answer = await world.post(
        "dataset/Users/lookup", {"keys": [{"uid": 1}] * 4, "fields": ["age"], "timestamps": stamps}
    )
    assert (status, answer) == (200, {"data": {"age": [21, 50, 21, 50]}, "found": [True] * 4})


async def test_every_type_has_the_form_the_client_reads(world: World) -> None:
    row = [1_000_000, "12.30", 1, b"hello", [{"key": "a", "value": 1}], float("nan"), [0, None]]
    world.slot.put("job-Rich", ["x"], 5, row)
    status, answer = await world.post("dataset/Rich/lookup", {"keys": [{"id": "x"}], "fields": []})
    assert status == 200
    assert answer["data"] == {
        "id": ["x"],
        "when": ["1970-01-01T00:00:01.000000+00:00"],
        "price": [12.3],
        "day": ["1970-01-02"],
        "raw": ["aGVsbG8="],
        "tags": [{"a": 1}],
        "ratio": [None],
        "times": [["1970-01-01T00:00:00.000000+00:00", None]],
        "ts": ["1970-01-01T00:00:00.000005+00:00"],
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (
            "dataset/Nobody/lookup",
            {"keys": [{"uid": 1}], "fields": []},
            404,
            'dataset "Nobody" not found',
        ),
        (
            "dataset/Users/lookup",
            {"keys": [{"uid": 1}], "fields": ["zip"]},
            400,
            "Field: zip not in dataset",
        ),
        (
            "dataset/Users/lookup",
            {"keys": [{"uid": 1, "x": 2}], "fields": []},
            400,
            "has 1 key fields, but 2 key fields were provided.",
        ),
        ("dataset/Users/lookup", {"keys": [{"id": 1}], "fields": []}, 400, "Missing key uid"),
        (
            "dataset/Users/lookup",
            {"keys": [{"uid": 1}], "timestamps": [1, 2]},
            400,
            "as long as `keys`",
        ),
    ],
)
async def test_a_lookup_is_rejected_with_the_reason(
    world: World, path: str, body: Any, status: int, text: str
) -> None:
    code, answer = await world.post(path, body)
    assert (code, text in answer) == (status, True), answer


@pytest.mark.parametrize(
    ("view", "stamps", "text"),
    [
        (table_view(USERS, online=False), None, "Please define an online index on dataset : Users"),
        (
            table_view(USERS, offline=False),
            [1],
            "Please define an offline index on dataset : Users",
        ),
        (
            table_view(USERS, served=False),
            None,
            "Please define an index on dataset : Users for loookup",
        ),
    ],
)
async def test_a_lookup_needs_the_index_of_its_side(
    world: World, view: Any, stamps: list[int] | None, text: str
) -> None:
    world.platform.serve(request(FEATURES, EXTRACTORS, [USERS]), [view], commit="c9")
    status, answer = await world.post(
        "dataset/Users/lookup", {"keys": [{"uid": 1}], "fields": [], "timestamps": stamps}
    )
    assert (status, answer) == (400, text)


async def test_inspecting_an_unknown_dataset_has_the_text_that_clients_expect(world: World) -> None:
    assert await world.get("api/v1/dataset/UserInfoDataset/inspect?n=5") == (
        404,
        'dataset "UserInfoDataset" not found',
    )


# --- what is passed on ----------------------------------------------------------------------------


async def test_a_forwarded_response_has_one_date(world: World) -> None:
    world.upstreams.headers["Date"] = "Thu, 01 Jan 1970 00:00:00 GMT"
    async with world.client.get(
        f"{world.url}/api/v1/branch/list", headers={"Authorization": "Bearer t"}
    ) as answer:
        assert len(answer.headers.getall("Date")) == 1


async def test_other_calls_are_passed_on_as_they_came(world: World) -> None:
    world.upstreams.status, world.upstreams.body = 201, b"raw answer"
    url = f"{world.url}/api/v1/secret/chat.openai.com?x=a,b&y=%20"
    async with world.client.patch(
        url, data=b"\x00\x01body", headers={"Authorization": "Bearer t", "X-Odd-Header": "1"}
    ) as answer:
        assert (answer.status, await answer.read()) == (201, b"raw answer")
        assert answer.headers["X-Fennel-Special"] == "Yes"
    [(method, path, headers, body)] = world.upstreams.seen
    assert (method, path, body) == (
        "PATCH",
        "/definition/api/v1/secret/chat.openai.com?x=a,b&y=%20",
        b"\x00\x01body",
    )
    kept = {name.lower(): value for name, value in headers.items()}
    assert (kept["x-odd-header"], kept["authorization"]) == ("1", "Bearer t")


async def test_log_is_forwarded_to_ingest(world: World) -> None:
    await world.post("log", {"webhook": "w"})
    assert world.upstreams.seen[0][1] == "/ingest/api/v1/log"


async def test_a_commit_is_visible_to_the_next_query_of_its_client(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [1]})
    assert (await world.post("query", body))[0] == 200
    changed = [extractor("User.age", lookup("Users", "age", default="-7"), "User.uid")]
    world.upstreams.hook = lambda: world.platform.serve(
        request(FEATURES, changed, [USERS]), [table_view(USERS)], commit="c2"
    )
    assert (await world.post("commit?preview=false", data=b"bytes"))[0] == 200
    world.upstreams.hook = None
    assert await world.post("query", query(["User.uid"], ["User.age"], {"User.uid": [99]})) == (
        200,
        {"User.age": [-7]},
    )


async def test_a_commit_that_succeeded_is_answered_so_when_its_view_cannot_be_read(
    world: World,
) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [1]})
    assert await world.post("query", body) == (200, {"User.age": [21]})
    changed = [
        *EXTRACTORS[1:],
        extractor("User.age", lookup("Users", "age", default="-7"), "User.uid"),
    ]

    def commit() -> None:
        world.platform.serve(request(FEATURES, changed, [USERS]), [table_view(USERS)], commit="c2")
        world.platform.unreachable = True

    world.upstreams.hook = commit
    assert (await world.post("commit", data=b"request"))[0] == 200
    absent = query(["User.uid"], ["User.age"], {"User.uid": [99]})
    assert await world.post("query", absent) == (200, {"User.age": [-1]})
    world.platform.unreachable = False

    async def is_new() -> bool:
        return await world.post("query", absent) == (200, {"User.age": [-7]})

    await eventually(is_new)


async def test_an_erase_is_announced_before_it_is_answered(world: World) -> None:
    assert (await world.post("dataset/Users/erase", {"erase_keys": [{"uid": 1}]}))[0] == 200
    assert world.erased.announced == ["w"]


async def test_a_failed_commit_reads_nothing_anew(world: World) -> None:
    await world.post("query", query(["User.uid"], ["User.age"], {"User.uid": [1]}))
    reads = world.platform.serving_reads
    world.upstreams.status = 500
    await world.post("commit", data=b"bytes")
    assert world.platform.serving_reads == reads


async def test_a_deleted_branch_is_forgotten(world: World) -> None:
    world.platform.branches["dev"] = world.platform.branches["main"]
    body = query(["User.uid"], ["User.age"], {"User.uid": [1]})
    assert (await world.post("query", body, branch="dev"))[0] == 200
    world.upstreams.hook = lambda: world.platform.branches.pop("dev")
    assert (await world.post("delete", {}, branch="dev"))[0] == 200
    assert branch("dev") not in world.views.known()
    assert await world.post("query", body, branch="dev") == (500, "branch `dev` does not exist")


async def test_a_server_that_is_away_is_named(world: World) -> None:
    world.upstreams.hook = lambda: (_ for _ in ()).throw(asyncio.CancelledError())
    status, answer = await world.post("log", {})
    assert status == 503
    assert "ingest server" in answer


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(world: World) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    for path in ("query", "commit"):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            "t\r\nExpect: 100-continue\r\n"
        )
        writer.write(f"{head}Content-Length: {BODY_LIMIT + 1}\r\n\r\n".encode())
        first = await asyncio.wait_for(reader.readline(), 5)
        assert b"413" in first
        writer.close()


@pytest.mark.parametrize("path", ["query", "commit"])
async def test_a_streamed_body_over_the_limit_is_refused(world: World, path: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(BODY_LIMIT // 1000 + 2):
            yield b"x" * 1000

    async with world.client.post(
        f"{world.url}/api/v1/{path}", data=chunks(), headers={"Authorization": "Bearer t"}
    ) as answer:
        assert answer.status == 413


async def test_a_client_that_waits_for_100_continue_receives_it(world: World) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    body = json.dumps(query(["User.uid"], ["User.age"], {"User.uid": [1]})).encode()
    for path, expected in (("query", b"[21]"), ("log", b"ok")):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            "t\r\nExpect: 100-continue\r\n"
        )
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert b"100" in await asyncio.wait_for(reader.readline(), 5)
        writer.write(body)
        assert expected in await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_unknown_paths_are_not_passed_on(world: World) -> None:
    status, _ = await world.get("else/where")
    assert status == 404
    assert world.upstreams.seen == []


@pytest.mark.parametrize(
    "sent",
    [
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_a_page_of_another_origin_or_with_a_rebinding_name_reads_and_writes_nothing(
    world: World, sent: dict[str, str]
) -> None:
    headers = {"Authorization": "Bearer t", "Content-Type": "text/plain"} | sent
    body = json.dumps(query(["User.uid"], ["User.age"], {"User.uid": [1]}))
    for method, path in (
        *(("POST", "query"), ("POST", "log"), ("POST", "commit"), ("POST", "dataset/D/erase")),
        *(("GET", "secret/x"), ("GET", "branch/list"), ("OPTIONS", "commit")),
    ):
        url = f"{world.url}/api/v1/{path}"
        async with world.client.request(method, url, data=body, headers=headers) as answer:
            assert answer.status == 403, (method, path)
            assert answer.headers["X-Fennel-Error-Code"] in {
                "host-not-allowed",
                "origin-not-allowed",
            }
    assert world.upstreams.seen == []


async def test_health_and_metrics_are_served(world: World) -> None:
    await world.post("query", query(["User.uid"], ["User.age"], {"User.uid": [1, 2]}))
    assert (await world.get("healthz"))[0] == 200
    assert (await world.get("readyz"))[0] == 200
    assert (await world.get("metrics"))[0] == 404, "users do not reach it"
    assert (await world.get("api/v1/openapi.json"))[0] == 404
    text = metrics.render().decode()
    assert 'fennel_extract_features_counter{workflow="default"}' in text


async def test_features_are_counted_by_workflow(world: World) -> None:
    body = query(["User.uid"], ["User.age"], {"User.uid": [1, 2, 3]})
    await world.post("query", body | {"workflow": "ads"})
    await world.post(
        "query", query(["User.uid"], ["Nowhere.x"], {"User.uid": [1]}) | {"workflow": "ads"}
    )
    text = metrics.render().decode()
    assert 'fennel_extract_features_counter{workflow="ads"} 3.0' in text
    assert (
        'fennel_extract_features_error_counter{code="query-no-extractor",workflow="ads"} 1.0'
        in text
    )
    assert 'extract_features_latency_seconds_count{workflow="ads"} 2.0' in text
