"""What the delivery service has: a Delta table, a topic and a database, on the platform's servers.

Makes and fills them, and stores a connector for each, all with the platform's own addresses, which
`.fennel/env` has. Yours would be elsewhere. Prints how many orders there are.

.venv/bin/python -m examples.delivery.systems dev-delivery --orders 20000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import boto3
import numpy as np
import polars as pl
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import write_deltalake
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.settings.model import Settings

CUSTOMERS, RESTAURANTS, PARTITIONS = 500, 40, 3
CUISINES = ("Indian", "Italian", "Mexican", "Thai", "Lebanese")
HISTORY = timedelta(days=60)
LIVE = 0.2
"""The share of the orders that come through the topic: those of the last days."""
BUCKET, TOPIC, DATABASE = "delivery", "delivery-orders", "delivery"
CLI = (sys.executable, "-m", "fennel_core.apps.cli")
FILES = 10
"""Commits of the Delta table."""


@dataclass(frozen=True, slots=True)
class Rows:
    """`orders`: order_id, customer_id, restaurant_id, amount, at; in the order of `at`.

    `restaurants`: restaurant_id, cuisine, updated_at. Some have changed their cuisine.
    """

    orders: pl.DataFrame
    restaurants: pl.DataFrame


def rows_of(count: int, now: datetime, seed: int = 1) -> Rows:
    """Return the rows; the last order is some seconds older than `now`."""
    draw = np.random.default_rng(seed)
    first = now - HISTORY
    seconds = np.sort(draw.choice(int(HISTORY.total_seconds()) - 60, count, replace=False))
    start = pl.lit(first).cast(pl.Datetime("us", "UTC"))
    orders = pl.DataFrame(
        {
            "order_id": np.arange(count),
            "customer_id": draw.integers(0, CUSTOMERS, count),
            "restaurant_id": draw.integers(0, RESTAURANTS, count),
            "amount": draw.integers(500, 9_000, count) / 100,
            "at": seconds,
        }
    ).with_columns(at=start + pl.duration(seconds=pl.col("at"), milliseconds=500))
    opened = pl.DataFrame(
        {
            "restaurant_id": np.arange(RESTAURANTS),
            "cuisine": draw.choice(CUISINES, RESTAURANTS),
            "after_s": np.full(RESTAURANTS, -3_600),
        }
    )
    # A database has the last state of a row only: these are inserted again, as a later version.
    changed = opened.head(RESTAURANTS // 4).with_columns(
        cuisine=pl.lit("Fusion"), after_s=pl.lit(int(HISTORY.total_seconds()) // 2, dtype=pl.Int64)
    )
    restaurants = pl.concat([opened, changed]).select(
        "restaurant_id", "cuisine", updated_at=start + pl.duration(seconds="after_s")
    )
    return Rows(orders, restaurants)


class Systems:
    """The systems of the service. Each method does one thing, again if it is called again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = (settings.s3_access_key, settings.s3_secret_key.get_secret_value())
        self.dsn = make_conninfo(settings.postgres_dsn.get_secret_value(), dbname=DATABASE)

    def make(self) -> None:
        """Make the bucket, the topic and the database."""
        own = self._settings.postgres_dsn.get_secret_value()
        with psycopg.connect(own, autocommit=True) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        with psycopg.connect(self.dsn) as database:
            database.execute(
                "CREATE TABLE restaurants (restaurant_id bigint, cuisine text NOT NULL, "
                "updated_at timestamptz NOT NULL, PRIMARY KEY (restaurant_id, updated_at))"
            )
            database.execute("CREATE INDEX ON restaurants (updated_at)")
        admin = AdminClient({"bootstrap.servers": self._settings.kafka_bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        key, secret = self._keys
        boto3.client(
            "s3",
            endpoint_url=self._settings.s3_endpoint,
            region_name=self._settings.s3_region,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        ).create_bucket(Bucket=BUCKET)

    def fill_lake(self, orders: pl.DataFrame) -> None:
        """Append orders to the Delta table, in several commits."""
        key, secret = self._keys
        options = {
            "AWS_ENDPOINT_URL": self._settings.s3_endpoint or "",
            "AWS_REGION": self._settings.s3_region,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }
        size = -(-orders.height // FILES)
        for part in orders.iter_slices(size):
            write_deltalake(
                f"s3://{BUCKET}/orders", part.to_arrow(), mode="append", storage_options=options
            )

    def insert(self, restaurants: pl.DataFrame) -> None:
        """Insert restaurants into the table of the database."""
        with psycopg.connect(self.dsn) as database, database.cursor() as cursor:
            cursor.executemany("INSERT INTO restaurants VALUES (%s, %s, %s)", restaurants.rows())

    def send(self, orders: pl.DataFrame) -> None:
        """Send orders to the topic."""
        producer = Producer({"bootstrap.servers": self._settings.kafka_bootstrap})
        for row in orders.iter_rows(named=True):
            value = json.dumps({**row, "at": row["at"].isoformat()}).encode()
            producer.produce(TOPIC, value, key=str(row["customer_id"]))
            producer.poll(0)
        assert producer.flush(120) == 0, "Kafka did not take all orders"

    def store_connectors(self, token: str) -> None:
        """Store a connector for each system in the workspace of the token."""
        at = conninfo_to_dict(self.dsn)
        key, secret = self._keys
        given = {
            ("delivery-lake", "s3", "aws_secret_access_key", secret): {"aws_access_key_id": key},
            ("delivery-topics", "kafka", "", ""): {
                "bootstrap_servers": self._settings.kafka_bootstrap,
                "security_protocol": "PLAINTEXT",
            },
            ("delivery-tables", "postgres", "password", str(at["password"])): {
                "host": at["host"],
                "port": at["port"],
                "db_name": DATABASE,
                "username": at["user"],
            },
        }
        for (name, kind, hidden, value), properties in given.items():
            words = [f"--set={each}={text}" for each, text in properties.items()]
            words += [f"--secret={hidden}=-"] if hidden else []
            caller = ("--url", self._settings.query_url, "--token", token)
            command = [*CLI, "connector", *caller, "add", name, kind, *words]
            subprocess.run(  # noqa: S603  # a fixed list of arguments, and no shell
                command, input=value, text=True, check=True
            )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("token", help="of the workspace that gets the connectors")
    words.add_argument("--orders", type=int, default=20_000)
    words.add_argument("--env", default=".fennel/env", help="file with the platform's addresses")
    given = words.parse_args()
    settings = Settings(_env_file=given.env)  # type: ignore[call-arg]  # pydantic's own argument
    systems, rows = Systems(settings), rows_of(given.orders, datetime.now(UTC))
    live = int(given.orders * LIVE)
    systems.make()
    systems.insert(rows.restaurants)
    systems.fill_lake(rows.orders[:-live])
    systems.send(rows.orders[-live:])
    systems.store_connectors(given.token)
    done = {"orders": given.orders, "in_the_lake": given.orders - live}
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
