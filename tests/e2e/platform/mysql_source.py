"""A table of a user's own MariaDB as the source of datasets, read on a schedule, exactly once.

`make connectors` runs this: it needs Debian's package `mariadb-server-core`, and the driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from pymysql.connections import Connection

from fennel_core.connections.external_mysql import ExternalMySQL
from tests.support.executors import commit_of
from tests.support.mariadb import WORDS, connected, maria, mariadb_server
from tests.support.orders import shop_tables
from tests.support.polling import eventually
from tests.support.table_shop import lookup
from tests.support.workspaces import INLINE, Api

__all__ = ["maria", "mariadb_server"]
pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(900)]
TABLES = (
    "CREATE TABLE orders (id bigint unsigned, nr int AUTO_INCREMENT PRIMARY KEY, "
    "city varchar(20), amount smallint, price decimal(10, 2), day date, weight float DEFAULT 0.1, "
    "vip boolean DEFAULT true, note json, raw blob, at timestamp(3) DEFAULT current_timestamp(3), "
    "KEY (at))",
    "CREATE TABLE people (id int PRIMARY KEY, name text, changed timestamp(6) NOT NULL "
    "DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6))",
)
SELL = (
    "INSERT INTO orders (id, city, amount, price, day, note) SELECT seq, 'Zürich', seq % 100, "
    "seq / 100, '2024-02-29', '{{\"n\": 1}}' FROM seq_{first}_to_{last}"
)


def do(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def written(tmp_path: Path, shop: ExternalMySQL, cursor: str) -> str:
    file = tmp_path / "orders.py"
    connector = (
        f'shop = MySQL(name="shop", host="{shop.host}", port={shop.port}, db_name="shop", '
        f'username="{shop.user}", password="{WORDS}")'
    )
    file.write_text(shop_tables("MySQL", connector, cursor))
    return str(file)


async def counted(api: Api, orders: int) -> None:
    """Wait until so many orders are counted, and check that none is counted twice."""

    async def all_there() -> bool:
        return ((await lookup(api, "Sales", city="Zürich")).get("orders") or 0) >= orders

    try:
        # A row is read a minute after it was written.
        await eventually(all_there, within_s=240, interval_s=0.5)
    except AssertionError:
        raise AssertionError(await api.good("GET", "/sources")) from None
    await api.settled(within_s=60)
    found = await lookup(api, "Sales", city="Zürich")
    assert (found["orders"], found["amount"]) == (
        orders,
        sum(n % 100 for n in range(1, orders + 1)),
    )


async def is_named(api: Api, name: str) -> bool:
    return (await lookup(api, "Person", id=1)).get("name") == name


async def test_orders_of_a_table_are_counted_once_by_runs_of_airflow(
    make: Callable[[], Awaitable[Api]], maria: ExternalMySQL, tmp_path: Path
) -> None:
    api = await make()
    with connected(maria.port, database="shop") as connection:
        for statement in TABLES:
            do(connection, statement)
        definitions = await commit_of(written(tmp_path, maria, "day"), folder=tmp_path)
        status, answer = await api.call("POST", "/commit", definitions, **INLINE)
        assert status == 500, answer
        assert "use a TIMESTAMP that the server sets" in answer
        do(connection, SELL.format(first=1, last=12_000))  # more than one transaction, one time
        do(connection, "INSERT INTO people (id, name) VALUES (1, 'Ann')")
        definitions = await commit_of(written(tmp_path, maria, "at"), folder=tmp_path)
        await api.good("POST", "/commit", definitions, **INLINE)
        await counted(api, 12_000)
        with connected(maria.port, database="shop") as late:
            late.autocommit(False)
            do(late, SELL.format(first=12_001, last=12_010))
            do(connection, SELL.format(first=12_011, last=12_020))
            do(connection, "UPDATE people SET name = 'Bea'")
            do(connection, "DO SLEEP(80)")
            # What was written since waits for the open transaction.
            assert (await lookup(api, "Sales", city="Zürich"))["orders"] == 12_000
            late.commit()
        await counted(api, 12_020)
        await eventually(partial(is_named, api, "Bea"), within_s=90, interval_s=0.5)
        sources = {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}
        orders = sources["shop/orders"]
        assert (orders["kind"], orders["failures"]) == ("mysql", 0)
        (of_order,) = orders["datasets"]
        assert (of_order["accepted"], of_order["late"], of_order["dead"]) == (12_020, 0, 0)
        trial = await api.good("POST", "/sources/test", {"source": "shop/orders"})
        assert trial["messages"] == 5
