"""A table of a user's own Postgres as the source of datasets, read on a schedule, exactly once.

`make connectors` runs this; `test_table_source.py` is its short form.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.table_shop import is_named, lookup, runs_passed, sell, shop, sold, written
from tests.support.workspaces import INLINE, Api

__all__ = ["shop"]
pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]


async def test_orders_of_a_table_are_counted_once_by_runs_of_airflow(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: str, tmp_path: Path
) -> None:
    api = await make()
    with psycopg.connect(shop, autocommit=True) as connection:
        sell(connection, 1, 25_000)  # several transactions
        connection.execute("INSERT INTO people VALUES (1, 'Ann', now())")
        definitions = await commit_of(written(tmp_path, shop), folder=tmp_path)
        await api.good("POST", "/commit", definitions, **INLINE)
        await sold(api, connection)
        with psycopg.connect(shop) as late:
            sell(late, 1, 10)
            sell(connection, 1, 20)
            connection.execute("UPDATE people SET name = 'Bea', changed = now()")
            await runs_passed(api, settings)
            # What was written since waits for the open transaction, as it may commit later rows.
            assert (await lookup(api, "Sales", city="Paris"))["orders"] == 25_000
            late.commit()
        await sold(api, connection)
        named = partial(is_named, api, "Bea")
        await eventually(named, within_s=90, interval_s=0.5)
        sources = {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}
        orders = sources["shop/orders"]
        # On a busy machine a run takes longer than three times `every`, which is an alarm.
        assert (orders["kind"], orders["failures"]) == ("postgres", 0)
        (counted,) = orders["datasets"]
        assert (counted["accepted"], counted["late"], counted["dead"]) == (25_030, 0, 0)
