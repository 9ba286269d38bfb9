"""Orders by customer, whose rows can be erased."""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field, index
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import meta

webhook = Webhook(name="door")


@source(webhook.endpoint("orders"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Order:
    uid: int = field(key=True, erase_key=True)
    amount: float
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@featureset
class Shop:
    uid: int
    amount: float = F(Order.amount, default=1.0)
