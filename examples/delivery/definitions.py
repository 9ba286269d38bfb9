"""Orders of a delivery service: their history in a lake, new ones in a topic; restaurants in a
database.

One dataset has two sources. The history is a Delta table on S3, which is read once and then by its
changes, and the topic of Kafka is read as messages arrive. Each order is joined with its restaurant
*as of that moment*, and the same pipeline computes the same aggregates from both. Addresses and
credentials are in no line: the connectors are stored under their names (`systems.py` shows how).
"""

from datetime import datetime
from typing import List

import pandas as pd
from fennel.connectors import S3, Kafka, Postgres, source
from fennel.datasets import Average, Count, Dataset, LastK, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F  # the client's own idiom
from fennel.lib import inputs, meta, outputs

lake = S3.get("delivery-lake").bucket("delivery", path="orders", format="delta")
topic = Kafka.get("delivery-topics").topic("delivery-orders", format="json")
table = Postgres.get("delivery-tables").table("restaurants", cursor="updated_at")


@source(lake, every="10s", disorder="90d", cdc="native")
@source(topic, disorder="90d", cdc="append")
@meta(owner="delivery@example.com")
@dataset
class Order:
    order_id: int
    customer_id: int
    restaurant_id: int
    amount: float
    at: datetime = field(timestamp=True)


@source(table, every="5s", disorder="90d", cdc="upsert")
@meta(owner="delivery@example.com")
@index
@dataset
class Restaurant:
    restaurant_id: int = field(key=True)
    cuisine: str
    updated_at: datetime = field(timestamp=True)


@meta(owner="delivery@example.com")
@index
@dataset
class Spending:
    customer_id: int = field(key=True)
    orders: int
    orders_7d: int
    spent: float
    average: float
    cuisines: List[str]
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order, Restaurant)
    def of_customers(cls, orders: Dataset, restaurants: Dataset):
        return (
            orders.join(restaurants, how="inner", on=["restaurant_id"])
            .groupby("customer_id")
            .aggregate(
                orders=Count(window=Continuous("forever")),
                orders_7d=Count(window=Continuous("7d")),
                spent=Sum(of="amount", window=Continuous("forever")),
                average=Average(of="amount", window=Continuous("forever")),
                cuisines=LastK(of="cuisine", window=Continuous("forever"), limit=3, dedup=True),
            )
        )


@meta(owner="delivery@example.com")
@featureset
class Customer:
    customer_id: int
    orders: int = F(Spending.orders, default=0)
    orders_7d: int = F(Spending.orders_7d, default=0)
    spent: float = F(Spending.spent, default=0.0)
    average: float = F(Spending.average, default=0.0)
    cuisines: List[str] = F(Spending.cuisines, default=[])
    curious: bool

    @extractor
    @inputs("cuisines")
    @outputs("curious")
    def tries_others(cls, ts: pd.Series, cuisines: pd.Series):
        return pd.Series([len(each) > 1 for each in cuisines], name="curious")


DATASETS = [Order, Restaurant, Spending]
FEATURESETS = [Customer]
