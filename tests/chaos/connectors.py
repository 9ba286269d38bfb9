"""Kill what stands between sources and sinks, and compare both ends: `make connector-faults`.

A platform of its own reads orders from a topic, Parquet files and a table, and customers from a
topic and the changes of a table, joins and aggregates them, and writes what was joined to a topic
and a Delta table (`connector_shop.py`), while its parts, and the systems that it reads and writes,
are killed and frozen at random moments of a seed (`strikes.py`). Nothing is restarted by hand.
Afterwards every source and sink must be healthy, and every key of the aggregate and every row of
both sinks must equal a recompute (`connector_audit.py`, which imports nothing of the platform).
Prints how long each kind of part took until it, every stream and every sink worked again. Exits
with 1 if anything of this fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import polars as pl
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.apps.local import status_requests
from fennel_core.apps.local.platform import load_context
from fennel_core.apps.local.services import service_table
from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.chaos.connector_audit import Places, looked_up
from tests.chaos.connector_shop import CUSTOMERS, DEFINITIONS, PARTITIONS, TABLES, Rows, rows_of
from tests.chaos.connector_writers import change, insert, put, send
from tests.chaos.run import print_recoveries
from tests.chaos.strikes import Kind, Striker, plan_strikes
from tests.support.executors import commit_of
from tests.support.own_platform import OwnPlatform
from tests.support.platform_settings import ENV_COMMAND
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

KINDS: Final = (
    *(Kind.SOURCES, Kind.SOURCES_WORKER, Kind.CHANGE_ENGINE, Kind.TABLE_RUN),
    *(Kind.SLOT, Kind.JVM, Kind.ENGINE),
    *(Kind.KAFKA, Kind.POSTGRES, Kind.S3),
)
EVERY_S: Final = 25.0
"""Between two faults, on average: some overlap, and most find data under way."""
ROWS_PER_S: Final = 1_500
"""As fast as two cores take them; so rows are under way as long as faults come."""
PATIENCE_S: Final = 120.0
MAKE_UP_S: Final = 900.0
"""How long faults that found no process are tried again behind the plan."""
SETTLE_S: Final = 900.0
REST_S: Final = 6.0
"""Three times as long as the table of the sink rests."""
HEALTHY_S: Final = 120.0
SOURCES_AND_SINKS: Final = 5 + 2
LAKE: Final = "faults-lake"
FILES: Final = "faults-files"
TABLE_SOURCE: Final = "tables/orders"
CHANGES: Final = "tables/customers?changes"
FIRST_READ_S: Final = 120.0
HALF: Final = CUSTOMERS // 2
"""Customers of the topic, and of the table."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The systems of the run. `dsn`: of the database with the tables."""

    settings: Settings
    workspace: str
    rows: Rows
    dsn: str

    @property
    def topics(self) -> dict[str, str]:
        return {name: f"{self.workspace}-{name}" for name in ("orders", "customers", "placed")}

    def make(self) -> None:
        """Make topics, buckets and tables."""
        admin = AdminClient({"bootstrap.servers": self.settings.kafka_bootstrap})
        wanted = [NewTopic(topic, PARTITIONS, 1) for topic in self.topics.values()]
        for made in admin.create_topics(wanted).values():
            made.result(60)
        client = s3.client(self.settings)
        for bucket in (LAKE, FILES):
            s3.ensure_bucket(client, bucket)
        with psycopg.connect(self.settings.postgres_dsn.get_secret_value(), autocommit=True) as own:
            own.execute("CREATE DATABASE shop")
        with psycopg.connect(self.dsn) as shop:
            shop.execute(TABLES)

    def definitions(self) -> str:
        at = conninfo_to_dict(self.dsn)
        return DEFINITIONS.format(
            bootstrap=self.settings.kafka_bootstrap,
            s3_key=self.settings.s3_access_key,
            s3_secret=self.settings.s3_secret_key.get_secret_value(),
            host=at["host"],
            port=at["port"],
            database=at["dbname"],
            user=at["user"],
            password=at.get("password", "none"),
            bucket=FILES,
            lake=LAKE,
            path=self.workspace,
            **self.topics,
        )

    def places(self, rows: Path) -> Places:
        """Write the rows to a folder and return where everything is."""
        self.rows.orders.write_parquet(rows / "orders.parquet")
        self.rows.customers.write_parquet(rows / "customers.parquet")
        settings = self.settings
        return Places(
            url=settings.query_url,
            token=f"dev-{self.workspace}",
            rows=str(rows),
            bootstrap=settings.kafka_bootstrap,
            topic=self.topics["placed"],
            partitions=PARTITIONS,
            table=f"s3://{LAKE}/{self.workspace}",
            storage={
                "AWS_ENDPOINT_URL": settings.s3_endpoint or "",
                "AWS_REGION": settings.s3_region,
                "AWS_ACCESS_KEY_ID": settings.s3_access_key,
                "AWS_SECRET_ACCESS_KEY": settings.s3_secret_key.get_secret_value(),
                "AWS_ALLOW_HTTP": "true",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            },
        )

    async def begin(self) -> None:
        """Write the first change of each customer, which is older than every order.

        Wait until the table is read: of what a row was before, no change says anything.
        """
        to, topic = self.settings.kafka_bootstrap, self.topics["customers"]
        first, there = (
            self.rows.customers_of("kafka")[:HALF],
            self.rows.customers_of("table")[:HALF],
        )
        await asyncio.to_thread(send, to, topic, PARTITIONS, first, 0.0)
        await asyncio.to_thread(change, self.dsn, there, 0.0)

        async def is_read() -> bool:
            listed = status_requests.read(self.settings).sources or ()
            return any(each["source"] == CHANGES and each["rows"] == HALF for each in listed)

        await eventually(is_read, within_s=FIRST_READ_S, interval_s=0.5, what="customers are read")

    async def write(self, seconds: float) -> None:
        """Write everything else within so many seconds, whatever is killed."""
        rows, kafka = self.rows, self.settings.kafka_bootstrap
        to = partial(send, kafka, self.topics["customers"], PARTITIONS)
        sent, changed = rows.customers_of("kafka")[HALF:], rows.customers_of("table")[HALF:]
        orders = partial(send, kafka, self.topics["orders"], PARTITIONS, rows.of("kafka"))
        client = s3.client(self.settings)
        await asyncio.gather(
            asyncio.to_thread(to, sent, seconds),
            asyncio.to_thread(change, self.dsn, changed, seconds),
            asyncio.to_thread(orders, seconds),
            asyncio.to_thread(put, client, FILES, rows.of("files"), seconds),
            asyncio.to_thread(insert, self.dsn, rows.of("table"), seconds),
        )


def unhealthy(settings: Settings, kind: Kind) -> str | None:
    """Return which source or sink does not work; a table only counts if its run was struck."""
    answers = status_requests.read(settings)
    if answers.sources is None or answers.sinks is None:
        return "the sources do not respond"
    for each in answers.sources:
        counts = each["source"] != TABLE_SOURCE or kind is Kind.TABLE_RUN
        if counts and each["reason"] is not None:
            return f"{each['source']}: {each['reason']}"
    broken = [f"{each['sink']}: {each['reason']}" for each in answers.sinks if each["reason"]]
    return broken[0] if broken else None


async def settled(api: Api, shop: Shop, places: Places) -> str | None:
    """Wait until all rows have passed everything; return what has not after `SETTLE_S`."""
    give_up, before = time.monotonic() + SETTLE_S, None
    while time.monotonic() < give_up:
        missing, events = await _missing(api, shop, places)
        if missing is None and events == before:
            return None
        # Sinks say how far they are behind once they have looked again.
        before = events if missing is None else None
        await asyncio.sleep(REST_S)
    return missing or f"sinks still write: {events}"


async def _missing(api: Api, shop: Shop, places: Places) -> tuple[str | None, list[int]]:
    """Return what is under way, and how many events each sink has written."""
    status, text = await api.call("POST", "/barrier", {"timeout_s": 30})
    if status != 200:
        return f"barrier: {status} {text[:300]}", []
    wanted = shop.rows.orders.group_by("uid").agg(orders=pl.len().cast(pl.Int64)).sort("uid")
    found = (await asyncio.to_thread(looked_up, places, wanted))["orders"].sum()
    if found < shop.rows.orders.height:
        return f"{found} of {shop.rows.orders.height} orders are counted", []
    if why := unhealthy(shop.settings, Kind.TABLE_RUN):
        return why, []
    sinks = status_requests.read(shop.settings).sinks or []
    waiting = [each for each in sinks if each["behind"] != 0]
    return f"sinks: {waiting}" if waiting else None, [each["events"] for each in sinks]


async def broken_for(settings: Settings, seconds: float) -> str | None:
    """Return what is not healthy after so many seconds, failures in a row included."""
    give_up = time.monotonic() + seconds
    while True:
        found = status_requests.read(settings)
        rows = [*(found.sources or ()), *(found.sinks or ())]
        bad = [each for each in rows if each["reason"] is not None or each["failures"]]
        if len(rows) == SOURCES_AND_SINKS and not bad:
            return None
        if time.monotonic() > give_up:
            return f"{len(rows)} sources and sinks respond, not healthy: {bad}"
        await asyncio.sleep(1.0)  # the pause of an operator who looks again


async def run(arguments: argparse.Namespace, folder: Path) -> int:
    settings, context = Settings(), load_context()
    server = settings.postgres_dsn.get_secret_value()
    rows = rows_of(arguments.seed, arguments.rows, datetime.now(UTC))
    shop = Shop(settings, "faults", rows, make_conninfo(server, dbname="shop"))
    shop.make()
    places = shop.places(folder)
    file = folder / "connector_faults.py"
    file.write_text(shop.definitions())
    seconds = max(arguments.kills * EVERY_S, arguments.rows / ROWS_PER_S)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        api = Api(session, settings, shop.workspace)
        await api.good("POST", "/commit", await commit_of(str(file), folder=folder), **INLINE)
        striker = Striker(
            context.layout, service_table(context), partial(unhealthy, settings), PATIENCE_S
        )
        plan = plan_strikes(arguments.seed, seconds, arguments.kills, KINDS)
        print(
            f"{arguments.rows} orders and {arguments.kills} faults in {seconds:.0f} s", flush=True
        )
        await shop.begin()
        await asyncio.gather(shop.write(seconds), striker.run(plan, MAKE_UP_S))
        began = time.monotonic()
        late = await settled(api, shop, places)
        print(f"settled {time.monotonic() - began:.0f} s after the last row and fault", flush=True)
        sick = await broken_for(settings, HEALTHY_S)
        listed = (await api.good("GET", "/sources"))["sources"]
    for each in listed:
        for counted in each["datasets"]:
            print(
                f"{each['source']}: accepted {counted['accepted']}, late {counted['late']}, "
                f"dead {counted['dead']}"
            )
    print_recoveries(striker.result)
    audit = subprocess.run(
        [sys.executable, "-m", "tests.chaos.connector_audit"],
        input=json.dumps(asdict(places)),
        text=True,
        check=False,
    )
    failures = {
        "a part, a stream or a sink did not come back": striker.result.lost,
        "faults were left out": arguments.kills - striker.result.done,
        "not all rows have passed": late,
        "a source or a sink is not healthy": sick,
        "values differ from the recompute": audit.returncode,
    }
    for text, why in failures.items():
        if why:
            print(f"FAILED (seed {arguments.seed}): {text}: {why}")
    return 1 if any(failures.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="orders over all sources")
    parser.add_argument("--kills", type=int, default=10, help="processes killed or frozen")
    parser.add_argument("--seed", type=int, default=1, help="determines rows and faults")
    parser.add_argument("--keep", action="store_true", help="keep the data of a run that failed")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fennel-faults-"))
    platform = OwnPlatform(folder / "platform", FENNEL_SINK_SHARED_BUCKETS=json.dumps([LAKE]))
    os.environ.update(platform.settings)
    status = 1
    try:
        platform.run("up")
        for line in platform.run(*ENV_COMMAND).splitlines():
            name, _, value = shlex.split(line.removeprefix("export "))[0].partition("=")
            os.environ[name] = value
        status = asyncio.run(run(arguments, folder))
    finally:
        platform.run("down")
        if status and arguments.keep:
            print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
