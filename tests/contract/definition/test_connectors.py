"""Stored connectors over the API, for `Postgres.get` of the real client and a real Postgres."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from fennel_core.bank.postgres import LOCK
from fennel_core.definition.commit_checker import CheckedRequest, CommitChecker
from fennel_core.definition.commit_request import CommitRequest
from fennel_core.definition.routes import API
from tests.support.executors import commit_of
from tests.support.guarded_postgres import GuardedPostgres, guarded_postgres
from tests.support.polling import eventually

__all__ = ["guarded_postgres"]
DEFINITIONS = """
from datetime import datetime

from fennel.connectors import Postgres, source
from fennel.datasets import dataset, field
from fennel.lib import meta

postgres = {connector}


@source(postgres.table("orders", cursor="id"), every="5s", disorder="14d", cdc="append")
@meta(owner="tests@example.com")
@dataset
class Order:
    id: int
    city: str
    at: datetime = field(timestamp=True)
"""
BANK = {"Authorization": "Bearer dev-bank"}
RIGHT, WRONG, NEXT = "the-right-word", "a-wrong-word", "the-next-word"


async def definitions(folder: Path, connector: str = 'Postgres.get("shop")') -> bytes:
    file = folder / "orders.py"
    file.write_text(DEFINITIONS.format(connector=connector))
    return await commit_of(str(file), folder=folder)


async def order(client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await client.post(f"{API}/connectors/{path}", json={"connector": "shop", **body})


def code(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.headers.get("x-fennel-error-code")


async def add(client: httpx.AsyncClient, shop: GuardedPostgres, word: str, **more: Any) -> Any:
    given = shop.properties | {"password": word} | more.pop("properties", {})
    return await order(client, "add", kind="postgres", properties=given, **more)


async def test_a_commit_names_the_connector_that_is_not_stored_and_the_command_that_adds_it(
    client: httpx.AsyncClient, guarded_postgres: GuardedPostgres, tmp_path: Path
) -> None:
    body = await definitions(tmp_path)
    for path in ("/commit?preview=true", "/commit"):
        refused = await client.post(f"{API}{path}", content=body)
        assert code(refused) == (500, "connector-unknown")
        assert "connector `shop` of dataset `Order`" in refused.text
        assert "fennel-core connector add shop postgres" in refused.text
    await client.post(f"{API}/init", headers=BANK, json={})
    guarded_postgres.set_password(RIGHT)
    assert (await client.post(f"{API}/workspaces")).status_code != 200
    unknown = await client.get(f"{API}/connectors/shop")
    assert code(unknown) == (404, "connector-unknown")


async def test_a_connector_is_used_rotated_and_removed_and_no_other_workspace_sees_it(
    client: httpx.AsyncClient,
    guarded_postgres: GuardedPostgres,
    database: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = guarded_postgres
    shop.set_password(RIGHT)
    refused = await add(client, shop, WRONG)
    assert code(refused) == (409, "connector-unreachable")
    assert "password authentication failed" in refused.text
    assert (await client.get(f"{API}/connectors")).json() == {"connectors": []}
    assert (await add(client, shop, RIGHT)).status_code == 200
    assert code(await add(client, shop, RIGHT)) == (409, "connector-exists")
    body = await definitions(tmp_path)
    assert (await client.post(f"{API}/commit", content=body)).status_code == 200
    shown = (await client.get(f"{API}/connectors/shop")).json()
    assert shown["used_by"] == ["the source of dataset `Order` in branch `main`"]
    assert shown["properties"]["password"] == "(set)"  # noqa: S105  # that there is one
    listed = (await client.get(f"{API}/sources")).json()["sources"]
    assert [each["source"] for each in listed] == ["shop/orders"]

    shop.set_password(NEXT)
    broken = await order(client, "test")
    assert code(broken) == (409, "connector-unreachable")
    wrong = await order(client, "rotate", properties={"password": WRONG})
    assert code(wrong) == (409, "connector-unreachable")
    assert "Nothing was changed" in wrong.text
    assert (await client.get(f"{API}/connectors/shop")).json()["changes"] == 1
    done = await order(client, "rotate", properties={"password": NEXT})
    assert done.json()["used_by"] == shown["used_by"]
    assert (await order(client, "test")).json()["checked"] == shown["used_by"]
    assert (await client.get(f"{API}/connectors/shop")).json()["changes"] == 2
    forced = await order(client, "rotate", properties={"password": WRONG}, unchecked=True)
    assert forced.json()["checked"] == []
    assert code(await order(client, "test")) == (409, "connector-unreachable")
    await order(client, "rotate", properties={"password": NEXT})

    assert code(await order(client, "remove")) == (409, "connector-in-use")
    empty = (await client.get(f"{API}/connectors", headers=BANK)).json()
    assert empty == {"connectors": []}
    for path in ("rotate", "remove", "test"):
        given = {"properties": {"password": NEXT}} if path == "rotate" else {}
        other = await client.post(
            f"{API}/connectors/{path}", headers=BANK, json={"connector": "shop"} | given
        )
        assert code(other) == (404, "connector-unknown")
    assert code(await client.post(f"{API}/commit", headers=BANK, content=body)) == (
        500,
        "connector-unknown",
    )

    with psycopg.connect(database) as connection:
        [stored] = connection.execute("SELECT message FROM connector").fetchall()
        events = connection.execute("SELECT action, subject FROM audit_event").fetchall()
    for word in (RIGHT, WRONG, NEXT):
        assert word.encode() not in stored[0]
        assert word not in f"{events} {shown} {broken.text} {wrong.text} {caplog.text}"
    assert {action for action, _ in events} >= {
        *("set-connector", "rotate-connector", "test-connector", "delete-connector")
    }


async def test_a_commit_is_refused_whose_connector_was_removed_while_it_was_checked(
    client: httpx.AsyncClient,
    guarded_postgres: GuardedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guarded_postgres.set_password(RIGHT)
    await add(client, guarded_postgres, RIGHT)
    check = CommitChecker.check

    async def slow_check(checker: CommitChecker, request: CommitRequest) -> CheckedRequest:
        valid = await check(checker, request)
        assert (await order(client, "remove")).status_code == 200, "no commit is stored yet"
        return valid

    monkeypatch.setattr(CommitChecker, "check", slow_check)
    refused = await client.post(f"{API}/commit", content=await definitions(tmp_path))
    assert code(refused) == (409, "connector-removed")
    assert "fennel-core connector add shop postgres" in refused.text
    assert (await client.get(f"{API}/sources")).json() == {"sources": []}


async def test_a_removal_waits_for_a_switch_under_way_and_sees_what_it_uses(
    client: httpx.AsyncClient, guarded_postgres: GuardedPostgres, database: str, tmp_path: Path
) -> None:
    guarded_postgres.set_password(RIGHT)
    await add(client, guarded_postgres, RIGHT)
    body = await definitions(tmp_path)
    assert (await client.post(f"{API}/commit", content=body)).status_code == 200
    with psycopg.connect(database) as switch, psycopg.connect(database, autocommit=True) as seen:
        open_commits = "SELECT FROM commit WHERE finished_at IS NULL"
        await eventually(lambda: not seen.execute(open_commits).fetchall())
        [(workspace,)] = seen.execute("SELECT workspace FROM connector").fetchall()
        seen.execute("UPDATE branch SET target = NULL WHERE workspace = %s", (workspace,))
        switch.execute(LOCK, (workspace,))
        switch.execute("UPDATE branch SET target = serving WHERE workspace = %s", (workspace,))
        removal = asyncio.create_task(order(client, "remove"))

        async def is_settled() -> bool:
            waits = seen.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()
            return removal.done() or bool(waits)

        await eventually(is_settled)
        switch.commit()
        refused = await removal
    assert code(refused) == (409, "connector-in-use")
    assert "the source of dataset `Order` in branch `main`" in refused.text


async def test_code_and_store_agree_on_a_name(
    client: httpx.AsyncClient, guarded_postgres: GuardedPostgres, tmp_path: Path
) -> None:
    shop = guarded_postgres
    shop.set_password(RIGHT)
    given = shop.properties
    in_code = (
        'Postgres(name="shop", host="{host}", port={port}, db_name="{db_name}", '
        f'username="{{username}}", password="{RIGHT}")'
    )
    await add(client, shop, RIGHT)
    other = await definitions(tmp_path, in_code.format(**given | {"host": "elsewhere"}))
    refused = await client.post(f"{API}/commit", content=other)
    assert "connector `shop` of dataset `Order` is defined in the code" in refused.text
    assert '`Postgres.get("shop")`' in refused.text
    same = await definitions(tmp_path, in_code.format(**given))
    assert (await client.post(f"{API}/commit", content=same)).status_code == 200
    assert (await order(client, "remove")).status_code == 200
    moved = await add(client, shop, RIGHT, properties={"db_name": "template1"}, unchecked=True)
    assert code(moved) == (409, "connector-redefined")
    assert (await add(client, shop, RIGHT)).status_code == 200


async def test_a_connector_in_use_leads_elsewhere_only_if_the_caller_says_so(
    client: httpx.AsyncClient, guarded_postgres: GuardedPostgres, tmp_path: Path
) -> None:
    shop = guarded_postgres
    shop.set_password(RIGHT)
    await add(client, shop, RIGHT)
    wrong_kind = await definitions(tmp_path, 'Postgres.get("shop")')
    assert (await client.post(f"{API}/commit", content=wrong_kind)).status_code == 200
    localhost = {"host": "localhost"}
    refused = await add(client, shop, RIGHT, properties=localhost, replace=True)
    assert code(refused) == (409, "connector-moves")
    assert "Postgres `127.0.0.1:" in refused.text
    assert "add --moved, else add it by another name" in refused.text
    moved = await add(client, shop, RIGHT, properties=localhost, replace=True, moved=True)
    assert moved.status_code == 200, moved.text
    kafka = {"bootstrap_servers": "127.0.0.1:1", "security_protocol": "PLAINTEXT"}
    another = await order(
        client, "add", kind="kafka", properties=kafka, replace=True, moved=True, unchecked=True
    )
    assert code(another) == (409, "connector-moves")
    assert "; add it by another name" in another.text
    assert "--moved" not in another.text


async def test_a_name_of_another_kind_is_refused_with_both_kinds(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    kafka = {"bootstrap_servers": "127.0.0.1:1", "security_protocol": "PLAINTEXT"}
    stored = await order(client, "add", kind="kafka", properties=kafka, unchecked=True)
    if stored.status_code != 200:
        raise AssertionError(stored.text)
    body = await definitions(tmp_path)
    refused = await client.post(f"{API}/commit", content=body)
    assert code(refused) == (500, "connector-unknown")
    assert "is stored as one of Kafka, and dataset `Order` uses it as one of Postgres" in (
        refused.text
    )
    assert (await order(client, "remove")).status_code == 200
    assert code(await order(client, "remove")) == (404, "connector-unknown")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("add", {"kind": "kafka"}, "`properties` is required"),
        ("add", {"kind": "redis", "properties": {}}, "no kind `redis`"),
        ("rotate", {"properties": {}, "replace": True}, "unknown field `replace`"),
    ],
)
async def test_what_is_no_order_is_400(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], says: str
) -> None:
    refused = await order(client, path, **body)
    assert refused.status_code == 400
    assert says in refused.text
