"""The shop whose rows come from three systems and go to two, and the data of a run.

Orders come from a topic of Kafka, Parquet files and a table of Postgres into one dataset, each from
one of them. They are joined with the customer of their time, whose changes arrive all the while, so
joined rows are corrected again and again; all that was joined goes to a topic and to a Delta table.
Customers come from a topic, too, or from the changes of a table that has only the last row of each.
No two changes of a customer have the same time or tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import polars as pl

PARTITIONS: Final = 3
CUSTOMERS: Final = 500
CHANGES: Final = 10
"""Of each customer; the first is older than every order."""
SPAN: Final = timedelta(days=9)
"""Event times lie in the nine days before the run, in any order: within the disorder of 14 days."""
PATHS: Final = ("kafka", "files", "table")
SHARES: Final = (0.5, 0.3, 0.2)
"""How many of the orders come along each path."""
DEFINITIONS: Final = """\
from datetime import datetime

from fennel.connectors import S3, Kafka, Postgres, sink, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

__owner__ = "tests@example.com"
kafka = Kafka(
    name="shop",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
files = S3(name="files", aws_access_key_id="{s3_key}", aws_secret_access_key="{s3_secret}")
lake = S3(name="lake")
postgres = Postgres(
    name="tables",
    host="{host}",
    port={port},
    db_name="{database}",
    username="{user}",
    password="{password}",
)
parquet = files.bucket("{bucket}", path="orders/*.parquet", format="parquet")


@source(kafka.topic("{orders}"), disorder="14d", cdc="append")
@source(parquet, every="2s", disorder="14d", cdc="append")
@source(postgres.table("orders", cursor="id"), every="40s", disorder="14d", cdc="append")
@dataset
class Order:
    oid: int
    uid: int
    amount: int
    at: datetime = field(timestamp=True)


@source(kafka.topic("{customers}"), disorder="14d", cdc="upsert")
@source(postgres.table("customers", cursor=""), disorder="14d", cdc="debezium")
@index
@dataset
class Customer:
    uid: int = field(key=True)
    tier: int
    at: datetime = field(timestamp=True)


@sink(kafka.topic("{placed}"), cdc="debezium")
@sink(
    lake.bucket("{lake}", path="{path}", format="delta"),
    how="incremental",
    every="2s",
)
@dataset
class Placed:
    oid: int
    uid: int
    amount: int
    tier: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order, Customer)
    def placed(cls, orders: Dataset, customers: Dataset):
        return orders.join(customers, how="inner", on=["uid"])


@index
@dataset
class Spending:
    uid: int = field(key=True)
    orders: int
    spent: int
    tiers: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Placed)
    def spending(cls, orders: Dataset):
        return orders.groupby("uid").aggregate(
            orders=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
            tiers=Sum(of="tier", window=Continuous("forever")),
        )
"""
TABLES: Final = """
    CREATE TABLE orders (id bigserial PRIMARY KEY, oid bigint NOT NULL UNIQUE, uid int NOT NULL,
        amount int NOT NULL, at timestamptz NOT NULL);
    CREATE TABLE customers (uid int PRIMARY KEY, tier int NOT NULL, at timestamptz NOT NULL);
    CREATE PUBLICATION fennel_customers FOR TABLE customers
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """`orders`: oid, uid, amount, at, path. `customers`: uid, tier, at. In order of arrival."""

    orders: pl.DataFrame
    customers: pl.DataFrame

    def of(self, path: str) -> pl.DataFrame:
        """Return the orders that come along a path."""
        return self.orders.filter(path=path).drop("path")

    def customers_of(self, path: str) -> pl.DataFrame:
        """Return the changes of customers that come from the topic (`kafka`) or the `table`."""
        return self.customers.filter((pl.col("uid") % 2 == 0) == (path == "kafka"))


def rows_of(seed: int, orders: int, now: datetime) -> Rows:
    """Return the data of a run that begins now."""
    draw = np.random.default_rng(seed)
    first = now - SPAN - timedelta(hours=1)
    first_us = int(first.timestamp()) * 1_000_000
    span_us = int(SPAN.total_seconds()) * 1_000_000
    changes = CUSTOMERS * CHANGES
    # Customers and orders have different times, so no join has a tie.
    steps_us = draw.permutation(orders) * (span_us // orders // 2 * 2) + 2
    times_us = draw.choice(span_us // 2, changes, replace=False) * 2 + 1
    times_us[:CUSTOMERS] = -1 - np.arange(CUSTOMERS)
    uids = np.concatenate([np.arange(CUSTOMERS), draw.integers(0, CUSTOMERS, changes - CUSTOMERS)])
    return Rows(
        pl.DataFrame(
            {
                "oid": np.arange(orders),
                "uid": draw.integers(0, CUSTOMERS, orders),
                "amount": draw.integers(1, 100, orders),
                "at": _times(first_us + steps_us),
                "path": draw.choice(PATHS, orders, p=SHARES),
            }
        ),
        pl.DataFrame({"uid": uids, "tier": np.arange(changes), "at": _times(first_us + times_us)}),
    )


def _times(us: np.ndarray) -> pl.Series:
    return pl.Series(us).cast(pl.Datetime("us", "UTC"))
