"""The changes of a table in a user's MariaDB or MySQL as the source of a dataset, with the client.

Rows that are there enter first; inserts, updates and deletes follow, across a kill -9 of the
sources within a large transaction, and while the table is altered.

`make connectors` runs it. `BINLOG_PORT=13307` names another server (`support/binlog_world.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from fennel_core.connections.external_binlog import rows_of
from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.settings.model import Settings
from tests.support import change_shop
from tests.support.binlog_world import RIGHTS, binlog_server, owner, shop
from tests.support.change_shop import kill_sources, newest, refused, sold
from tests.support.mariadb import WORDS
from tests.support.table_shop import lookup
from tests.support.workspaces import INLINE, Api

__all__ = ["binlog_server", "owner", "shop"]
pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
TABLE = (
    "CREATE TABLE orders (id bigint unsigned PRIMARY KEY, city varchar(20) NOT NULL, "
    "amount int NOT NULL, day date NOT NULL DEFAULT '2026-01-31', note text, "
    "at timestamp(6) NOT NULL DEFAULT current_timestamp(6))"
)
BUYER = "buyer"


def run(owner: Connection, *statements: str) -> None:
    with owner.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


def sell(owner: Connection, first: int, last: int, amount: Callable[[int], int]) -> None:
    """Insert orders in one transaction."""
    owner.begin()
    with owner.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO orders (id, city, amount, day) VALUES (%s, 'Paris', %s, '2026-02-03')",
            [(n, amount(n)) for n in range(first, last + 1)],
        )
    owner.commit()


def total(owner: Connection) -> tuple[Any, ...]:
    [row] = rows_of(owner, "SELECT count(*), CAST(sum(amount) AS SIGNED) FROM orders")
    return row


@pytest.fixture
def buyer(owner: Connection) -> str:
    """A user who may read rows, and no log yet."""
    run(
        owner,
        f"DROP USER IF EXISTS {BUYER}@'%'",
        f"CREATE USER {BUYER}@'%' IDENTIFIED BY '{WORDS}'",
        f"GRANT SELECT ON *.* TO {BUYER}@'%'",
    )
    return BUYER


async def test_changes_of_a_table_enter_once_across_a_kill(
    make: Callable[[], Awaitable[Api]],
    settings: Settings,
    shop: ExternalMySQL,
    owner: Connection,
    buyer: str,
    tmp_path: Path,
) -> None:
    api = await make()
    at = f'port={shop.port}, db_name="{shop.database}", username="{buyer}", password="{WORDS}"'
    orders, counted = partial(change_shop.orders, tmp_path, "MySQL", at), partial(total, owner)
    run(owner, TABLE)
    sell(owner, 1, 20_000, lambda n: n)
    await refused(api, await orders("id"), "with `cursor`, which has no effect")
    definitions = await orders()
    await refused(api, definitions, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO buyer")
    run(owner, f"GRANT {RIGHTS} ON *.* TO {buyer}@'%'")
    await api.good("POST", "/commit", definitions, **INLINE)
    await sold(api, counted)
    found = await lookup(api, "Order", id=7)
    assert (found["day"], found["note"]) == ("2026-02-03", None)
    # Most of the next transaction is not written when the sources are killed.
    sell(owner, 20_001, 90_000, lambda _: 1)
    kill_sources(settings)
    run(
        owner,
        "UPDATE orders SET amount = 5, at = now(6) WHERE id <= 3000",
        "ALTER TABLE orders ADD COLUMN vip int DEFAULT 1 AFTER id, DROP COLUMN note",
        "ALTER TABLE orders ADD COLUMN note text FIRST",
        "DELETE FROM orders WHERE id BETWEEN 5000 AND 6000",
    )
    await sold(api, counted)
    assert (await lookup(api, "Order", id=5000))["city"] is None
    await change_shop.check_listed(api, "mysql-changes", 94_001)
    assert await newest(api) == [90_000, 89_999, 89_998, 89_997, 89_996]
    change = "UPDATE orders SET amount = 9, note = 'a', at = now(6) WHERE id = 90000"
    await change_shop.read_again(api, lambda: run(owner, change))
    await sold(api, counted)
    assert (await lookup(api, "Order", id=90_000))["note"] == "a"
    await api.good("POST", "/commit", await change_shop.others(tmp_path), **INLINE)

    async def no_reader() -> bool:
        found = rows_of(owner, "SHOW PROCESSLIST")
        return not [row for row in found if row[1] == buyer]

    await change_shop.gone(api, settings, no_reader)
