"""Bounded sources of each kind end when nothing comes any more, and are read on when resumed.

`make connectors` runs this.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.local import status_requests
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.user_systems import BUCKET, CONNECTORS, UserSystems
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(1200)]
NOW = "2026-01-01T00:00:00Z"
DEFINITIONS = orders(
    "S3, Kafka, Postgres, Webhook, source",
    CONNECTORS
    + """
folder = files.bucket("{bucket}", path="{name}/*.json", format="json")
ends = {{"disorder": "14d", "cdc": "append", "bounded": True, "idleness": "6s"}}""",
    """\
@source(Webhook(name="hook").endpoint("orders"), **ends)
@source(kafka.topic("{name}"), **ends)
@source(postgres.table("orders", cursor="id"), every="2s", **ends)
@source(folder, every="1s", **ends)""",
)
PEOPLE = """

@source(
    postgres.table("people", cursor=""), disorder="14d", cdc="debezium", bounded=True, idleness="6s"
)
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    id: int = field(key=True)
    at: datetime = field(timestamp=True)
"""
SOURCES = ("topics/", "tables/orders", "tables/people?changes", "files/")
"""All but the webhook, by their beginning."""


class Shop:
    """Sells one order in each place, and more when it is asked to."""

    def __init__(self, systems: UserSystems) -> None:
        self.systems, self.orders = systems, 0
        systems.execute("CREATE TABLE orders (id bigserial, city text, amount int, at timestamptz)")
        systems.execute("CREATE TABLE people (id bigserial PRIMARY KEY, at timestamptz)")

    def row(self) -> dict[str, Any]:
        self.orders += 1
        return {"city": "Paris", "amount": 1, "at": NOW}

    def sell(self) -> None:
        self.systems.send([json.dumps(self.row()).encode()])
        insert = "INSERT INTO orders (city, amount, at) VALUES (%(city)s, %(amount)s, %(at)s)"
        self.systems.execute(insert, self.row())
        self.systems.execute("INSERT INTO people (at) VALUES (%(at)s)", {"at": NOW})
        self.systems.put(f"{self.orders}.json", json.dumps(self.row()).encode())


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    systems = UserSystems(settings)
    yield Shop(systems)
    systems.close()


async def listed(api: Api) -> dict[str, dict[str, Any]]:
    return {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}


async def people(api: Api) -> list[bool]:
    """Return which of the two people there are."""
    body = {"keys": [{"id": 1}, {"id": 2}], "fields": []}
    found: list[bool] = (await api.good("POST", "/dataset/Person/lookup", body))["found"]
    return found


def log(api: Api, shop: Shop) -> Awaitable[Any]:
    rows = {"webhook": "hook", "endpoint": "orders", "data": [shop.row()]}
    return api.good("POST", "/log", rows)


async def test_sources_end_and_are_read_on(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    api = await make()
    shop.sell()
    values = shop.systems.addresses() | {"bucket": BUCKET}
    (tmp_path / "orders.py").write_text(DEFINITIONS.format(**values) + PEOPLE)
    definitions = await commit_of(str(tmp_path / "orders.py"), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    await log(api, shop)
    seen: list[Any] = []

    async def all_ended() -> bool:
        seen[:] = (await listed(api)).values()
        return all(each["state"] == "ended" for each in seen)

    async def counted() -> int:
        body = {"keys": [{"city": "Paris"}], "fields": ["orders"]}
        status, text = await api.call("POST", "/dataset/Sales/lookup", body)
        return json.loads(text)["data"]["orders"][0] or 0 if status == 200 else 0

    await eventually(all_ended, within_s=240, interval_s=0.5, what=lambda: seen)
    await api.settled(within_s=60)
    assert await counted() == shop.orders == 4
    assert await people(api) == [True, False]
    reported = [
        each["ended"]
        for each in status_requests.read(settings).sources or ()
        if each["workspace"] == api.workspace
    ]
    assert reported == [True] * len(SOURCES)
    shop.sell()
    for name in await listed(api):
        if name.startswith(SOURCES):
            await api.good("POST", "/sources/resume", {"source": name})

    async def all_there() -> bool:
        return await counted() >= shop.orders

    await eventually(all_there, within_s=240, interval_s=0.5, what=lambda: seen)
    await eventually(all_ended, within_s=240, interval_s=0.5, what=lambda: seen)
    await log(api, shop)
    await api.settled(within_s=60)
    assert await counted() == 7, "a webhook that has ended takes no row"
    assert await people(api) == [True, True]
