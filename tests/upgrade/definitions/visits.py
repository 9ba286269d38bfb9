"""Definitions of an endpoint that the second commit drops, so that its assets are retained."""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs

__owner__ = "data@example.com"
webhook = Webhook(name="market")


@source(webhook.endpoint("Visits"), disorder="1d", cdc="append")
@dataset
class Visits:
    user: str
    at: datetime = field(timestamp=True)


@index
@dataset
class Visited:
    user: str = field(key=True)
    visits: int
    at: datetime

    @pipeline
    @inputs(Visits)
    def visited(cls, visits: Dataset):
        return visits.groupby("user").aggregate(visits=Count(window=Continuous("forever")))
