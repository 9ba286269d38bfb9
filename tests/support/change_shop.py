"""A shop whose orders come from the changes of a table, and what is asked of the platform."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fennel_core.apps.local import processes
from fennel_core.settings.model import Settings
from tests.support import orders as definitions
from tests.support.executors import commit_of
from tests.support.polling import eventually
from tests.support.table_shop import lookup
from tests.support.workspaces import INLINE, Api

SOURCE: Final = "shop/orders?changes"
NAME: Final = {"source": SOURCE}
_FIELDS: Final = """\
    id: int = field(key=True)
    day: date
    note: Optional[str]
"""
_OTHERS: Final = """\
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


async def orders(folder: Path, kind: str, at: str, cursor: str = "") -> bytes:
    """Return a commit of the orders. `at`: the rest of what the connector is made with."""
    shop = f'shop = {kind}(name="shop", host="127.0.0.1", {at})'
    table = f'shop.table("orders", cursor="{cursor}"), disorder="14d", cdc="debezium"'
    text = definitions.orders(f"{kind}, source", shop, f"@source({table})\n@index", _FIELDS)
    return await _commit(folder, text)


async def others(folder: Path) -> bytes:
    """Return a commit without the table."""
    return await _commit(folder, _OTHERS)


async def _commit(folder: Path, text: str) -> bytes:
    file = folder / "orders.py"
    file.write_text(text)
    return await commit_of(str(file), folder=folder)


async def sold(api: Api, total: Callable[[], tuple[Any, ...]]) -> None:
    """Wait until the aggregate says what the table says. `total`: its rows and their amounts."""
    expected, last = total(), list[object]()

    async def same() -> bool:
        found = await lookup(api, "Sales", city="Paris")
        last[:] = [found]
        return (found.get("orders"), found.get("amount")) == expected

    await eventually(same, within_s=240, interval_s=0.5, what=lambda: f"{expected}: {last}")


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


async def check_listed(api: Api, kind: str, accepted: int) -> None:
    """Check what is listed of the source: all rows were accepted, once."""
    [listed] = (await api.good("GET", "/sources"))["sources"]
    assert (listed["source"], listed["kind"], listed["failures"]) == (SOURCE, kind, 0)
    counted = listed["datasets"][0]
    assert [counted[what] for what in ("accepted", "late", "dead")] == [accepted, 0, 0]


async def newest(api: Api) -> list[int]:
    """Return the keys of the rows that `source test` shows."""
    tried = (await api.good("POST", "/sources/test", NAME))["datasets"][0]["messages"]
    return [each["row"]["id"] for each in tried]


async def read_again(api: Api, change: Callable[[], object]) -> None:
    """Pause the source, let it read the table again, and change the table before it resumes."""
    await api.good("POST", "/sources/pause", NAME)
    await api.good("POST", "/sources/rewind", {**NAME, "to": "earliest"})
    change()
    await api.good("POST", "/sources/resume", NAME)


async def gone(api: Api, settings: Settings, is_gone: Callable[[], Awaitable[bool]]) -> None:
    """Delete the workspace, and wait until nothing is left of its source."""
    api.token = settings.admin_token.get_secret_value()
    await api.good("DELETE", f"/workspaces/{api.workspace}")
    await eventually(is_gone, within_s=120, interval_s=0.5, what="nothing is left of the source")
