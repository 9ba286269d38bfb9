"""A table of a user's own Postgres as a source: what is refused, and each row once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.table_shop import is_named, sell, shop, sold, written
from tests.support.workspaces import INLINE, Api

__all__ = ["shop"]
pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(300)]


async def test_rows_of_tables_enter_once_and_what_cannot_be_read_is_refused_at_commit(
    make: Callable[[], Awaitable[Api]], shop: str, tmp_path: Path
) -> None:
    api = await make()
    definitions = await commit_of(written(tmp_path, shop, cursor="nothing"), folder=tmp_path)
    for path in ("/commit?preview=true", "/commit"):
        status, answer = await api.call("POST", path, definitions, **INLINE)
        assert status == 500, answer
        assert "no column `nothing`" in answer
    with psycopg.connect(shop, autocommit=True) as connection:
        sell(connection, 1, 12_000)  # more than one transaction
        connection.execute("INSERT INTO people VALUES (1, 'Ann', now())")
        definitions = await commit_of(written(tmp_path, shop), folder=tmp_path)
        await api.good("POST", "/commit", definitions, **INLINE)
        await sold(api, connection)
        # Another run reads them.
        await eventually(partial(is_named, api, "Ann"), within_s=90, interval_s=0.5)
        sources = {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}
        (counted,) = sources["shop/orders"]["datasets"]
        assert (counted["accepted"], counted["late"], counted["dead"]) == (12_000, 0, 0)
