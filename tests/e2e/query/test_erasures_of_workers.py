"""An erasure through one worker of a query server holds for all of them, with its response."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import psutil
import psycopg
import pytest
from aiohttp import web

from fennel_core.connections import erasures, postgres
from fennel_core.vocab.ids import DatasetName
from tests.support.fake_slots import FakeSlot
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.served_profiles import USERS, W, fill

STARTS_WITHIN_S = 60
WORKERS = 2
CLIENTS = 12
HEADERS = {"Authorization": f"Bearer dev-{W}"}


class Server:
    """A query server with several workers, and clients that are connected to all of them."""

    def __init__(self, url: str, parent: asyncio.subprocess.Process) -> None:
        self.url, self.parent = url, parent
        self.clients: list[aiohttp.ClientSession] = []

    async def ready(self) -> bool:
        assert self.parent.returncode is None, "the query server ended before it was ready"
        try:
            return await self.found(self.clients[0], "ada")
        except aiohttp.ClientError:
            return False  # it does not listen yet

    async def found(self, client: aiohttp.ClientSession, user: str) -> bool | None:
        """Return whether a lookup finds the user; None if it is refused for the moment."""
        body = {"keys": [{"user": user}], "fields": ["name"]}
        url = f"{self.url}/api/v1/dataset/Profiles/lookup"
        async with client.post(url, json=body, headers=HEADERS) as response:
            if response.status == 503:
                return None
            assert response.status == 200, await response.text()
            [found] = (await response.json())["found"]
            return bool(found)

    async def erase(self, user: str) -> None:
        body = {"erase_keys": [{"user": user}]}
        url = f"{self.url}/api/v1/dataset/Profiles/erase"
        async with self.clients[0].post(url, json=body, headers=HEADERS) as response:
            assert response.status == 200, await response.text()

    def connected(self) -> set[int]:
        """Return the workers that have a connection of a client."""
        return {
            worker.pid
            for worker in psutil.Process(self.parent.pid).children()
            if any(each.status == "ESTABLISHED" for each in served(worker, self.url))
        }


def served(worker: psutil.Process, url: str) -> list[object]:
    port = int(url.rpartition(":")[2])
    return [each for each in worker.net_connections("tcp") if each.laddr.port == port]


@pytest.fixture
async def server(database: str, tmp_path: Path) -> AsyncIterator[Server]:
    """No notification of an erasure reaches the workers, as if it were late."""
    ports = {name: str(free_port()) for name in ("QUERY", "DEFINITION", "INGEST")}
    ours = {f"FENNEL_{name}_PORT": port for name, port in ports.items()} | {
        "FENNEL_POSTGRES_DSN": database,
        "FENNEL_DATA_DIR": str(tmp_path),
        "FENNEL_QUERY_WORKERS": str(WORKERS),
        "FENNEL_DEV_TOKENS": "true",
    }
    async with AsyncExitStack() as stack:
        slot = await stack.enter_async_context(FakeSlot(tmp_path / "slot.sock"))
        with psycopg.connect(database, autocommit=True) as rows:
            fill(rows, slot)
            rows.execute("UPDATE branch SET serving = 'c1' WHERE workspace = %s", (W,))
            rows.execute("DROP TRIGGER erasure_added ON erasure")
        pool = await stack.enter_async_context(postgres.pool(database, name="test", size=1))
        ingest = await stack.enter_async_context(AcceptedErasures(pool, int(ports["INGEST"])))
        assert ingest is not None
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fennel_core.apps.query", env={**os.environ, **ours}
        )
        made = Server(f"http://127.0.0.1:{ports['QUERY']}", parent)
        try:
            for _ in range(CLIENTS):
                made.clients.append(await stack.enter_async_context(aiohttp.ClientSession()))
            await eventually(made.ready, within_s=STARTS_WITHIN_S, interval_s=0.1)

            async def all_connected() -> bool:
                made.clients.append(await stack.enter_async_context(aiohttp.ClientSession()))
                found = await asyncio.gather(*(made.found(each, "ada") for each in made.clients))
                return len(made.connected()) == WORKERS and all(found)

            await eventually(all_connected, within_s=STARTS_WITHIN_S, interval_s=0.1)
            yield made
        finally:
            parent.kill()
            await parent.wait()


class AcceptedErasures:
    """The ingest server of this test: it accepts every erasure of a user."""

    def __init__(self, pool: postgres.Pool, port: int) -> None:
        self._pool, self._port = pool, port
        app = web.Application()
        app.router.add_post("/api/v1/dataset/Profiles/erase", self._erase)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> AcceptedErasures:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _erase(self, request: web.Request) -> web.Response:
        keys = [
            msgspec.msgpack.encode([key["user"]]) for key in (await request.json())["erase_keys"]
        ]
        await erasures.add(self._pool, W, DatasetName("Profiles"), ["user"], keys)
        return web.json_response({"erased": len(keys)})


async def test_after_the_response_of_an_erase_no_worker_shows_the_key(server: Server) -> None:
    for user in USERS:
        assert await server.found(server.clients[-1], user)
        await server.erase(user)
        found = await asyncio.gather(*(server.found(each, user) for each in server.clients))
        assert not any(found), f"{user}: {found}"
        assert False in found, "it is not only refused"
    assert await server.found(server.clients[0], "ada"), "other keys are shown"
