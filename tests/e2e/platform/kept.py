"""Definitions whose state must survive anything: a join, an aggregate that is looked up, and
windows that are emitted.
"""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous, Tumbling
from fennel.lib import inputs, meta

webhook = Webhook(name="kept")


@source(webhook.endpoint("people"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    name: str = field(key=True)
    city: str
    at: datetime = field(timestamp=True)


@source(webhook.endpoint("purchases"), disorder="14d", cdc="append")
@meta(owner="tests@example.com")
@dataset
class Purchase:
    name: str
    amount: int
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset
class Spending:
    name: str = field(key=True)
    purchases: int
    spent: int
    lately: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Purchase)
    def spending(cls, purchases: Dataset):
        return purchases.groupby("name").aggregate(
            purchases=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
            lately=Sum(of="amount", window=Continuous("2h")),
        )


@meta(owner="tests@example.com")
@index
@dataset
class Hourly:
    city: str = field(key=True)
    purchases: int
    spent: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Purchase, Person)
    def hourly(cls, purchases: Dataset, people: Dataset):
        met = purchases.join(people, how="inner", on=["name"])
        return met.groupby("city").aggregate(
            purchases=Count(window=Tumbling("1h")),
            spent=Sum(of="amount", window=Tumbling("1h")),
        )
