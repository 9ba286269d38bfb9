"""Every kind of extractor and every kind of dtype a feature can have."""

# ruff: noqa: UP006, UP035, UP045 - the client reads annotations as typing's generics, and naive
# datetimes as UTC

from datetime import datetime
from typing import Dict, List, Optional

import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
from fennel.dtypes import Decimal, Embedding, struct
from fennel.expr import col
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F
from fennel.lib import includes, inputs, meta, outputs

__owner__ = "ml@example.com"
webhook = Webhook(name="app")


@struct
class Address:
    city: str
    zip_code: Optional[str]


@source(webhook.endpoint("Profiles"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Profiles:
    user: str = field(key=True)
    age: int
    name: Optional[str]
    address: Address
    balance: Decimal[2]
    vector: Embedding[4]
    scores: Dict[str, float]
    updated: datetime


@source(webhook.endpoint("Items"), disorder="14d", cdc="upsert")
@dataset(offline=True)
class Items:
    item: int = field(key=True)
    price: float
    updated: datetime


@featureset
class Request:
    user: str
    items: List[int]


def shout(text: str) -> str:
    return text.upper()


@meta(tags=["model"])
@featureset
class UserFeatures:
    user: str = F(Request.user)
    age: int = F(Profiles.age, default=-1)
    name: Optional[str] = F(Profiles.name)
    address: Address = F(Profiles.address, default=Address("nowhere", None))
    vector: Optional[Embedding[4]] = F(Profiles.vector)
    name_or_blank: str = F(col("name").fillnull(""))
    double_age: int = F(col("age") * 2 + col("age"))
    loud: str
    length: int
    unset: Optional[int]

    @extractor(deps=[Profiles], version=3)
    @includes(shout)
    @inputs("user", Request.user)
    @outputs("loud", "length")
    def speak(cls, ts: pd.Series, user: pd.Series, again: pd.Series):
        """Say it loudly."""
        frame, _found = Profiles.lookup(ts, user=user, fields=["name"])
        names = frame["name"].fillna("")
        return pd.DataFrame({"loud": names.map(shout), "length": names.str.len()})


@featureset
class BasketFeatures:
    item: List[int] = F(Request.items)
    price: List[Optional[float]] = F(Items.price)
    user: str = F(UserFeatures.user)
    loudness: int = F(UserFeatures.length)
    unset_or_zero: int = F(UserFeatures.unset, default=0)


OBJECTS = [Profiles, Items, Request, UserFeatures, BasketFeatures]
ENV = None
