"""A chain of four jobs over upserted and late rows, so that one lost or repeated row shows.

Every row is unique, so logging a request again after an unknown outcome changes nothing: customers
and cities are upserted, orders are deduplicated by their id.
"""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, pipeline
from fennel.dtypes import Continuous
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

__owner__ = "tests@example.com"
webhook = Webhook(name="chaos")


@source(webhook.endpoint("customers"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Customer:
    uid: int = field(key=True)
    city: str
    at: datetime


@source(webhook.endpoint("cities"), disorder="14d", cdc="upsert")
@dataset(index=True)
class City:
    city: str = field(key=True)
    country: str
    at: datetime


@source(webhook.endpoint("orders"), disorder="14d", cdc="append")
@dataset
class Order:
    oid: int
    uid: int
    amount: int
    at: datetime


@dataset
class Unique:
    oid: int
    uid: int
    amount: int
    at: datetime

    @pipeline
    @inputs(Order)
    def unique(cls, orders: Dataset):
        return orders.dedup("oid")


@dataset
class Placed:
    oid: int
    uid: int
    amount: int
    city: str
    at: datetime

    @pipeline
    @inputs(Unique, Customer)
    def placed(cls, orders: Dataset, customers: Dataset):
        return orders.join(customers, how="inner", on=["uid"])


@dataset
class Exported:
    oid: int
    uid: int
    amount: int
    city: str
    country: str
    at: datetime

    @pipeline
    @inputs(Placed, City)
    def exported(cls, placed: Dataset, cities: Dataset):
        return placed.join(cities, how="inner", on=["city"])


@dataset(index=True)
class Spending:
    uid: int = field(key=True)
    orders: int
    spent: int
    at: datetime

    @pipeline
    @inputs(Exported)
    def spending(cls, orders: Dataset):
        return orders.groupby("uid").aggregate(
            orders=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
        )


@dataset(index=True)
class Turnover:
    country: str = field(key=True)
    orders: int
    spent: int
    at: datetime

    @pipeline
    @inputs(Exported)
    def turnover(cls, orders: Dataset):
        return orders.groupby("country").aggregate(
            orders=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
        )


@meta(owner="tests@example.com")
@featureset
class Shopper:
    uid: int
    spent: int = F(Spending.spent, default=0)
