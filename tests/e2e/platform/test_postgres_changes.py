"""The changes of a table in a user's Postgres as the source of a dataset, with the client.

The server is one of the user's own, with a logical log. Rows that are there enter first; inserts,
updates and deletes follow, across a kill -9 of the sources within a large transaction.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fennel_core.apps.local import processes
from fennel_core.settings.model import Settings
from tests.support.change_log import FLAGS
from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.postgres import make_cluster, running
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(400)]
Shop = psycopg.Connection[tuple[Any, ...]]
DEFINITIONS = """\
from datetime import date, datetime
from typing import Optional

from fennel.connectors import Postgres, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

shop = Postgres(
    name="shop", host="127.0.0.1", port={port}, db_name="postgres", username="reader",
    password="reads",
)


@source(shop.table("orders", cursor="{cursor}"), disorder="14d", cdc="debezium")
@meta(owner="tests@example.com")
@index
@dataset
class Order:
    id: int = field(key=True)
    city: str
    amount: int
    day: date
    note: Optional[str]
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset
class Sales:
    city: str = field(key=True)
    orders: int
    amount: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order)
    def sold(cls, orders: Dataset):
        return orders.groupby("city").aggregate(
            orders=Count(window=Continuous("forever")),
            amount=Sum(of="amount", window=Continuous("forever")),
        )
"""
OTHERS = """\
from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
from fennel.lib import meta


@source(Webhook(name="hooks").endpoint("rows"), disorder="1d", cdc="append")
@meta(owner="tests@example.com")
@dataset
class Row:
    n: int
    at: datetime = field(timestamp=True)
"""
SCHEMA = """
    CREATE TABLE orders (id bigint PRIMARY KEY, city text NOT NULL, amount int NOT NULL,
        day date NOT NULL DEFAULT '2026-01-31', note text DEFAULT 'none',
        at timestamptz NOT NULL DEFAULT clock_timestamp());
    INSERT INTO orders SELECT n, 'Paris', n, '2026-02-03', NULL, now()
        FROM generate_series(1, 20000) n
"""


@pytest.fixture
def server() -> Iterator[str]:
    """A server of the user's own; its owner's connection string."""
    folder = Path(tempfile.mkdtemp(prefix="fennel-pg-"))
    try:
        make_cluster(folder / "data")
        with running(folder / "data", more=FLAGS) as dsn:
            yield dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def looked_up(api: Api, dataset: str, **keys: object) -> dict[str, Any]:
    body = {"keys": [keys], "fields": []}
    status, text = await api.call("POST", f"/dataset/{dataset}/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data = json.loads(text)["data"] if status == 200 else {}
    return {name: column[0] for name, column in data.items()}


async def sold(api: Api, shop: Shop) -> None:
    """Wait until the aggregate says what the table says."""
    row = shop.execute("SELECT count(*), sum(amount) FROM orders").fetchone()
    assert row is not None
    last: list[object] = []

    async def same() -> bool:
        found = await looked_up(api, "Sales", city="Paris")
        last[:] = [found]
        return (found.get("orders"), found.get("amount")) == row

    await eventually(same, within_s=240, interval_s=0.5, what=lambda: f"{row}: {last}")


def kill_sources(settings: Settings) -> None:
    """Kill the sources (driver, JVMs, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def refused(api: Api, definitions: bytes, words: str) -> None:
    status, text = await api.call("POST", "/commit", definitions, **INLINE)
    assert status != 200
    assert words in text, text


async def test_changes_of_a_table_enter_once_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, server: str, tmp_path: Path
) -> None:
    api, file = await make(), tmp_path / "orders.py"

    async def written(cursor: str = "", text: str = DEFINITIONS) -> bytes:
        file.write_text(text.format(port=shop.info.port, cursor=cursor))
        return await commit_of(str(file), folder=tmp_path)

    with psycopg.connect(server, autocommit=True) as shop:
        shop.execute(SCHEMA)
        shop.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
        shop.execute("GRANT SELECT ON orders TO reader")
        await refused(api, await written("id"), "with `cursor`, which has no effect")
        definitions = await written()
        await refused(api, definitions, "CREATE PUBLICATION fennel_orders FOR TABLE public.orders")
        shop.execute("CREATE PUBLICATION fennel_orders FOR TABLE public.orders")
        await refused(api, definitions, "ALTER ROLE reader REPLICATION")
        shop.execute("ALTER ROLE reader REPLICATION")
        await api.good("POST", "/commit", definitions, **INLINE)
        await sold(api, shop)
        found = await looked_up(api, "Order", id=7)
        assert (found["day"], found["note"]) == ("2026-02-03", None)
        # Most of the next transaction is not written when the sources are killed.
        shop.execute(
            "INSERT INTO orders (id, city, amount) "
            "SELECT n, 'Paris', 1 FROM generate_series(20001, 90000) n"
        )
        kill_sources(settings)
        shop.execute("UPDATE orders SET amount = 5, at = clock_timestamp() WHERE id <= 3000")
        shop.execute("DELETE FROM orders WHERE id BETWEEN 5000 AND 6000")
        await sold(api, shop)
        assert await looked_up(api, "Order", id=5000) | {"at": None} == dict.fromkeys(
            ("id", "city", "amount", "day", "note", "at")
        ) | {"id": 5000}
        await check_orders(api, shop)
        others = await written(text=OTHERS)
        await dropped_with_its_source(api, shop, others, settings)


async def check_orders(api: Api, shop: Shop) -> None:
    """Show what is listed, try the source, and read the table once more."""
    [listed] = (await api.good("GET", "/sources"))["sources"]
    assert (listed["source"], listed["kind"]) == ("shop/orders?changes", "postgres-changes")
    counted = listed["datasets"][0]
    assert [counted[what] for what in ("accepted", "late", "dead")] == [94_001, 0, 0]
    name = json.dumps({"source": listed["source"]}).encode()
    tried = (await api.good("POST", "/sources/test", name))["datasets"][0]["messages"]
    assert [each["row"]["id"] for each in tried] == [90_000, 89_999, 89_998, 89_997, 89_996]
    [before] = slots(shop)
    await api.good("POST", "/sources/pause", name)
    rewind = json.dumps({"source": listed["source"], "to": "earliest"}).encode()
    await api.good("POST", "/sources/rewind", rewind)
    shop.execute("UPDATE orders SET amount = 9, at = clock_timestamp() WHERE id = 90000")
    await api.good("POST", "/sources/resume", name)
    await sold(api, shop)

    async def replaced() -> bool:
        return len(slots(shop)) == 1 and slots(shop) != [before]

    await eventually(
        replaced, within_s=60, interval_s=0.5, what=lambda: f"a new slot: {slots(shop)}"
    )


async def dropped_with_its_source(api: Api, shop: Shop, others: bytes, settings: Settings) -> None:
    """Commit without the source, and delete the workspace: nothing is left on the server."""
    await api.good("POST", "/commit", others, **INLINE)
    [kept] = slots(shop)  # a commit may revive the source
    assert kept.startswith("fennel_")
    api.token = settings.admin_token.get_secret_value()
    await api.good("DELETE", f"/workspaces/{api.workspace}")

    async def gone() -> bool:
        return slots(shop) == []

    await eventually(gone, within_s=120, interval_s=0.5, what=lambda: f"no slot: {slots(shop)}")
    assert shop.execute("SELECT pubname FROM pg_publication").fetchall() == [("fennel_orders",)]


def slots(shop: Shop) -> list[str]:
    return [row[0] for row in shop.execute("SELECT slot_name FROM pg_replication_slots")]
