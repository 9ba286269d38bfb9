"""The responses of the definition server: statuses, texts and bodies as the public client
and its tests expect them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql

from fennel_core.connections.errors import TransactionOutcomeUnknown
from fennel_core.connections.postgres import pool
from fennel_core.connections.secrets import Sealer, make_key_file
from fennel_core.definition.reseal import reseal
from fennel_core.definition.sealed_request import reseal_body
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.gen import services_pb2
from tests.contract.definition.conftest import ADMIN
from tests.support.definition_world import changed, recorded
from tests.support.postgres import refusing

API = "/api/v1"
SHOP = WorkspaceId("shop")
FEATURES = recorded("featuresets")
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}


def on(branch: str) -> dict[str, str]:
    return {"X-FENNEL-BRANCH": branch}


async def post(
    client: httpx.AsyncClient, path: str, branch: str = "main", **options: object
) -> httpx.Response:
    return await client.post(f"{API}{path}", headers=on(branch), **options)


async def branches(client: httpx.AsyncClient) -> list[str]:
    return [b["name"] for b in (await client.get(f"{API}/branch/list")).json()["branches"]]


def is_error(response: httpx.Response, status: int, text: str, code: str | None = None) -> None:
    assert (response.status_code, response.text) == (status, text)
    assert response.headers["content-type"].startswith("text/plain"), (
        "the client shows the body of a plain text as it is"
    )
    if code is not None:
        assert response.headers["x-fennel-error-code"] == code


async def test_a_commit_returns_its_lines_as_json_with_the_content_type_the_client_checks(
    client: httpx.AsyncClient,
) -> None:
    response = await post(
        client, "/commit?preview=false&incremental=false&backfill=true", content=FEATURES
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert (b"content-type", b"application/json") in response.headers.raw
    assert all(line.endswith("\n") for line in response.json()["summary"])


async def test_a_preview_changes_nothing(
    client: httpx.AsyncClient, topics: MemoryTopicAdmin
) -> None:
    response = await post(client, "/commit?preview=true", content=FEATURES)
    entries = {(e["action"], e["title"]): e for e in response.json()["plan"]["entries"]}
    table = entries["create", "Profiles: table"]
    assert (table["kind"], table["entity"], table["reason"]) == (
        "job",
        "Profiles",
        "dataset Profiles is new",
    )
    assert (
        "+ create job of Profiles: table (dataset Profiles is new)\n" in response.json()["summary"]
    )
    assert not topics.partition_counts
    assert (await client.get(f"{API}/xray")).json() == {"datasets": [], "featuresets": []}


async def test_a_malformed_commit_is_400_and_a_too_large_one_413(
    client: httpx.AsyncClient, topics: MemoryTopicAdmin
) -> None:
    malformed = await post(client, "/commit", content=b"garbage")
    is_error(
        malformed,
        400,
        "the body is not a commit of the Fennel client; send the bytes of a SyncRequest",
        "commit-malformed",
    )

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 10_000

    for content in (b"x" * 300_000, unannounced()):
        large = await post(client, "/commit", content=content)
        assert (large.status_code, large.headers["x-fennel-error-code"]) == (413, "body-too-large")
        assert "200000 bytes" in large.text
    assert not topics.partition_counts


async def test_init_creates_an_empty_branch_and_refuses_taken_or_invalid_names(
    client: httpx.AsyncClient,
) -> None:
    assert await branches(client) == ["main"]
    assert (await post(client, "/init", "test-branch", json={})).status_code == 200
    assert (await post(client, "/init", "a/b_c.d-e")).status_code == 200
    is_error(
        await post(client, "/init", "test-branch", json={}),
        500,
        "can not create branch `test-branch`: already exists",
        "branch-exists",
    )
    is_error(
        await post(client, "/init", "main", json={"clone_from": "main"}),
        500,
        "can not create branch `main`: already exists",
    )
    assert (await post(client, "/init", "no spaces", json={})).headers[
        "x-fennel-error-code"
    ] == "branch-name"
    assert await branches(client) == ["main", "test-branch", "a/b_c.d-e"]


async def test_a_clone_starts_with_the_assets_of_its_source_and_then_is_independent(
    client: httpx.AsyncClient, topics: MemoryTopicAdmin
) -> None:
    await post(client, "/commit", content=FEATURES)
    made = set(topics.partition_counts)
    assert (await post(client, "/init", "copy", json={"clone_from": "main"})).status_code == 200
    assert set(topics.partition_counts) == made, "a clone is more references, no copies"
    assert (await client.get(f"{API}/xray", headers=on("copy"))).json() == (
        await client.get(f"{API}/xray")
    ).json()
    await post(client, "/commit", "main", content=recorded("operators"))
    names = {
        d["name"] for d in (await client.get(f"{API}/xray", headers=on("copy"))).json()["datasets"]
    }
    assert names == {"Profiles", "Items"}
    assert made < set(topics.partition_counts), "what the clone holds stays"
    is_error(
        await post(client, "/init", "x", json={"clone_from": "random"}),
        500,
        "can not clone from branch `random`: does not exist",
    )


async def test_a_deleted_branch_is_gone_and_main_stays(client: httpx.AsyncClient) -> None:
    await post(client, "/init", "test-branch", json={})
    assert (await post(client, "/delete", "test-branch", json={})).json() == {}
    gone = "branch `test-branch` does not exist"
    is_error(await post(client, "/delete", "test-branch", json={}), 500, gone, "branch-not-found")
    is_error(await post(client, "/commit", "test-branch", content=FEATURES), 500, gone)
    is_error(await client.get(f"{API}/xray", headers=on("test-branch")), 500, gone)
    is_error(
        await post(client, "/delete", json={}), 400, "Cannot delete the main branch.", "branch-main"
    )
    assert await branches(client) == ["main"]


async def test_secrets_are_set_read_changed_and_removed_under_names_with_dots(
    client: httpx.AsyncClient,
) -> None:
    path = f"{API}/secret/chat.openai.com"
    missing = "Failed to get user secret mapping: secret `chat.openai.com` does not exist"
    is_error(await client.get(path), 500, missing, "secret-not-found")
    assert (await client.patch(path, json={"value": "x"})).status_code == 404
    assert (await client.post(path, json={"value": "one"})).json() == {}
    assert (await client.post(path, json={"value": "two"})).json() == {}, "adding again overwrites"
    assert (await client.get(path, headers=on("some other branch"))).json() == {"value": "two"}
    assert (await client.patch(path, json={"value": "three"})).json() == {}
    assert (await client.get(path)).json() == {"value": "three"}
    assert (
        await client.get(path, headers={"Authorization": "Bearer dev-else"})
    ).status_code == 500, "each workspace has its own"
    assert (await client.request("DELETE", path, json={})).json() == {}
    is_error(await client.get(path), 500, missing)
    assert (await client.request("DELETE", path, json={})).status_code == 404


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"value": 3}', b"{}", b'{"value": "x", "ttl": 3}'])
async def test_a_secret_with_any_other_body_than_a_string_value_is_refused(
    client: httpx.AsyncClient, body: bytes
) -> None:
    response = await client.post(f"{API}/secret/name", content=body)
    assert (response.status_code, response.headers["x-fennel-error-code"]) == (
        400,
        "json-malformed",
    )


async def test_routes_require_a_token_and_workspaces_the_administrators(
    client: httpx.AsyncClient,
) -> None:
    for path in ("/branch/list", "/xray", "/lineage", "/secret/x"):
        assert (await client.get(f"{API}{path}", headers={"Authorization": ""})).status_code == 401
        assert (
            await client.get(f"{API}{path}", headers={"Authorization": "Bearer wrong"})
        ).status_code == 401
    assert (await client.get(f"{API}/workspaces")).status_code == 401
    assert (await client.get(f"{API}/workspaces", headers=AS_ADMIN)).status_code == 200


async def test_dead_letters_are_listed_for_the_administrator(client: httpx.AsyncClient) -> None:
    path = f"{API}/operations/dead_letters"
    assert (await client.get(path)).status_code == 401
    listed = await client.get(path, headers=AS_ADMIN)
    assert (listed.status_code, listed.json()) == (200, {"dead_letters": []})


async def issued(client: httpx.AsyncClient, **fields: object) -> dict[str, str]:
    """Issue a token of the workspace `shop` and return the headers of its requests."""
    made = (await client.post(f"{API}/tokens", json=fields)).json()
    return {"Authorization": f"Bearer {made['token']}"}


ALLOWED = {
    ("GET", "/branch/list"): {"query", "commit", "admin"},
    ("GET", "/xray"): {"query", "commit", "admin"},
    ("GET", "/lineage"): {"query", "commit", "admin"},
    ("POST", "/tokens/read"): {"query", "commit", "admin"},
    ("POST", "/commit"): {"commit", "admin"},
    ("POST", "/init"): {"commit", "admin"},
    ("POST", "/delete"): {"commit", "admin"},
    ("GET", "/sources"): {"query", "commit", "admin"},
    ("POST", "/sources/pause"): {"commit", "admin"},
    ("POST", "/sources/resume"): {"commit", "admin"},
    ("POST", "/sources/test"): {"commit", "admin"},
    ("POST", "/sources/rewind"): {"admin"},
    ("GET", "/dead_letters"): {"commit", "admin"},
    ("GET", "/dead_letters/rows"): {"commit", "admin"},
    ("POST", "/dead_letters/replay"): {"commit", "admin"},
    ("POST", "/dead_letters/drop"): {"admin"},
    ("GET", "/secret/x"): {"admin"},
    ("POST", "/secret/x"): {"admin"},
    ("PATCH", "/secret/x"): {"admin"},
    ("DELETE", "/secret/x"): {"admin"},
    ("GET", "/tokens"): {"admin"},
    ("GET", "/audit"): {"admin"},
    ("POST", "/tokens"): {"admin"},
    ("POST", "/tokens/none/rotate"): {"admin"},
    ("DELETE", "/tokens/none"): {"admin"},
}
"""Roles of a workspace that may make a call; an operator's token may make none of them."""
OF_OPERATORS = (
    *(("GET", "/workspaces"), ("POST", "/workspaces"), ("DELETE", "/workspaces/none")),
    *(("GET", "/workspaces/shop/tokens"), ("POST", "/workspaces/shop/tokens")),
    *(("POST", "/workspaces/shop/tokens/none/rotate"), ("DELETE", "/workspaces/shop/tokens/none")),
    ("GET", "/operations/audit"),
    *(("GET", "/operations/tokens"), ("POST", "/operations/tokens")),
    *(("POST", "/operations/tokens/none/rotate"), ("DELETE", "/operations/tokens/none")),
    *(("GET", "/operations/retained"), ("POST", "/operations/purge")),
)


async def test_changes_are_in_the_audit_log_with_who_what_and_outcome(
    client: httpx.AsyncClient,
) -> None:
    ci = await issued(client, role="commit", name="ci")
    assert (await client.post(f"{API}/commit", headers=ci, content=b"garbage")).status_code == 400
    assert (await client.post(f"{API}/commit?preview=true", content=FEATURES)).status_code == 200
    await client.post(f"{API}/secret/key", json={"value": "canary-value"})
    await client.get(f"{API}/secret/other")
    await client.post(f"{API}/workspaces", json={"name": "new"}, headers=AS_ADMIN)
    events = (await client.get(f"{API}/operations/audit", headers=AS_ADMIN)).json()["events"]
    assert "canary-value" not in str(events)
    ended = [
        (e["workspace"], e["actor"].partition(" ")[0], e["action"], e["subject"], e["outcome"])
        for e in reversed(events)
        if e["outcome"] != "started"
    ]
    assert ended == [
        ("shop", "development", "issue-token", "role commit, name ci", "done"),
        ("shop", "token", "commit", "branch main", "commit-malformed"),
        ("shop", "development", "set-secret", "secret key", "done"),
        ("shop", "development", "read-secret", "secret other", "secret-not-found"),
        (None, "FENNEL_ADMIN_TOKEN", "create-workspace", "workspace new", "done"),
    ]
    assert len(events) == 2 * len(ended)
    own = (await client.get(f"{API}/audit?n=2")).json()["events"]
    assert [e["action"] for e in own] == ["read-secret", "read-secret"]
    older = (await client.get(f"{API}/audit?before={own[-1]['id']}")).json()["events"]
    assert len(older) == 6


async def test_orders_about_sources_are_audited_and_name_what_is_wrong(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.get(f"{API}/sources?branch=none")).json() == {"sources": []}
    for order in ("pause", "resume", "test"):
        refused = await client.post(f"{API}/sources/{order}", json={"source": "shop/orders"})
        assert (refused.status_code, refused.headers["x-fennel-error-code"]) == (
            404,
            "source-unknown",
        )
        assert "`shop/orders`" in refused.text
    for rows_per_s, code in ((5, "source-unknown"), (0, "source-limit"), ("5", "json-malformed")):
        body = {"source": "shop/orders", "rows_per_s": rows_per_s}
        refused = await client.post(f"{API}/sources/limit", json=body)
        assert refused.headers["x-fennel-error-code"] == code
    events = (await client.get(f"{API}/audit")).json()["events"]
    assert [
        (e["action"], e["subject"], e["outcome"]) for e in events if e["outcome"] != "started"
    ] == [
        ("limit-source", "source shop/orders, limit 0 rows/s", "source-limit"),
        ("limit-source", "source shop/orders, limit 5 rows/s", "source-unknown"),
        ("test-source", "source shop/orders", "source-unknown"),
        ("resume-source", "source shop/orders", "source-unknown"),
        ("pause-source", "source shop/orders", "source-unknown"),
    ]


async def test_orders_about_dead_letters_are_audited_and_name_what_is_wrong(
    client: httpx.AsyncClient,
) -> None:
    letters = f"{API}/dead_letters"
    replayed = await client.post(f"{letters}/replay", json={"reason": "canary", "dry_run": True})
    assert (replayed.status_code, replayed.json()["rows"]) == (200, 0)
    ordered = await client.post(f"{letters}/replay", json={"sink": "hooks/rows"})
    assert (ordered.status_code, ordered.json()["ordered"]) == (200, 0)
    assert (await client.get(f"{letters}/rows?dataset=Users")).json() == {"rows": [], "next": None}
    for path, body, code in (
        ("drop", {}, "dead-letters-all"),
        ("drop", {"since": "yesterday", "all": True}, "dead-letter-filter"),
        ("drop", {"all": "yes"}, "json-malformed"),
        ("replay", {"all": True}, "json-malformed"),
        ("replay", {"dataset": 1}, "dead-letter-filter"),
        ("drop", {"sink": 1}, "dead-letter-filter"),
    ):
        refused = await client.post(f"{letters}/{path}", json=body)
        assert (refused.status_code, refused.headers["x-fennel-error-code"]) == (400, code)
    assert (await client.get(f"{letters}/rows?after=x")).status_code == 400
    events = (await client.get(f"{API}/audit")).json()["events"]
    ended = [(e["action"], e["subject"], e["outcome"]) for e in events if e["outcome"] != "started"]
    assert ended == [
        ("drop-dead-letters", "dead letters", "dead-letters-all"),
        ("show-dead-letters", "dead letters, dataset Users", "done"),
        ("replay-dead-letters", "dead letters, sink hooks/rows", "done"),
        ("replay-dead-letters", "dead letters, reason given, dry run", "done"),
    ]


async def test_each_role_may_make_its_own_calls_only(client: httpx.AsyncClient) -> None:
    roles = ("query", "log", "commit", "admin")
    tokens = {role: await issued(client, role=role, name=role) for role in roles}
    operator = (await client.post(f"{API}/operations/tokens", headers=AS_ADMIN)).json()
    tokens["operator"] = {"Authorization": f"Bearer {operator['token']}"}
    allowed: dict[tuple[str, str], set[str]] = {}
    for method, path in (*ALLOWED, *OF_OPERATORS):
        for role, headers in tokens.items():
            response = await client.request(
                method, f"{API}{path}", headers=headers | on("none"), content=b"{}"
            )
            code = response.headers.get("x-fennel-error-code")
            if code not in {"role-insufficient", "not-administrator"}:
                allowed.setdefault((method, path), set()).add(role)
            else:
                assert response.status_code == (403 if code == "role-insufficient" else 401)
    assert allowed == ALLOWED | {key: {"operator"} for key in OF_OPERATORS}


async def test_a_refusal_names_token_role_and_the_roles_that_may(
    client: httpx.AsyncClient,
) -> None:
    headers = await issued(client, role="query", name="dashboard")
    refused = await client.get(f"{API}/secret/x", headers=headers)
    assert refused.status_code == 403
    assert "(dashboard) has the role `query`, and this call needs `admin`" in refused.text


async def test_tokens_are_listed_rotated_and_revoked(client: httpx.AsyncClient) -> None:
    made = (
        await client.post(f"{API}/tokens", json={"role": "log", "name": "door", "lifetime_s": 60})
    ).json()
    listed = (await client.get(f"{API}/tokens")).json()["tokens"]
    assert [(t["id"], t["name"], t["role"], t["expires_at"]) for t in listed] == [
        (made["id"], "door", "log", made["expires_at"])
    ]
    assert made["token"] not in str(listed)
    rotated = (await client.post(f"{API}/tokens/{made['id']}/rotate", json={})).json()
    old = {"Authorization": f"Bearer {made['token']}"}
    assert (await client.post(f"{API}/tokens/read", headers=old)).headers[
        "x-fennel-error-code"
    ] == "token-expired"
    assert (await client.delete(f"{API}/tokens/{rotated['id']}")).status_code == 200
    missing = await client.delete(f"{API}/tokens/{rotated['id']}")
    assert (missing.status_code, missing.headers["x-fennel-error-code"]) == (
        404,
        "token-not-found",
    )


@pytest.mark.parametrize(
    "body",
    [{"role": "operator"}, {"role": "reader"}, {"name": "x" * 101}, {"lifetime_s": -1}],
)
async def test_an_impossible_token_is_refused(
    client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    refused = await client.post(f"{API}/tokens", json=body)
    assert (refused.status_code, refused.headers["x-fennel-error-code"]) == (400, "token-invalid")


@pytest.mark.parametrize("body", [{"role": 1}, {"lifetime_s": "1"}, {"lifetime_s": True}])
async def test_a_token_field_of_another_type_is_refused(
    client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    refused = await client.post(f"{API}/tokens", json=body)
    assert (refused.status_code, refused.headers["x-fennel-error-code"]) == (400, "json-malformed")


async def test_every_route_is_503_while_the_database_is_out_of_reach(
    client: httpx.AsyncClient, database: str
) -> None:
    await client.get(f"{API}/branch/list")  # its token is cached from here on
    calls = (
        ("GET", "/branch/list", None, None),
        ("GET", "/secret/some", None, None),
        ("POST", "/secret/some", {"value": "x"}, None),
        ("GET", "/workspaces", None, AS_ADMIN),
        ("POST", "/workspaces", {"name": "new"}, AS_ADMIN),
        ("GET", "/lineage", None, None),
        ("GET", "/expectations", None, None),
        ("GET", "/operations/drills", None, AS_ADMIN),
        ("GET", "/operations/integrity", None, AS_ADMIN),
        ("GET", "/operations/dead_letters", None, AS_ADMIN),
    )
    with refusing(database):
        responses = await asyncio.gather(
            *(
                client.request(m, f"{API}{path}", json=body, headers=who)
                for m, path, body, who in calls
            )
        )
    found = [(r.status_code, r.headers["x-fennel-error-code"]) for r in responses]
    assert found == [(503, "database-unavailable")] * len(calls)


async def test_a_call_whose_commit_had_no_response_says_that_it_may_be_done(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise TransactionOutcomeUnknown("the response to COMMIT was lost")

    monkeypatch.setattr("fennel_core.definition.routes.branches.delete_branch", lost)
    response = await post(client, "/delete")
    assert response.status_code == 503
    assert response.headers["x-fennel-error-code"] == "call-outcome-unknown"
    assert "read what it changes before you send it again" in response.text
    events = (await client.get(f"{API}/audit")).json()["events"]
    assert events[0]["outcome"] == "transaction-outcome-unknown"


async def test_a_deleted_workspace_leaves_no_assets_and_no_valid_token(
    client: httpx.AsyncClient, topics: MemoryTopicAdmin
) -> None:
    made = await client.post(f"{API}/workspaces", json={"name": "mill"}, headers=AS_ADMIN)
    token = {"Authorization": f"Bearer {made.json()['token']}"}
    assert (await client.post(f"{API}/commit", content=FEATURES, headers=token)).status_code == 200
    await post(client, "/commit", content=FEATURES)
    assert {name.split(".")[0] for name in topics.partition_counts} == {"mill", "shop"}
    more = await client.post(f"{API}/workspaces/mill/tokens", headers=AS_ADMIN)
    assert (
        await client.get(
            f"{API}/branch/list", headers={"Authorization": f"Bearer {more.json()['token']}"}
        )
    ).status_code == 200

    assert (
        await client.post(f"{API}/workspaces", json={"name": "mill"}, headers=AS_ADMIN)
    ).status_code == 409
    assert (await client.delete(f"{API}/workspaces/mill", headers=AS_ADMIN)).json() == {
        "name": "mill",
        "gone": True,
    }
    assert {name.split(".")[0] for name in topics.partition_counts} == {"shop"}
    listed = (await client.get(f"{API}/workspaces", headers=AS_ADMIN)).json()["workspaces"]
    assert [w["name"] for w in listed] == ["shop"]
    assert (await client.delete(f"{API}/workspaces/mill", headers=AS_ADMIN)).status_code == 404


async def test_unknown_paths_are_404_and_invalid_options_422(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{API}/nothing")).status_code == 404
    assert (await client.put(f"{API}/workspaces/", headers=AS_ADMIN)).status_code == 404
    assert (await client.get(f"{API}/commit")).status_code == 405
    assert (await post(client, "/commit?preview=maybe", content=FEATURES)).status_code == 422


async def test_requests_are_counted_by_route_and_never_by_the_names_in_them(
    client: httpx.AsyncClient,
) -> None:
    await client.post(f"{API}/secret/my-very-own-name", json={"value": "x"})
    await client.get(f"{API}/nothing-there")
    text = (await client.get("/metrics")).text
    assert 'fennel_request_counter{method="POST",path="secret/{name:path}",status="200"}' in text
    assert 'path="unknown",status="404"' in text
    assert "my-very-own-name" not in text


async def test_a_value_that_cannot_be_stored_is_refused(client: httpx.AsyncClient) -> None:
    for response in (
        await client.post(f"{API}/secret/na%00me", json={"value": "x"}),
        await post(client, "/init", "new", json={"clone_from": "ma\x00in"}),
    ):
        assert (response.status_code, response.headers["x-fennel-error-code"]) == (
            400,
            "value-unusable",
        )


async def test_xray_returns_the_selected_properties(client: httpx.AsyncClient) -> None:
    await post(client, "/commit", content=FEATURES)
    everything = (await client.get(f"{API}/xray")).json()
    assert [d["name"] for d in everything["datasets"]] == ["Profiles", "Items"]
    (one,) = (
        await client.get(f"{API}/xray?datasets=Items&properties=version,is_source_dataset")
    ).json()["datasets"]
    assert one == {"name": "Items", "version": 1, "is_source_dataset": True}
    some = (await client.get(f"{API}/xray?featuresets=Request,UserFeatures&properties=name")).json()
    assert some == {"datasets": [], "featuresets": [{"name": "Request"}, {"name": "UserFeatures"}]}


async def test_lineage_leads_from_sources_to_features(client: httpx.AsyncClient) -> None:
    await post(client, "/commit", content=FEATURES)
    graph = (await client.get(f"{API}/lineage")).json()
    ids = {n["id"] for n in graph["nodes"]}
    assert {"dataset:Profiles", "source:app/Profiles", "featureset:UserFeatures"} <= ids
    assert {"from": "source:app/Profiles", "to": "dataset:Profiles"} in graph["edges"]
    assert all(e["from"] in ids and e["to"] in ids for e in graph["edges"])


PASSWORD = "hunter2-in-a-connector"  # noqa: S105  # a fixed value of a test. the subject of these tests


def with_password(message: services_pb2.SyncRequest) -> None:
    """Add a connector with a password, and two with the password inside a longer text."""
    mysql = message.extdbs.add(name="shop-db").mysql
    mysql.host, mysql.port, mysql.database = "my.example", 3306, "shop"
    mysql.user, mysql.password = "reader", PASSWORD
    mysql.jdbc_params = f"useSSL=true&password={PASSWORD}"
    kafka = message.extdbs.add(name="events").kafka
    kafka.bootstrap_servers = "kafka.example:9092"
    kafka.sasl_jaas_config = f'PlainLoginModule required password="{PASSWORD}";'


async def test_a_plain_password_of_a_connector_is_in_no_table(
    client: httpx.AsyncClient, database: str
) -> None:

    body = changed(FEATURES, with_password)
    assert body.count(PASSWORD.encode()) == 3
    sent = await post(client, "/commit", content=body)
    assert sent.status_code == 200, sent.text
    again = await post(client, "/commit", content=body)
    assert "nothing to do" in again.text, "it is the same commit"
    found: dict[str, list[str]] = {}
    async with await psycopg.AsyncConnection.connect(database) as connection:
        tables = await connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        for (table,) in await tables.fetchall():
            rows = await connection.execute(
                sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))
            )
            found[table] = [repr(row) for row in await rows.fetchall()]
    assert any("sealed:" in row for row in found["commit"]), "the connector itself is stored"
    assert {t for t, rows in found.items() if any(PASSWORD in row for row in rows)} == set()


async def test_after_a_change_of_the_key_stored_commits_need_the_old_one_no_more(
    client: httpx.AsyncClient, database: str, tmp_path: Path
) -> None:
    body = changed(FEATURES, with_password)
    assert (await post(client, "/commit", content=body)).status_code == 200
    make_key_file(tmp_path / "new")
    new, old = (tmp_path / "new").read_text(), (tmp_path / "key").read_text()
    (tmp_path / "key").write_text(new + old)
    async with pool(database, name="test", size=2) as connections:
        done = await reseal(connections, Sealer.from_file(tmp_path / "key"))
        assert (done.secrets, done.commits) == (0, 1)
        async with connections.connection() as connection:
            cursor = await connection.execute("SELECT request, merged FROM commit")
            ((request, merged),) = await cursor.fetchall()
    only_new = Sealer.from_file(tmp_path / "new")
    for stored in (request, merged):
        assert isinstance(stored, bytes)
        assert b"sealed:" in stored
        reseal_body(stored, SHOP, only_new)  # opens each secret
