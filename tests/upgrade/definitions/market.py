"""Definitions that touch everything that a version stores; the fixture contains this file."""

# ruff: noqa: UP006, UP017, UP035, UP045 - the client reads annotations as typing's generics, and
# naive datetimes as UTC

from datetime import date, datetime, timezone
from decimal import Decimal as PythonDecimal
from typing import List, Optional

import pandas as pd
from fennel.connectors import Webhook, eval, source
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
from fennel.dtypes import Continuous, Decimal, Hopping, Session, Tumbling, Window
from fennel.expr import col
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F
from fennel.lib import includes, inputs, outputs, secrets

__owner__ = "data@example.com"
webhook = Webhook(name="market")


def cents_per_unit() -> int:
    return 100


@source(
    webhook.endpoint("Orders"),
    disorder="1d",
    cdc="append",
    preproc={"is_large": eval(col("amount") >= 5, schema={"amount": float})},
    where=lambda df: df["amount"] >= 0,
)
@dataset
class Orders:
    order_id: int
    user: str
    city: Optional[str]
    amount: float
    is_large: bool
    price: Decimal[2]
    day: date
    tags: List[str]
    paid_at: datetime
    at: datetime = field(timestamp=True)


@source(webhook.endpoint("Users"), disorder="14d", cdc="upsert")
@index
@dataset
class Users:
    user: str = field(key=True, erase_key=True)
    country: str
    age: Optional[int]
    updated: datetime


@source(webhook.endpoint("Countries"), disorder="14d", cdc="upsert")
@index
@dataset
class Countries:
    country: str = field(key=True)
    continent: str
    updated: datetime


def hundreds(df: pd.DataFrame) -> pd.DataFrame:
    df["cents"] = [round(amount * cents_per_unit()) for amount in df["amount"]]
    df["quotient"] = [100 // (order - 5) for order in df["order_id"]]  # order 5 raises
    return df[["order_id", "user", "cents", "quotient", "at"]]


@dataset
class Cents:
    """User code of three kinds; order 5 becomes a dead letter."""

    order_id: int
    user: str
    cents: int
    quotient: int
    double: float
    at: datetime

    @includes(cents_per_unit, hundreds)
    @pipeline
    @inputs(Orders)
    def cents(cls, orders: Dataset):
        return (
            orders.filter(lambda df: df["amount"] > 0)
            .transform(
                hundreds,
                schema={
                    "order_id": int,
                    "user": str,
                    "cents": int,
                    "quotient": int,
                    "at": datetime,
                },
            )
            .assign("double", float, lambda df: df["cents"] * 2.0)
        )


@dataset
class Flat:
    """Stateless operators and expressions."""

    order_id: int
    buyer: str
    city: str
    tag: Optional[str]
    rounded: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def flat(cls, orders: Dataset):
        return (
            orders.filter(col("amount") >= 2)
            .assign(rounded=col("amount").round().astype(int))
            .select("order_id", "user", "city", "rounded", "tags")
            .rename({"user": "buyer", "tags": "tag"})
            .explode("tag")
            .dropnull("city")
        )


@index
@dataset
class Locals:
    """A keyed filter: a version that fails it is a delete."""

    user: str = field(key=True)
    country: str
    age: Optional[int]
    updated: datetime

    @pipeline
    @inputs(Users)
    def local(cls, users: Dataset):
        return users.filter(col("country") != "far")


@index
@dataset
class Homes:
    """A join of two keyed datasets."""

    user: str = field(key=True)
    country: str
    age: Optional[int]
    continent: Optional[str]
    updated: datetime

    @pipeline
    @inputs(Users, Countries)
    def homes(cls, users: Dataset, countries: Dataset):
        return users.join(countries, how="left", on=["country"])


@index
@dataset
class PerCountry:
    """An aggregate over a join whose right side is corrected later."""

    country: str = field(key=True)
    orders: int
    spent: float
    at: datetime

    @pipeline
    @inputs(Orders, Locals)
    def per_country(cls, orders: Dataset, users: Dataset):
        met = orders.select("order_id", "user", "amount").join(users, how="inner", on=["user"])
        return met.groupby("country").aggregate(
            orders=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
        )


@index
@dataset
class Continuously:
    user: str = field(key=True)
    orders: int
    cities: int
    spent: float
    paid: Decimal[2]
    mean: float
    smallest: float
    first_day: date
    biggest: Decimal[2]
    spread: float
    median: Optional[float]
    visited: List[Optional[str]]
    last: List[int]
    first: List[str]
    heat: float
    at: datetime

    @pipeline
    @inputs(Orders)
    def aggregate(cls, orders: Dataset):
        return orders.groupby("user").aggregate(
            orders=Count(window=Continuous("forever")),
            cities=Count(
                of="city", unique=True, approx=True, dropnull=True, window=Continuous("7d")
            ),
            spent=Sum(of="amount", window=Continuous("1d")),
            paid=Sum(of="price", window=Continuous("forever")),
            mean=Average(of="amount", window=Continuous("1h")),
            smallest=Min(of="amount", window=Continuous("1d"), default=-1.5),
            first_day=Min(of="day", window=Continuous("forever"), default=date(2024, 1, 2)),
            biggest=Max(of="price", window=Continuous("forever"), default=PythonDecimal("1.50")),
            spread=Stddev(of="amount", window=Continuous("1d")),
            median=Quantile(of="amount", p=0.5, approx=True, window=Continuous("1d")),
            visited=Distinct(of="city", unordered=True, window=Continuous("1d")),
            last=LastK(of="order_id", limit=3, dedup=False, window=Continuous("forever")),
            first=FirstK(
                of="city", limit=2, dedup=True, dropnull=True, window=Continuous("forever")
            ),
            heat=ExpDecaySum(of="amount", half_life="1h", window=Continuous("forever")),
        )


@index
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


@index
@dataset
class Sessions:
    user: str = field(key=True)
    window: Window = field(key=True)
    orders: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def sessions(cls, orders: Dataset):
        return orders.groupby("user", window=Session("3h")).aggregate(orders=Count())


@index
@dataset
class Busiest:
    """An aggregate of an aggregate, over rows that it retracts."""

    hourly: int = field(key=True)
    users: int
    at: datetime

    @pipeline
    @inputs(Discretely)
    def busiest(cls, discretely: Dataset):
        return discretely.groupby("hourly").aggregate(users=Count(window=Continuous("forever")))


@index
@dataset
class FirstOrder:
    user: str = field(key=True)
    order_id: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def first(cls, orders: Dataset):
        return orders.select("user", "order_id").groupby("user").first()


@index
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
    """A union of two deduplicated streams."""

    user: str
    order_id: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def both(cls, orders: Dataset):
        small = orders.filter(col("amount") < 5)
        large = orders.filter(col("amount") >= 5)
        first = small.dedup("user", window=Session("10m")).select("user", "order_id")
        return first + large.dedup("user", window=Tumbling("10m")).select("user", "order_id")


@featureset
class Request:
    user: str


def shout(text: str) -> str:
    return text.upper()


@featureset
class User:
    user: str = F(Request.user)
    country: str = F(Users.country, default="nowhere")
    age: Optional[int] = F(Users.age)
    orders: int = F(Continuously.orders, default=0)
    paid: Decimal[2] = F(Continuously.paid, default=PythonDecimal("0.00"))
    last: Optional[List[int]] = F(Continuously.last)
    double_age: int = F(col("age").fillnull(0) * 2)
    loud: str
    sealed: int

    @extractor(deps=[Homes])
    @includes(shout)
    @inputs(Request.user)
    @outputs("loud", "sealed")
    def speak(cls, ts: pd.Series, user: pd.Series):
        frame, _found = Homes.lookup(ts, user=user, fields=["continent"])
        return pd.DataFrame(
            {
                "loud": frame["continent"].fillna("?").map(shout),
                "sealed": [len(secrets.get("vault")) for _ in user],
            }
        )
