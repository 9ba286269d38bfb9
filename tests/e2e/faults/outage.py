"""Postgres is out of reach for a while: reads go on, nothing is written, and all resumes by itself.

Postgres is frozen (its sockets stay open and nothing comes back) or killed, with its restart held
back. Each outage takes `OUTAGE_S` seconds. The default suite does not run it:
`make faults` does, and `OUTAGE_S=600 .venv/bin/pytest -s tests/e2e/faults/outage.py` for longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from tests.e2e.faults.moves import back
from tests.e2e.faults.strikes import frozen, kill_part
from tests.e2e.faults.world import INLINE, NOW
from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.postgres import frozen as frozen_server

OUTAGE_S: Final = float(os.environ.get("OUTAGE_S", "20"))
pytestmark = [pytest.mark.platform, pytest.mark.timeout(int(300 + 2 * OUTAGE_S))]
CODE: Final = "X-Fennel-Error-Code"
STALE: Final = "X-Fennel-Stale"
UNAVAILABLE: Final = {"database-unavailable", "ingest-unavailable"}
READERS: Final = 8
BACK_S: Final = 60.0
"""Within this time after Postgres is back, everything works as before."""
EVERY_S: Final = 0.05


@contextmanager
def frozen_postgres(settings: Settings) -> Iterator[None]:
    # Its processes have sessions of their own, so that of the service is not enough.
    with frozen_server(settings.postgres_dsn.get_secret_value()):
        yield


@contextmanager
def killed_postgres(settings: Settings) -> Iterator[None]:
    """Kill Postgres; it is not restarted before the block ends."""
    with frozen(settings, "watchdog"):
        kill_part(settings, "postgres")
        yield


@dataclass
class Response:
    status: int
    text: str
    code: str
    stale: bool


class Clients:
    """HTTP clients of one workspace, with a token that is no development token."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: Settings, workspace: str, token: str
    ) -> None:
        self._session, self._settings, self._token = session, settings, token
        self.workspace = workspace

    async def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **more: str
    ) -> Response:
        headers = {"Authorization": f"Bearer {token or self._token}", **more}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        url = f"{self._settings.query_url}{path}"
        async with self._session.request(method, url, data=data, headers=headers) as response:
            return Response(
                response.status,
                await response.text(),
                response.headers.get(CODE, ""),
                response.headers.get(STALE) == "true",
            )

    async def good(self, method: str, path: str, body: Any = None, **more: str) -> Response:
        response = await self.call(method, path, body, **more)
        assert response.status == 200, f"{method} {path}: {response}"
        return response

    async def query(self, uids: list[int], token: str | None = None) -> Response:
        body = {"inputs": ["Shop.uid"], "outputs": ["Shop.amount"], "data": {"Shop.uid": uids}}
        return await self.call("POST", "/api/v1/query", body, token)

    async def amount(self, uid: int) -> float:
        response = await self.query([uid])
        assert response.status == 200, response
        [found] = json.loads(response.text)["Shop.amount"]
        return float(found)

    async def log(self, uid: int, amount: float) -> Response:
        data = {"uid": [uid], "amount": [amount], "at": [NOW]}
        body = {"webhook": "door", "endpoint": "orders", "data": data}
        return await self.call("POST", "/api/v1/log", body)

    async def stale_reads(self) -> float:
        """Return the metric of reads that were marked as stale."""
        url = f"http://{self._settings.own_address}:{self._settings.query_metrics_port}/metrics"
        async with self._session.get(url) as response:
            text = await response.text()
        found = re.search(r"^fennel_stale_reads_counter(?:_total)? (\S+)$", text, re.MULTILINE)
        assert found is not None, "the query server exports the counter"
        return float(found[1])

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[list[Response]]:
        """Query without pause over several connections until the block ends."""
        given: list[Response] = []
        over = asyncio.Event()

        async def one() -> None:
            while not over.is_set():
                given.append(await self.query([7, 8]))
                await asyncio.sleep(EVERY_S)  # the rate of a client

        tasks = [asyncio.create_task(one()) for _ in range(READERS)]
        try:
            yield given
        finally:
            over.set()
            await asyncio.gather(*tasks)

    async def refused(self, commit: bytes) -> Mapping[str, Response]:
        """Send one request of each kind that needs Postgres, all at once."""
        admin = self._settings.admin_token.get_secret_value()
        erased = {"erase_keys": [{"uid": 7}]}
        sent = {
            "log": self.log(9, 1.0),
            "commit": self.call("POST", "/api/v1/commit", commit, **INLINE),
            "erase": self.call("POST", "/api/v1/dataset/Order/erase", erased),
            "secret": self.call("POST", "/api/v1/secret/outage", {"value": "x"}),
            "workspaces": self.call("GET", "/api/v1/workspaces", None, admin),
            "status": self.call("GET", "/status"),
            "unknown token": self.query([7], token="unknown"),  # noqa: S106  # a fixed value of a test
        }
        return dict(zip(sent, await asyncio.gather(*sent.values()), strict=True))


@pytest.fixture(scope="module")
def shop(platform: None) -> bytes:
    return asyncio.run(commit_of("tests.e2e.faults.outage_shop", message="shop"))


@pytest.fixture
async def clients(settings: Settings, shop: bytes) -> AsyncIterator[Clients]:
    """A shop with one order, which is served."""
    workspace = f"outage-{uuid.uuid4().hex[:8]}"
    admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
    api = f"{settings.query_url}/api/v1/workspaces"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        async with session.post(api, json={"name": workspace}, headers=admin) as made:
            token = (await made.json())["token"]
        clients = Clients(session, settings, workspace, token)
        await clients.good("POST", "/api/v1/commit", shop, **INLINE)
        assert (await clients.log(7, 10.0)).status == 200
        await clients.good("POST", "/api/v1/barrier", {"timeout_s": 60})
        assert await clients.amount(7) == 10.0
        yield clients
        async with session.delete(f"{api}/{workspace}", headers=admin) as gone:
            assert gone.status in (200, 404), await gone.text()


def ends(settings: Settings, workspace: str) -> dict[tuple[str, int], int]:
    """Return the end offset of each partition of the workspace, transaction markers included."""
    admin = AdminClient(client_config(settings))
    known = admin.list_topics(timeout=20).topics
    wanted = {
        TopicPartition(topic, part): OffsetSpec.latest()
        for topic in known
        if topic.startswith(f"{workspace}.")
        for part in known[topic].partitions
    }
    found = admin.list_offsets(wanted, request_timeout=20)
    return {(at.topic, at.partition): end.result().offset for at, end in found.items()}


def revoke_tokens(settings: Settings, workspace: str) -> None:
    dsn = settings.postgres_dsn.get_secret_value()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM token WHERE workspace = %s", (workspace,))


@pytest.mark.parametrize("outage", [frozen_postgres, killed_postgres])
async def test_reads_go_on_without_postgres_and_everything_resumes_when_it_is_back(
    clients: Clients,
    settings: Settings,
    shop: bytes,
    outage: Callable[[Settings], AbstractContextManager[None]],
) -> None:
    marked = await clients.stale_reads()
    async with clients.reading() as given:
        with outage(settings):
            over = time.monotonic() + OUTAGE_S
            refused = asyncio.create_task(clients.refused(shop))
            await eventually(lambda: given and given[-1].stale, within_s=OUTAGE_S)
            before = await asyncio.to_thread(ends, settings, clients.workspace)
            for name, response in (await refused).items():
                assert response.status == 503, f"{name}: {response}"
                assert response.code in UNAVAILABLE, f"{name}: {response}"
            while time.monotonic() < over:
                await asyncio.sleep(min(10.0, max(0.0, over - time.monotonic())))  # the outage
                if over - time.monotonic() > 10.0:
                    again = await clients.refused(shop)
                    assert {each.status for each in again.values()} == {503}, again
            assert given[-1].stale
            assert await asyncio.to_thread(ends, settings, clients.workspace) == before
        await resumed(clients, settings)
    assert [each for each in given if each.status != 200 or amounts(each) != [10.0, 1.0]] == []
    assert await clients.stale_reads() > marked

    revoke_tokens(settings, clients.workspace)

    async def locked_out() -> bool:
        return (await clients.query([7])).code == "token-unknown"

    await eventually(locked_out, within_s=BACK_S, interval_s=0.2)
    await back(f"{settings.airflow_url}/api/v2/monitor/health")


async def resumed(clients: Clients, settings: Settings) -> None:
    """Wait until a row that is logged now is served, and no response is marked as stale."""

    async def accepted() -> bool:
        response = await clients.log(9, 3.0)
        assert response.status in {200, 503}, response
        return response.status == 200

    await eventually(accepted, within_s=BACK_S, interval_s=0.2, what="rows are accepted")

    async def visible() -> bool:
        return await clients.amount(9) == 3.0

    await eventually(visible, within_s=BACK_S, interval_s=0.2, what="the row is served")

    async def fresh() -> bool:
        return not (await clients.query([7])).stale

    await eventually(fresh, within_s=BACK_S, interval_s=0.2, what="reads are fresh")


def amounts(response: Response) -> Any:
    return json.loads(response.text)["Shop.amount"]
