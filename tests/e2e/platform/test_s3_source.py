"""Files in a bucket of a user as the sources of a dataset, through a pipeline, exactly once."""

from __future__ import annotations

import io
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from fennel_core.apps.local import processes, status_requests
from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
NOW = "2026-01-01T00:00:00Z"
DEFINITIONS = orders(
    "CSV, S3, source",
    """\
lake = S3(name="lake", aws_access_key_id="{key}", aws_secret_access_key="{secret}")
csv = lake.bucket("{bucket}", path="csv/date=%Y-%m-%d/*.csv", format=CSV(delimiter=";"))
json = lake.bucket("{bucket}", prefix="json/", format="json")
parquet = lake.bucket("{bucket}", path="parquet/**/*.parquet", format="parquet", presorted=True)""",
    """\
@source(csv, every="1s", disorder="14d", cdc="append")
@source(json, every="1s", disorder="14d", cdc="append")
@source(parquet, every="1s", disorder="14d", cdc="append")""",
)


class Shop:
    """Writes files of orders, and knows what their sums must be."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self.bucket, self.orders, self.amount = client, bucket, 0, 0

    def sell(self, rows: int, key: str) -> None:
        """Put a file of orders, in the format that its key ends with."""
        amounts = range(self.orders + 1, self.orders + rows + 1)
        table = pa.table({"city": ["Paris"] * rows, "amount": amounts, "at": [NOW] * rows})
        self.orders, self.amount = self.orders + rows, self.amount + sum(amounts)
        sink = io.BytesIO()
        match key.rpartition(".")[2]:
            case "csv":
                pc.write_csv(table, sink, pc.WriteOptions(delimiter=";"))
            case "json":
                sink.write(b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist()))
            case "parquet":
                pq.write_table(table, sink, row_group_size=10_000)
        self.put(key, sink.getvalue())

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=key, Body=content)


@pytest.fixture
def shop(settings: Settings) -> Shop:
    client, bucket = s3.client(settings), f"lake-{uuid.uuid4().hex[:8]}"
    s3.ensure_bucket(client, bucket)
    return Shop(client, bucket)


def written(tmp_path: Path, settings: Settings, bucket: str, secret: str = "") -> Path:
    file = tmp_path / "orders.py"
    secret = secret or settings.s3_secret_key.get_secret_value()
    text = DEFINITIONS.format(bucket=bucket, key=settings.s3_access_key, secret=secret)
    file.write_text(text)
    return file


async def sales(api: Api) -> tuple[int, int] | None:
    """Return the number of orders and their sum; None if a slot is late, as on a busy machine."""
    body = {"keys": [{"city": "Paris"}], "fields": []}
    status, text = await api.call("POST", "/dataset/Sales/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data = json.loads(text)["data"] if status == 200 else None
    return None if data is None else (data["orders"][0] or 0, data["amount"][0] or 0)


async def sold(api: Api, shop: Shop, settings: Settings) -> None:
    """Wait until every order is counted, and check that none is counted twice."""
    seen: list[object] = []

    async def all_there() -> bool:
        found = await sales(api)
        seen[:] = [found, [(s["source"], s["reason"]) for s in status_of(settings)]]
        return found is not None and found[0] >= shop.orders

    await eventually(
        all_there, within_s=150, interval_s=0.3, what=lambda: f"{shop.orders} orders: {seen}"
    )
    await api.settled(within_s=60)
    counted = await eventually(partial(sales, api), within_s=60, interval_s=0.3)
    assert counted == (shop.orders, shop.amount)


def status_of(settings: Settings) -> list[dict]:
    return list(status_requests.read(settings).sources or ())


def kill_sources(settings: Settings) -> None:
    """Kill the sources (driver, JVM, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


async def test_rows_of_files_are_counted_once_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    api = await make()
    shop.sell(500, "csv/date=2026-01-02/a.csv")
    shop.sell(300, "json/a.json")
    shop.sell(60_000, "parquet/x/y/a.parquet")
    shop.put("parquet/x/half.parquet", b"PAR1 half a file")
    definitions = await commit_of(str(written(tmp_path, settings, shop.bucket)), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    await sold(api, shop, settings)
    # An earlier name and an earlier day than what was read.
    shop.sell(100, "csv/date=2026-01-01/0.csv")
    shop.sell(100_000, "parquet/a.parquet")
    kill_sources(settings)
    shop.sell(50, "json/0.json")
    shop.put("json/broken.json", b"no json\n")
    await sold(api, shop, settings)
    listed = (await api.good("GET", "/sources"))["sources"]
    assert {each["kind"] for each in listed} == {"s3"}
    counts = [
        sum(each["datasets"][0][what] for each in listed) for what in ("accepted", "late", "dead")
    ]
    assert counts == [shop.orders, 0, 2]
    # The newest rows are shown, and what is being read is not rewound.
    json_source = next(each for each in listed if "format=json" in each["source"])
    named = json.dumps({"source": json_source["source"]}).encode()
    tried = (await api.good("POST", "/sources/test", named))["datasets"][0]["messages"]
    assert {each["file"] for each in tried} <= {"json/0.json", "json/a.json", "json/broken.json"}
    assert any(each.get("row", {}).get("city") == "Paris" for each in tried)
    rewind = {"source": json_source["source"], "to": "earliest", "duplicates_rows": True}
    status, text = await api.call("POST", "/sources/rewind", json.dumps(rewind).encode())
    assert (status, "pause it first" in text) == (409, True), text
    # A pause stops all of it; a file that comes meanwhile is read after it.
    for each in listed:
        pause = json.dumps({"source": each["source"]}).encode()
        await api.good("POST", "/sources/pause", pause)
    shop.sell(10, "json/paused.json")
    for each in listed:
        await api.good("POST", "/sources/resume", json.dumps({"source": each["source"]}).encode())
    await sold(api, shop, settings)
    # All files of a source are read again, once.
    await api.good("POST", "/sources/pause", named)
    done = await api.good("POST", "/sources/rewind", json.dumps(rewind).encode())
    assert done["read_again"] == 361, "with a line that is not JSON"
    await api.good("POST", "/sources/resume", named)

    async def accepted() -> bool:
        rows = (await api.good("GET", "/sources"))["sources"]
        (own,) = [each for each in rows if each["source"] == json_source["source"]]
        return bool(own["datasets"][0]["accepted"] == 2 * 360)

    await eventually(accepted, within_s=90, interval_s=0.5, what="the rows are there twice")


async def test_a_bucket_that_cannot_be_read_is_refused_at_commit(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    api = await make()
    for bucket, secret, expected in (
        ("no-such-bucket-1", "", "does not exist"),
        (shop.bucket, "wrong-key", "does not allow listing it"),
        (settings.s3_bucket, "", "bucket of the platform itself"),
    ):
        file = written(tmp_path, settings, bucket, secret)
        definitions = await commit_of(str(file), folder=tmp_path)
        for path in ("/commit?preview=true", "/commit"):
            status, answer = await api.call("POST", path, definitions, **INLINE)
            assert status == 500, answer
            assert expected in answer
