"""What users' systems become while they are read: nothing is lost in silence, the rest goes on.

`make connectors` runs this.
"""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.user_systems import BUCKET, FILES, KAFKA, POSTGRES, UserSystems
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(1800)]
NOW = "2026-01-01T00:00:00Z"
SMALL_FILES = 10_000
TOPIC = orders(
    "Kafka, source", KAFKA, '@source(kafka.topic("{name}"), disorder="14d", cdc="append")'
)
FOLDER = orders(
    "S3, source",
    FILES,
    '@source(files.bucket("{bucket}", path="{name}/**/*.{format}", format="{format}"), every="1s", '
    'disorder="14d", cdc="append")',
)
TABLE = orders(
    "Postgres, source",
    POSTGRES,
    '@source(postgres.table("orders", cursor="id"), every="2s", disorder="14d", cdc="append")',
)
AMOUNT = "    amount: int\n"
PRICED = (
    ("@dataset\nclass Order", "@dataset(version=2)\nclass Order"),
    (AMOUNT, AMOUNT + "    price: float\n"),
)


@pytest.fixture
def systems(settings: Settings) -> Iterator[UserSystems]:
    made = UserSystems(settings)
    yield made
    made.close()


class Drift:
    """A workspace that reads orders from one of the systems."""

    def __init__(self, api: Api, systems: UserSystems, folder: Path, definitions: str) -> None:
        self.api, self.systems, self._folder = api, systems, folder
        self._definitions = definitions

    async def commit(self, *changes: tuple[str, str], **values: str) -> Any:
        text = self._definitions
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        self._definitions = text
        file = self._folder / "drift.py"
        file.write_text(text.format(**self.systems.addresses(), bucket=BUCKET, **values))
        made = await commit_of(str(file), folder=self._folder)
        return await self.api.good("POST", "/commit", made, **INLINE)

    async def counted(self, wanted: int, dead: int) -> dict[str, Any]:
        """Wait until so many rows have entered and are dead letters; return the source."""
        seen: list[Any] = []

        async def there() -> bool:
            seen[:] = (await self.api.good("GET", "/sources"))["sources"]
            (row,) = seen[0]["datasets"]
            return bool(row["accepted"] >= wanted and row["dead"] >= dead)

        await eventually(there, within_s=300, interval_s=0.5, what=lambda: seen)
        await self.api.settled(within_s=60)
        body = {"keys": [{"city": "Paris"}], "fields": ["orders"]}
        found = await self.api.good("POST", "/dataset/Sales/lookup", body)
        (row,) = seen[0]["datasets"]
        assert (row["accepted"], row["dead"], row["late"]) == (wanted, dead, 0)
        assert (found["data"]["orders"][0] or 0) == wanted
        source: dict[str, Any] = seen[0]
        return source

    async def broken(self, *texts: str) -> None:
        """Wait until the source says why it cannot be read."""
        seen: list[Any] = []

        async def said() -> bool:
            seen[:] = (await self.api.good("GET", "/sources"))["sources"]
            return all(text in (seen[0]["error"] or "") for text in texts)

        await eventually(said, within_s=120, interval_s=0.5, what=lambda: seen)

    async def sold(self, wanted: int) -> None:
        """Wait until so many orders are counted."""
        found: list[Any] = []

        async def there() -> bool:
            body = {"keys": [{"city": "Paris"}], "fields": ["orders"]}
            found[:] = await self.api.call("POST", "/dataset/Sales/lookup", body)
            return found[0] == 200 and json.loads(found[1])["data"]["orders"] == [wanted]

        await eventually(there, within_s=300, interval_s=0.5, what=lambda: found)


Make = Callable[[], Awaitable[Api]]


def row(**changes: Any) -> dict[str, Any]:
    return {"city": "Paris", "amount": 1, "at": NOW} | changes


async def test_messages_with_new_missing_and_other_columns(
    make: Make, systems: UserSystems, tmp_path: Path
) -> None:
    drift = Drift(await make(), systems, tmp_path, TOPIC)
    await drift.commit()
    rows = [row(), row(price=2.5), row(amount="many"), {"city": "Paris", "at": NOW}]
    rows += [row(at="2026-01-01T01:00:00+01:00"), row(at="yesterday")]
    systems.send(json.dumps(each).encode() for each in rows)
    await drift.counted(3, 3)
    # The new version is computed from all messages again: what lacks the column is a dead letter.
    await drift.commit(*PRICED)
    systems.send([json.dumps(row(price=1.5)).encode()])
    await drift.sold(2)


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


async def test_files_with_other_columns_without_rows_and_cut_in_half(
    make: Make, systems: UserSystems, tmp_path: Path
) -> None:
    drift = Drift(await make(), systems, tmp_path, FOLDER)
    await drift.commit(format="parquet")
    some = {"city": ["Paris"] * 3, "amount": [1, 2, 3], "at": [NOW] * 3}
    good = parquet(**some)
    systems.put("1.parquet", good)
    systems.put("2-new-column.parquet", parquet(price=[0.5] * 3, **some))
    systems.put("3-order.parquet", parquet(at=[NOW], amount=[1], city=["Paris"]))
    systems.put("4-type.parquet", parquet(**some | {"amount": ["1", "2", "many"]}))
    systems.put("5-missing.parquet", parquet(city=["Paris"], at=[NOW]))
    systems.put("6-without-rows.parquet", parquet(city=[], amount=[], at=[]))
    systems.put("7-empty.parquet", b"")
    systems.put("8-half.parquet", good[: len(good) // 2])
    source = await drift.counted(9, 4)  # a text that is a number is one
    assert source["error"] is None
    systems.put("8-half.parquet", good)
    await drift.counted(12, 4)


async def test_ten_thousand_small_files_enter_once(
    make: Make, systems: UserSystems, tmp_path: Path
) -> None:
    drift = Drift(await make(), systems, tmp_path, FOLDER)

    def put(number: int) -> None:
        systems.put(f"{number % 100}/{number}.json", json.dumps(row()).encode())

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(put, range(SMALL_FILES)))
    await drift.commit(format="json")
    await drift.counted(SMALL_FILES, 0)


async def test_a_table_with_other_columns_and_another_name(
    make: Make, systems: UserSystems, tmp_path: Path
) -> None:
    drift = Drift(await make(), systems, tmp_path, TABLE)
    insert = "INSERT INTO orders (city, amount, at) VALUES ('Paris', 1, '2026-01-01 01:00')"
    sell = partial(systems.execute, insert)
    systems.execute("CREATE TABLE orders (id bigserial, city text, amount int, at timestamptz)")
    systems.execute(f"ALTER DATABASE \"{systems.name}\" SET timezone TO 'Europe/Paris'")
    sell()
    await drift.commit()
    await drift.counted(1, 0)
    found = await drift.api.good("GET", "/dataset/Order/inspect?n=1")
    assert "2026-01-01T00:00" in json.dumps(found), "an instant does not depend on the zone"
    systems.execute("ALTER TABLE orders ADD COLUMN price float DEFAULT 2.5")
    sell()
    await drift.counted(2, 0)
    await drift.commit(*PRICED)
    # The first row was read before it had a price, and is a dead letter of the new version.
    sell()
    await drift.sold(2)
    systems.execute("ALTER TABLE orders RENAME TO past_orders")
    await drift.broken("orders")
    systems.execute("ALTER TABLE past_orders RENAME TO orders")
    sell()
    await drift.sold(3)
    systems.execute("ALTER TABLE orders ALTER COLUMN price TYPE text")
    await drift.broken("`price` is text now")
    systems.execute("ALTER TABLE orders DROP COLUMN price")
    await drift.broken("no column `price`")
