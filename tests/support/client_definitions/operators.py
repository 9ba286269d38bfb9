"""Every operator, window and aggregation the client can write."""

# ruff: noqa: UP006, UP017, UP035, UP045 - the client reads annotations as typing's generics, and
# naive datetimes as UTC

from datetime import date, datetime, timezone
from decimal import Decimal as PythonDecimal
from typing import List, Optional

import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import (
    Average,
    Count,
    Dataset,
    Distinct,
    ExpDecaySum,
    FirstK,
    LastK,
    Max,
    Min,
    Quantile,
    Stddev,
    Sum,
    dataset,
    field,
    index,
    pipeline,
)
from fennel.dtypes import (
    Continuous,
    Decimal,
    Hopping,
    Session,
    Tumbling,
    Window,
    between,
    oneof,
    regex,
)
from fennel.expr import col, lit
from fennel.lib import includes, inputs, meta

__owner__ = "data@example.com"
webhook = Webhook(name="shop")


def cents_per_unit() -> int:
    return 100


@source(webhook.endpoint("Orders"), disorder="14d", cdc="append", env="prod")
@meta(tags=["pii"], description="one row per order")
@dataset(history="1y")
class Orders:
    order_id: int
    user: str
    city: Optional[str]
    amount: float
    price: Decimal[2]
    day: date
    tags: List[str]
    quantities: List[int]
    rating: between(int, 1, 5)
    channel: oneof(str, ["web", "app"])
    zip_code: regex("[0-9]{5}")
    paid_at: datetime
    at: datetime = field(timestamp=True)


@source(webhook.endpoint("Users"), disorder="1h", cdc="upsert")
@index
@dataset
class Users:
    user: str = field(key=True, erase_key=True)
    country: str
    age: Optional[int]
    updated: datetime


@dataset
class Stateless:
    order_id: int
    buyer: str
    city: str
    cents: float
    rounded: int
    tag: Optional[str]
    quantity: Optional[int]
    at: datetime

    @includes(cents_per_unit)
    @pipeline
    @inputs(Orders)
    def flat(cls, orders: Dataset):
        return (
            orders.filter(lambda df: df["amount"] > 0)
            .filter(col("amount") >= 2)
            .assign("cents", float, lambda df: df["amount"] * cents_per_unit())
            .assign(
                rounded=col("amount").round().astype(int), doubled=(col("amount") * 2).astype(float)
            )
            .select("order_id", "user", "city", "cents", "rounded", "tags", "quantities")
            .rename({"user": "buyer", "tags": "tag", "quantities": "quantity"})
            .explode("tag", "quantity")
            .dropnull("city")
        )


def add_length(df: pd.DataFrame) -> pd.DataFrame:
    # a helper the transform calls by name
    df["length"] = df["user"].str.len()
    return df[["order_id", "user", "length", "at"]]


@dataset
class Transformed:
    order_id: int
    user: str
    length: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def transformed(cls, orders: Dataset):
        return orders.transform(
            add_length, schema={"order_id": int, "user": str, "length": int, "at": datetime}
        )


@dataset
class Enriched:
    order_id: int
    user: str
    amount: float
    country: Optional[str]
    age: Optional[int]
    at: datetime

    @pipeline(env="prod")
    @inputs(Orders, Users)
    def joined(cls, orders: Dataset, users: Dataset):
        picked = orders.select("order_id", "user", "amount")
        return picked.join(users, how="left", on=["user"], within=("30d", "1h"))

    @pipeline(env="dev")
    @inputs(Orders, Users)
    def inner(cls, orders: Dataset, users: Dataset):
        return (
            orders.select("order_id", "user", "amount")
            .join(users, how="inner", left_on=["user"], right_on=["user"], fields=["country"])
            .assign(country=col("country").astype(Optional[str]), age=lit(1).astype(Optional[int]))
        )


@index
@dataset
class Continuously:
    user: str = field(key=True)
    orders: int
    distinct_cities: int
    spent: float
    paid: Decimal[2]
    mean: float
    mean_or_null: Optional[float]
    smallest: float
    first_day: date
    biggest: Decimal[2]
    spread: float
    median: Optional[float]
    cities: List[Optional[str]]
    last: List[int]
    first: List[str]
    at: datetime

    @pipeline
    @inputs(Orders)
    def aggregate(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            orders=Count(window=Continuous("forever")),
            distinct_cities=Count(
                of="city", unique=True, approx=True, dropnull=True, window=Continuous("7d")
            ),
            spent=Sum(of="amount", window=Continuous("1d")),
            paid=Sum(of="price", window=Continuous("forever")),
            mean=Average(of="amount", window=Continuous("1h")),
            mean_or_null=Average(of="amount", window=Continuous("1h"), default=None),
            smallest=Min(of="amount", window=Continuous("1d"), default=-1.5),
            first_day=Min(of="day", window=Continuous("forever"), default=date(2024, 1, 2)),
            biggest=Max(of="price", window=Continuous("forever"), default=PythonDecimal("1.50")),
            spread=Stddev(of="amount", window=Continuous("1d")),
            median=Quantile(of="amount", p=0.5, approx=True, window=Continuous("1d")),
            cities=Distinct(of="city", unordered=True, window=Continuous("1d")),
            last=LastK(of="order_id", limit=3, dedup=False, window=Continuous("1d")),
            first=FirstK(
                of="city", limit=2, dedup=True, dropnull=True, window=Continuous("forever")
            ),
        )


@index
@dataset
class Decaying:
    user: str = field(key=True)
    heat: float
    at: datetime

    @pipeline
    @inputs(Orders)
    def decay(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            heat=ExpDecaySum(of="amount", half_life="1h", window=Continuous("forever"))
        )


@dataset
class Discretely:
    user: str = field(key=True)
    hourly: int
    sliding: float
    ever: int
    latest_paid: datetime
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Orders)
    def aggregate(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            hourly=Count(window=Tumbling("1h", lookback="1m")),
            sliding=Sum(of="amount", window=Hopping("1d", "1h", lookback="1m")),
            ever=Count(window=Hopping("forever", "1d", lookback="1m")),
            latest_paid=Max(
                of="paid_at",
                window=Tumbling("1h", lookback="1m"),
                default=datetime(2024, 1, 2, tzinfo=timezone.utc),
            ),
            emit="final",
        )


@dataset
class Along:
    user: str = field(key=True)
    hourly: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def aggregate(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            hourly=Count(window=Tumbling("1h")), along="paid_at"
        )


@dataset
class Sessions:
    user: str = field(key=True)
    window: Window = field(key=True)
    orders: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def sessions(cls, orders: Dataset):
        return orders.groupby("user", window=Session("15m")).aggregate(orders=Count())


@dataset
class Hourly:
    user: str = field(key=True)
    window: Window = field(key=True)
    at: datetime

    @pipeline
    @inputs(Orders)
    def windows(cls, orders: Dataset):
        return orders.groupby("user", window=Hopping("1h", "10m")).aggregate()


@dataset
class FirstOrder:
    user: str = field(key=True)
    order_id: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def first(cls, orders: Dataset):
        return orders.select("user", "order_id").groupby("user").first()


@dataset
class LatestOrder:
    user: str = field(key=True)
    order_id: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def latest(cls, orders: Dataset):
        return orders.dedup("user", "order_id").select("user", "order_id").groupby("user").latest()


@dataset
class UserChanges:
    user: str
    country: str
    age: Optional[int]
    gone: bool
    updated: datetime

    @pipeline
    @inputs(Users)
    def changes(cls, users: Dataset):
        return users.changelog(delete="gone")


@dataset
class Both:
    user: str
    order_id: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def both(cls, orders: Dataset):
        web = orders.filter(lambda df: df["channel"] == "web")
        app = orders.filter(lambda df: df["channel"] == "app")
        first = web.dedup("user", window=Session("10m")).select("user", "order_id")
        return first + app.dedup("user", window=Tumbling("10m")).select("user", "order_id")


@meta(deleted=True)
@dataset
class Retired:
    user: str
    at: datetime

    @pipeline
    @inputs(Both)
    def copy(cls, both: Dataset):
        return both.select("user")


OBJECTS = [
    Orders,
    Users,
    Stateless,
    Transformed,
    Enriched,
    Continuously,
    Decaying,
    Discretely,
    Along,
    Sessions,
    Hourly,
    FirstOrder,
    LatestOrder,
    UserChanges,
    Both,
    Retired,
]
ENV = "prod"
