"""What destroys accepted rows is refused until it is confirmed: commits and purges over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import psycopg
import pytest

from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.vocab.ids import Millis
from tests.contract.definition.conftest import ADMIN
from tests.support.definition_world import recorded
from tests.support.polling import eventually

API = "/api/v1"
FEATURES, OPERATORS = recorded("featuresets"), recorded("operators")
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}
DAY = Millis(86_400_000)


class TestWithoutAGracePeriod:
    async def test_a_commit_that_would_destroy_rows_is_refused_and_changes_nothing(
        self, client: httpx.AsyncClient, topics: MemoryTopicAdmin, database: str
    ) -> None:
        await send(client, FEATURES)
        receive_rows(topics)
        before = await everything(client, topics, database)
        refused = await client.post(f"{API}/commit?allow_data_loss=false", content=OPERATORS)
        assert refused.status_code == 409
        assert refused.headers["x-fennel-error-code"] == "data-loss-not-confirmed"
        assert "rows lost: those of at most 7 messages" in refused.text
        assert "allow_data_loss=true" in refused.text
        assert await everything(client, topics, database) == before

    async def test_the_same_commit_passes_when_the_loss_is_confirmed(
        self, client: httpx.AsyncClient, topics: MemoryTopicAdmin
    ) -> None:
        await send(client, FEATURES)
        endpoints = receive_rows(topics)
        refused = await client.post(f"{API}/commit?allow_data_loss=false", content=OPERATORS)
        assert refused.status_code == 409
        await send(client, OPERATORS, "true")
        await eventually(lambda: not endpoints & topics.partition_counts.keys())
        names = {d["name"] for d in (await client.get(f"{API}/xray")).json()["datasets"]}
        assert "Profiles" not in names

    async def test_endpoints_without_rows_need_no_confirmation(
        self, client: httpx.AsyncClient
    ) -> None:
        await send(client, FEATURES)
        await send(client, OPERATORS, "false")


class TestWithAGracePeriod:
    @pytest.fixture
    def grace_ms(self) -> Millis:
        return DAY

    async def test_retained_assets_are_listed_for_the_administrator(
        self, client: httpx.AsyncClient, topics: MemoryTopicAdmin
    ) -> None:
        assert await retained(client) == []
        await send(client, FEATURES)
        endpoints = receive_rows(topics)
        await send(client, OPERATORS, "false")
        rows = await retained(client)
        assert {row["workspace"] for row in rows} == {"shop"}
        assert {row["asset"] for row in rows if row["destroyed_after"] is None} == endpoints
        (table,) = (r for r in rows if (r["kind"], r["title"]) == ("job", "Profiles: table"))
        assert table["released_at"] < table["destroyed_after"]
        assert (await client.get(f"{API}/operations/retained")).status_code == 401

    async def test_a_purge_destroys_rows_only_if_that_is_confirmed(
        self, client: httpx.AsyncClient, topics: MemoryTopicAdmin, database: str
    ) -> None:
        await send(client, FEATURES)
        endpoints = receive_rows(topics)
        await send(client, OPERATORS, "false")
        before = await everything(client, topics, database)
        ids = [row["asset"] for row in await retained(client)]
        refused = await purge(client, workspace="shop", assets=ids)
        assert (refused.status_code, refused.headers["x-fennel-error-code"]) == (
            409,
            "data-loss-not-confirmed",
        )
        assert refused.text.count("rows lost: those of at most 7 messages") == len(endpoints)
        assert await everything(client, topics, database) == before
        harmless = sorted(set(ids) - endpoints)
        assert (await purge(client, workspace="shop", assets=harmless)).json() == {
            "purged": harmless
        }
        assert {row["asset"] for row in await retained(client)} == endpoints
        rest = await purge(client, workspace="shop", assets=ids, allow_data_loss=True)
        assert set(rest.json()["purged"]) == endpoints
        assert await retained(client) == []

    async def test_a_purge_takes_only_what_is_retained_in_the_workspace(
        self, client: httpx.AsyncClient, topics: MemoryTopicAdmin
    ) -> None:
        await send(client, FEATURES)
        live = sorted(topics.partition_counts)
        assert (await purge(client, workspace="shop", assets=live)).json() == {"purged": []}
        missing = await purge(client, workspace="nowhere", assets=live)
        assert missing.headers["x-fennel-error-code"] == "workspace-not-found"

    @pytest.mark.parametrize(
        "body",
        [
            {"workspace": "shop"},
            {"workspace": "shop", "assets": "all"},
            {"workspace": "shop", "assets": [1]},
            {"assets": []},
            {"workspace": "shop", "assets": [], "allow_data_loss": "yes"},
            {"workspace": "shop", "assets": [], "branch": "main"},
        ],
    )
    async def test_a_malformed_purge_is_refused(
        self, client: httpx.AsyncClient, body: dict[str, Any]
    ) -> None:
        assert (await purge(client, **body)).headers["x-fennel-error-code"] == "json-malformed"


async def send(client: httpx.AsyncClient, body: bytes, allow_data_loss: str = "true") -> None:
    sent = await client.post(f"{API}/commit?allow_data_loss={allow_data_loss}", content=body)
    assert sent.status_code == 200, sent.text


def receive_rows(topics: MemoryTopicAdmin) -> set[str]:
    """Let every endpoint have received seven messages; return their topics."""
    endpoints = {name for name in topics.partition_counts if ".raw." in name}
    assert endpoints
    topics.messages |= dict.fromkeys(endpoints, 7)
    return set(endpoints)


async def retained(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    response = await client.get(f"{API}/operations/retained", headers=AS_ADMIN)
    rows: list[dict[str, Any]] = response.raise_for_status().json()["retained"]
    return rows


async def purge(client: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await client.post(f"{API}/operations/purge", json=body, headers=AS_ADMIN)


async def everything(
    client: httpx.AsyncClient, topics: MemoryTopicAdmin, database: str
) -> tuple[object, ...]:
    """Return what users see, the topics, and the rows of the bank, the branches and the ledger."""
    seen = (await client.get(f"{API}/xray")).json()
    queries = (
        "SELECT id, state, destroy_after FROM asset ORDER BY id",
        "SELECT name, target, serving FROM branch ORDER BY name",
        "SELECT commit_id, branch, asset_id FROM asset_ref ORDER BY 1, 2, 3",
        "SELECT commit_id, asset_id FROM reservation ORDER BY 1, 2",
        "SELECT id, state FROM ledger_entry ORDER BY id",
        "SELECT id, desired FROM job ORDER BY id",
    )
    async with await psycopg.AsyncConnection.connect(database) as connection:
        tables = [await (await connection.execute(query)).fetchall() for query in queries]
    return seen, dict(topics.partition_counts), tables
