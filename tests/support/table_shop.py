"""A shop whose orders and people are tables of a Postgres of its own, as sources of datasets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.settings.model import Settings
from tests.support.orders import TABLE_FIELDS, shop_tables
from tests.support.polling import eventually
from tests.support.workspaces import Api

Shop = psycopg.Connection[tuple[Any, ...]]
TABLES = """
    CREATE TABLE orders (id bigserial, city varchar(20), amount smallint, price numeric(10, 2),
        tags text[] NOT NULL DEFAULT '{a,b}', day date NOT NULL DEFAULT '2024-02-29',
        weight real NOT NULL DEFAULT 0.1, vip boolean NOT NULL DEFAULT true, note jsonb, raw bytea,
        uid uuid DEFAULT gen_random_uuid(), at timestamp NOT NULL);
    CREATE TABLE people (id int PRIMARY KEY, name text, changed timestamptz NOT NULL)
"""


@pytest.fixture
def shop(settings: Settings) -> Iterator[str]:
    """The connection string of a database that no part of the platform made."""
    dsn, name = settings.postgres_dsn.get_secret_value(), f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    own = make_conninfo(dsn, dbname=name)
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute(TABLES)
    yield own
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def written(tmp_path: Path, shop: str, cursor: str = "id") -> str:
    at = conninfo_to_dict(shop)
    file = tmp_path / "orders.py"
    connector = (
        f'shop = Postgres(name="shop", host="{at["host"]}", port={at["port"]}, '
        f'db_name="{at["dbname"]}", username="{at["user"]}", '
        f'password="{at.get("password", "none")}")'
    )
    file.write_text(
        shop_tables("Postgres", connector, cursor, f"    tags: List[str]\n{TABLE_FIELDS}")
    )
    return str(file)


def sell(connection: Shop, first: int, last: int) -> None:
    connection.execute(
        "INSERT INTO orders (city, amount, price, note, at) SELECT 'Paris', n %% 100, n / 100.0, "
        "'{\"n\": 1}', timestamp '2024-01-01' + n * interval '1 minute' "
        "FROM generate_series(%s::int, %s::int) n",
        (first, last),
    )


async def lookup(api: Api, dataset: str, **key: Any) -> dict[str, Any]:
    body = {"keys": [key], "fields": []}
    status, text = await api.call("POST", f"/dataset/{dataset}/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data: dict[str, list[Any]] = json.loads(text)["data"] if status == 200 else {}
    return {name: values[0] for name, values in data.items()}


async def sold(api: Api, connection: Shop) -> None:
    """Wait until every order is counted, and check that none is counted twice."""
    row = connection.execute("SELECT count(*), sum(amount)::int FROM orders").fetchone()
    assert row is not None

    async def all_there() -> bool:
        return ((await lookup(api, "Sales", city="Paris")).get("orders") or 0) >= row[0]

    listed = partial(api.good, "GET", "/sources")
    try:
        await eventually(all_there, within_s=150, interval_s=0.5)
    except AssertionError:
        raise AssertionError(f"{row[0]} orders: {await listed()}") from None
    await api.settled(within_s=60)
    found = await lookup(api, "Sales", city="Paris")
    assert (found["orders"], found["amount"]) == row


async def runs_passed(api: Api, settings: Settings) -> None:
    """Wait until both tables were read to their ends again."""
    done = "SELECT count(*) FROM source_run WHERE raw_topic LIKE %s AND completed_at > %s"
    with psycopg.connect(settings.postgres_dsn.get_secret_value(), autocommit=True) as platform:
        (began,) = platform.execute("SELECT now() + interval '10 seconds'").fetchone() or ()
        values = (f"{api.workspace}.%", began)

        async def passed() -> bool:
            return platform.execute(done, values).fetchone() == (2,)

        await eventually(passed, within_s=120, interval_s=0.5)


async def is_named(api: Api, name: str) -> bool:
    return (await lookup(api, "Person", id=1)).get("name") == name
