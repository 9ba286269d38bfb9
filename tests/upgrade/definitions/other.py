"""What the branch `other` adds to its clone of `main`, as an incremental commit: a dataset over an
endpoint that is in use, which is recomputed from the endpoint's requests, and an aggregate of it.
"""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs

__owner__ = "data@example.com"
webhook = Webhook(name="market")


@source(webhook.endpoint("Orders"), disorder="14d", cdc="append")
@dataset
class Notes:
    """Rows without a note are dead letters here, and rows like all others in `main`."""

    user: str
    note: str
    amount: float
    at: datetime = field(timestamp=True)


@index
@dataset
class Noted:
    note: str = field(key=True)
    orders: int
    spent: float
    at: datetime

    @pipeline
    @inputs(Notes)
    def noted(cls, notes: Dataset):
        return notes.groupby("note").aggregate(
            orders=Count(window=Continuous("forever")),
            spent=Sum(of="amount", window=Continuous("forever")),
        )
