"""The changes of a table in a user's Postgres as the source of a dataset, with the client.

The server is one of the user's own, with a logical log. Rows that are there enter first; inserts,
updates and deletes follow, across a kill -9 of the sources within a large transaction.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fennel_core.settings.model import Settings
from tests.support import change_shop
from tests.support.change_log import FLAGS
from tests.support.change_shop import kill_sources, newest, refused, sold
from tests.support.polling import eventually
from tests.support.postgres import make_cluster, running
from tests.support.table_shop import lookup
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(400)]
Shop = psycopg.Connection[tuple[Any, ...]]
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


def total(shop: Shop) -> tuple[Any, ...]:
    [row] = shop.execute("SELECT count(*), sum(amount) FROM orders")
    return row


async def test_changes_of_a_table_enter_once_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, server: str, tmp_path: Path
) -> None:
    api = await make()
    with psycopg.connect(server, autocommit=True) as shop:
        at = f'port={shop.info.port}, db_name="postgres", username="reader", password="reads"'
        orders = partial(change_shop.orders, tmp_path, "Postgres", at)
        shop.execute(SCHEMA)
        shop.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
        shop.execute("GRANT SELECT ON orders TO reader")
        await refused(api, await orders("id"), "with `cursor`, which has no effect")
        definitions = await orders()
        await refused(api, definitions, "CREATE PUBLICATION fennel_orders FOR TABLE public.orders")
        shop.execute("CREATE PUBLICATION fennel_orders FOR TABLE public.orders")
        await refused(api, definitions, "ALTER ROLE reader REPLICATION")
        shop.execute("ALTER ROLE reader REPLICATION")
        await api.good("POST", "/commit", definitions, **INLINE)
        await sold(api, partial(total, shop))
        found = await lookup(api, "Order", id=7)
        assert (found["day"], found["note"]) == ("2026-02-03", None)
        # Most of the next transaction is not written when the sources are killed.
        shop.execute(
            "INSERT INTO orders (id, city, amount) "
            "SELECT n, 'Paris', 1 FROM generate_series(20001, 90000) n"
        )
        kill_sources(settings)
        shop.execute("UPDATE orders SET amount = 5, at = clock_timestamp() WHERE id <= 3000")
        shop.execute("DELETE FROM orders WHERE id BETWEEN 5000 AND 6000")
        await sold(api, partial(total, shop))
        assert (await lookup(api, "Order", id=5000))["city"] is None
        await change_shop.check_listed(api, "postgres-changes", 94_001)
        assert await newest(api) == [90_000, 89_999, 89_998, 89_997, 89_996]
        await read_again(api, shop)
        await dropped_with_its_source(api, shop, await change_shop.others(tmp_path), settings)


async def read_again(api: Api, shop: Shop) -> None:
    """Read the table once more, with a new slot."""
    [before] = slots(shop)
    change = "UPDATE orders SET amount = 9, at = clock_timestamp() WHERE id = 90000"
    await change_shop.read_again(api, lambda: shop.execute(change))
    await sold(api, partial(total, shop))

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

    async def no_slot() -> bool:
        return slots(shop) == []

    await change_shop.gone(api, settings, no_slot)
    assert shop.execute("SELECT pubname FROM pg_publication").fetchall() == [("fennel_orders",)]


def slots(shop: Shop) -> list[str]:
    return [row[0] for row in shop.execute("SELECT slot_name FROM pg_replication_slots")]
