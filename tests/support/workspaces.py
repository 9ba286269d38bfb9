"""Workspaces of the running platform, and their API as any HTTP client sees it.

Import the fixtures `settings` and `make` into a conftest; both need the fixture `platform`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.polling import eventually

INLINE = {"X-Fennel-Orchestrator": "inline"}


class Api:
    """The API of one workspace, as any HTTP client sees it."""

    def __init__(self, session: aiohttp.ClientSession, settings: Settings, workspace: str) -> None:
        self.workspace, self._settings, self._session = workspace, settings, session
        self.token: str | None = f"dev-{workspace}"

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, str]:
        sent = dict(headers)
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        data = (
            body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        )
        url = f"{self._settings.query_url}/api/v1{path}"
        async with self._session.request(method, url, data=data, headers=sent) as response:
            return response.status, await response.text()

    async def good(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, text = await self.call(method, path, body, **headers)
        assert status == 200, f"{method} {path}: {status} {text}"
        return json.loads(text)

    async def commit(self, module: str, **headers: str) -> Any:
        request = await commit_of(module)
        return await self.good("POST", "/commit", request, **headers)

    async def log(self, **data: list[Any]) -> tuple[int, str]:
        return await self.call(
            "POST", "/log", {"webhook": "door", "endpoint": "people", "data": data}
        )

    async def settled(self, *, within_s: float) -> None:
        """Wait until every logged row is visible; the barrier is retried while an engine starts."""

        async def passed() -> bool:
            status, text = await self.call("POST", "/barrier", {"timeout_s": 30})
            assert status in (200, 503, 504), f"{status} {text}"
            return status == 200

        await eventually(passed, within_s=within_s, interval_s=0.2, what="the barrier passes")

    async def person(self, name: str) -> Any:
        body = {"keys": [{"name": name}], "fields": []}
        return await self.good("POST", "/dataset/Person/lookup", body)


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
async def make(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[Api]]]:
    """Yield a function that creates a workspace; delete them all afterwards."""
    made: list[Api] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def one() -> Api:
            api = Api(session, settings, f"test-{uuid.uuid4().hex[:8]}")
            made.append(api)
            return api

        yield one
        for api in made:
            admin = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
            async with session.delete(
                f"{settings.query_url}/api/v1/workspaces/{api.workspace}", headers=admin
            ) as gone:
                assert gone.status in (200, 404), await gone.text()
