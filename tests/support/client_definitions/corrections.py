"""Pipelines over datasets whose rows are corrected later: joins, aggregations and lookups on the
retracting path.
"""

# ruff: noqa: UP045 - the client reads annotations as typing's generics

from datetime import datetime
from typing import Optional

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Max, Sum, dataset, field, pipeline
from fennel.dtypes import Continuous, Hopping, Tumbling
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

__owner__ = "tests@example.com"
webhook = Webhook(name="door")


@source(webhook.endpoint("Clicks"), disorder="20s", cdc="append")
@dataset
class Clicks:
    uid: str
    amount: int
    at: datetime


@source(webhook.endpoint("Users"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Users:
    uid: str = field(key=True)
    city: str
    at: datetime


@source(webhook.endpoint("Cities"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Cities:
    city: str = field(key=True)
    country: str
    at: datetime


@source(webhook.endpoint("Orders"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Orders:
    oid: int = field(key=True)
    uid: str
    amount: int
    at: datetime


@dataset(index=True)
class Homes:
    """Table–table join."""

    uid: str = field(key=True)
    city: str
    country: Optional[str]
    at: datetime

    @pipeline
    @inputs(Users, Cities)
    def home(cls, users: Dataset, cities: Dataset):
        return users.join(cities, how="left", on=["city"])


@dataset(index=True)
class Locals:
    """A keyed filter: a version that fails it is a delete."""

    uid: str = field(key=True)
    city: str
    at: datetime

    @pipeline
    @inputs(Users)
    def local(cls, users: Dataset):
        return users.filter(col("city") != "oslo")


@dataset(index=True)
class PerCity:
    """Event–table join, then a terminal aggregate over retractions."""

    city: str = field(key=True)
    count: int
    recent: int
    top: int
    at: datetime

    @pipeline
    @inputs(Clicks, Users)
    def per_city(cls, clicks: Dataset, users: Dataset):
        met = clicks.join(users, how="left", on=["uid"]).dropnull("city")
        return met.groupby("city").aggregate(
            count=Count(window=Continuous("forever")),
            recent=Sum(of="amount", window=Continuous("4s")),
            top=Max(of="amount", default=-1, window=Continuous("forever")),
        )


@dataset(index=True)
class Windowed:
    """Windows that close, over an inner join with a dataset from which rows are deleted."""

    city: str = field(key=True)
    count: int
    amount: int
    at: datetime

    @pipeline
    @inputs(Clicks, Locals)
    def windowed(cls, clicks: Dataset, homes: Dataset):
        met = clicks.join(homes, how="inner", on=["uid"])
        return met.groupby("city").aggregate(
            count=Count(window=Tumbling("4s")),
            amount=Sum(of="amount", window=Hopping("6s", "2s")),
        )


@dataset(index=True)
class Final:
    """As `Windowed`, each window once when it closes, over rows that pass a filter or do not as
    their match changes.
    """

    city: str = field(key=True)
    count: int
    amount: int
    at: datetime

    @pipeline
    @inputs(Clicks, Users)
    def final(cls, clicks: Dataset, users: Dataset):
        met = clicks.join(users, how="left", on=["uid"]).assign(
            city=col("city").fillnull("nowhere").astype(str)
        )
        met = met.filter(col("city") != "lima")
        return met.groupby("city").aggregate(
            count=Count(window=Tumbling("4s")),
            amount=Sum(of="amount", window=Hopping("6s", "2s")),
            emit="final",
        )


@dataset(index=True)
class Natives:
    """Events meet a dataset from which rows are deleted."""

    city: str = field(key=True)
    count: int
    at: datetime

    @pipeline
    @inputs(Clicks, Locals)
    def natives(cls, clicks: Dataset, homes: Dataset):
        met = clicks.join(homes, how="inner", on=["uid"], within=("6s", "0s"))
        return met.groupby("city").aggregate(count=Count(window=Continuous("forever")))


@dataset(index=True)
class Abroad:
    """A keyed left side, a right side that is itself a table–table join, then an aggregate over
    facts.
    """

    country: str = field(key=True)
    count: int
    recent: int
    at: datetime

    @pipeline
    @inputs(Orders, Homes)
    def abroad(cls, orders: Dataset, homes: Dataset):
        met = (
            orders.join(homes, how="left", on=["uid"])
            .dropnull("city", "country")
            .select("oid", "amount", "country")
        )
        return met.groupby("country").aggregate(
            count=Count(window=Continuous("forever")),
            recent=Sum(of="amount", window=Continuous("4s")),
        )


@dataset(index=True)
class Totals:
    """An aggregate over corrected rows that others build upon."""

    uid: str = field(key=True)
    count: int
    total: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def totals(cls, orders: Dataset):
        return orders.groupby("uid").aggregate(
            count=Count(window=Hopping("forever", "2s")),
            total=Sum(of="amount", window=Hopping("forever", "2s")),
        )


@dataset(index=True)
class Counts:
    """A moving window, emitted."""

    uid: str = field(key=True)
    count: int
    total: int
    at: datetime

    @pipeline
    @inputs(Orders)
    def counts(cls, orders: Dataset):
        return orders.groupby("uid").aggregate(
            count=Count(window=Continuous("forever")),
            total=Sum(of="amount", window=Continuous("4s")),
            emit="final",
        )


@dataset(index=True)
class Spenders:
    """A join after an aggregate with retractions, and an aggregate after that."""

    count: int = field(key=True)
    clicks: int
    amount: int
    at: datetime

    @pipeline
    @inputs(Clicks, Totals)
    def spenders(cls, clicks: Dataset, totals: Dataset):
        met = clicks.join(totals, how="inner", on=["uid"])
        return met.groupby("count").aggregate(
            clicks=Count(window=Continuous("forever")),
            amount=Sum(of="amount", window=Continuous("4s")),
        )


@meta(owner="tests@example.com")
@featureset
class City:
    city: str
    count: Optional[int] = F(PerCity.count)
    recent: Optional[int] = F(PerCity.recent)
    windows: Optional[int] = F(Windowed.count)


OBJECTS = [
    Clicks,
    Users,
    Cities,
    Orders,
    Homes,
    Locals,
    PerCity,
    Windowed,
    Final,
    Natives,
    Abroad,
    Totals,
    Counts,
    Spenders,
    City,
]
ENV = None
