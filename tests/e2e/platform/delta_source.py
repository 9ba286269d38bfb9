"""Delta tables in a bucket of a user as the sources of datasets, exactly once.

One grows and feeds a dataset without keys; rows of the other are updated and deleted.
`make connectors` runs this.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fennel_core.apps.local import processes
from fennel_core.connections import s3
from fennel_core.connections.delta_log import FEED
from fennel_core.connections.external_delta import ExternalDelta
from fennel_core.connections.external_s3 import ExternalBucket
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
NOW = "2026-01-01T00:00:00Z"
DEFINITIONS = (
    orders(
        "S3, source",
        """\
lake = S3(name="lake", aws_access_key_id="{key}", aws_secret_access_key="{secret}")
sold = lake.bucket("{bucket}", prefix="orders", format="delta")
known = lake.bucket("{bucket}", path="in/people/", format="delta")""",
        '@source(sold, every="1s", disorder="14d", cdc="native")',
    )
    + """

@source(known, every="1s", disorder="14d", cdc="native")
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    person: int = field(key=True)
    name: str
    at: datetime = field(timestamp=True)
"""
)


class Lake:
    """Writes both tables."""

    def __init__(self, settings: Settings) -> None:
        self.bucket, self.settings = f"lake-{uuid.uuid4().hex[:8]}", settings
        s3.ensure_bucket(s3.client(settings), self.bucket)
        self.orders = self.amount = 0

    def place(self, path: str) -> ExternalDelta:
        own = self.settings
        keys = own.s3_access_key, own.s3_secret_key
        bucket = ExternalBucket("lake", self.bucket, own.s3_endpoint, own.s3_region, *keys)
        return ExternalDelta(bucket, path)

    def sell(self, rows: int) -> None:
        amounts = range(self.orders + 1, self.orders + rows + 1)
        self.orders, self.amount = self.orders + rows, self.amount + sum(amounts)
        self.write("orders", {"city": ["Paris"] * rows, "amount": amounts}, feed=False)

    def people(self, names: dict[int, str], mode: str = "append") -> None:
        columns = {"person": list(names), "name": list(names.values())}
        self.write("in/people", columns, feed=True, mode=mode)

    def write(self, path: str, columns: dict, *, feed: bool, mode: str = "append") -> None:
        count = len(next(iter(columns.values())))
        at = pa.array([NOW] * count).cast(pa.timestamp("us", "UTC"))
        place = self.place(path)
        write_deltalake(
            place.uri,
            pa.table(columns | {"at": at}),
            mode=mode,
            configuration={FEED: "true"} if feed else None,
            storage_options=place.options(),
        )

    def table(self, path: str) -> DeltaTable:
        place = self.place(path)
        return DeltaTable(place.uri, storage_options=place.options())


async def looked_up(api: Api, dataset: str, **keys: object) -> dict:
    body = {"keys": [keys], "fields": []}
    status, text = await api.call("POST", f"/dataset/{dataset}/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data = json.loads(text)["data"] if status == 200 else {}
    return {name: column[0] for name, column in data.items()}


async def sold(api: Api, lake: Lake) -> None:
    """Wait until every order is counted, and check that none is counted twice."""
    last: list[dict] = []

    async def there() -> bool:
        last[:] = [await looked_up(api, "Sales", city="Paris")]
        return (last[0].get("orders") or 0) >= lake.orders

    await eventually(
        there, within_s=150, interval_s=0.5, what=lambda: f"{lake.orders} orders: {last}"
    )
    await api.settled(within_s=60)
    found = await looked_up(api, "Sales", city="Paris")
    assert (found["orders"], found["amount"]) == (lake.orders, lake.amount)


async def named(api: Api, person: int, name: str | None) -> None:
    async def there() -> bool:
        return (await looked_up(api, "Person", person=person)).get("name") == name

    await eventually(there, within_s=90, interval_s=0.5, what=f"person {person} is {name}")


def kill_sources(settings: Settings) -> None:
    """Kill the sources (driver, JVM, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


async def test_rows_of_delta_tables_enter_once_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, tmp_path: Path
) -> None:
    api, lake = await make(), Lake(settings)
    file = tmp_path / "orders.py"
    keys = {"key": settings.s3_access_key, "secret": settings.s3_secret_key.get_secret_value()}
    file.write_text(DEFINITIONS.format(bucket=lake.bucket, **keys))
    definitions = await commit_of(str(file), folder=tmp_path)
    status, text = await api.call("POST", "/commit", definitions, **INLINE)
    assert (status, text.count("does not exist")) == (500, 2), text
    lake.sell(60_000)
    lake.people({1: "Ann", 2: "Bob", 3: "Cid"})
    await api.good("POST", "/commit", definitions, **INLINE)
    await sold(api, lake)
    await named(api, 1, "Ann")
    lake.sell(100_000)
    kill_sources(settings)
    lake.table("orders").optimize.compact()
    lake.sell(50)
    lake.table("in/people").delete("person = 2")
    lake.table("in/people").update(predicate="person = 1", new_values={"name": "Bea"})
    await sold(api, lake)
    await named(api, 1, "Bea")
    await named(api, 2, None)
    lake.people({1: "Bea", 4: "Dan"}, mode="overwrite")
    await named(api, 4, "Dan")
    await named(api, 3, None)
    await named(api, 1, "Bea")
    listed = {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}
    assert {each["kind"] for each in listed.values()} == {"delta"}
    own = listed[f"lake/{lake.bucket}/orders?format=delta"]
    counted = own["datasets"][0]
    assert [counted[what] for what in ("accepted", "late", "dead")] == [lake.orders, 0, 0]
    await once_more(api, lake, own["source"])
    # A table that must only grow is changed: the source says so, and the other goes on.
    lake.table("orders").delete("amount = 1")

    async def broken() -> bool:
        rows = {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}
        return "changes or removes rows" in (rows[own["source"]]["error"] or "")

    await eventually(broken, within_s=90, interval_s=0.5, what="the source is broken")
    lake.people({5: "Eve"})
    await named(api, 5, "Eve")


async def once_more(api: Api, lake: Lake, source: str) -> None:
    """Show rows, then pause and rewind: every row of the newest version enters once more."""
    name = json.dumps({"source": source}).encode()
    tried = (await api.good("POST", "/sources/test", name))["datasets"][0]["messages"]
    assert [each["row"]["city"] for each in tried] == ["Paris"] * 5
    await api.good("POST", "/sources/pause", name)
    rewind = {"source": source, "to": "earliest", "duplicates_rows": True}
    done = await api.good("POST", "/sources/rewind", json.dumps(rewind).encode())
    assert done["read_again"] == lake.orders
    await api.good("POST", "/sources/resume", name)

    async def twice() -> bool:
        found = await looked_up(api, "Sales", city="Paris")
        return found.get("orders") == 2 * lake.orders

    await eventually(partial(twice), within_s=120, interval_s=0.5, what="all rows are there twice")
