"""A stored connector of a real MariaDB: wrong credentials are refused, and new ones are taken.

`make connectors` runs it: it needs Debian's package `mariadb-server-core`.
"""

from __future__ import annotations

from typing import Any

import httpx
from pymysql import connect

from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.definition.routes import API
from tests.support.mariadb import OWNER, READER, WORDS, maria, mariadb_server

__all__ = ["maria", "mariadb_server"]
WRONG, NEXT = "a-wrong-word", "the-next-word"


async def test_a_connector_is_rotated_after_its_password_has_changed(
    client: httpx.AsyncClient, maria: ExternalMySQL
) -> None:
    async def order(path: str, **body: Any) -> httpx.Response:
        return await client.post(f"{API}/connectors/{path}", json={"connector": "shop", **body})

    def is_refused(response: httpx.Response) -> bool:
        name = response.headers.get("x-fennel-error-code")
        return (response.status_code, name) == (409, "connector-unreachable")

    place = {"host": maria.host, "port": maria.port, "db_name": "shop", "username": READER}
    given = place | {"password": WRONG}
    refused = await order("add", kind="mysql", properties=given)
    assert is_refused(refused)
    assert "Access denied" in refused.text
    given = place | {"password": WORDS}
    assert (await order("add", kind="mysql", properties=given)).status_code == 200
    with connect(host=maria.host, port=maria.port, user=OWNER, password=WORDS) as owner:
        with owner.cursor() as cursor:
            cursor.execute(f"SET PASSWORD FOR {READER}@'%%' = PASSWORD(%s)", (NEXT,))
        try:
            assert is_refused(await order("test"))
            wrong = await order("rotate", properties={"password": WRONG})
            assert "Nothing was changed" in wrong.text
            done = await order("rotate", properties={"password": NEXT})
            assert done.status_code == 200, done.text
            assert (await order("test")).status_code == 200
            for text in (refused.text, wrong.text, done.text):
                assert not [word for word in (WORDS, WRONG, NEXT) if word in text]
        finally:
            with owner.cursor() as cursor:
                cursor.execute(f"SET PASSWORD FOR {READER}@'%%' = PASSWORD(%s)", (WORDS,))
