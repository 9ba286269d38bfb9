"""The second version: it drops the returns, keeps the orders, and derives the big ones, which has
existing rows to catch up with.
"""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Dataset, dataset, field, index, pipeline
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

webhook = Webhook(name="door")


@source(webhook.endpoint("orders"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Order:
    uid: int = field(key=True)
    amount: float
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset
class Big:
    uid: int = field(key=True)
    amount: float
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order)
    def big(cls, orders: Dataset):
        return orders.filter(col("amount") > 5.0)


@meta(owner="tests@example.com")
@featureset
class Shop:
    uid: int
    amount: float = F(Order.amount, default=2.0)
    big: float = F(Big.amount, default=0.0)
