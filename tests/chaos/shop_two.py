"""The shop with one more dataset and another default: commits move between the two versions."""

from datetime import datetime

from fennel.datasets import Dataset, dataset, field, pipeline
from fennel.expr import col
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs, meta

from tests.chaos.shop import (  # noqa: F401 - the definitions of this module are what it commits
    City,
    Customer,
    Exported,
    Order,
    Placed,
    Spending,
    Turnover,
    Unique,
)

__owner__ = "tests@example.com"


@dataset(index=True)
class Nordic:
    uid: int = field(key=True)
    city: str
    at: datetime

    @pipeline
    @inputs(Customer)
    def nordic(cls, customers: Dataset):
        return customers.filter(col("city") == "city 1")


@meta(owner="tests@example.com")
@featureset
class Shopper:
    uid: int
    spent: int = F(Spending.spent, default=1)
