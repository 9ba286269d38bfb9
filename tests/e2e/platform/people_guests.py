"""The dataset of `people_one` with the second source alone."""

from datetime import datetime

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

webhook = Webhook(name="door", retention="14d")


@source(webhook.endpoint("guests"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    name: str = field(key=True)
    age: int
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset
class Ages:
    age: int = field(key=True)
    people: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Person)
    def count(cls, people: Dataset):
        return people.groupby("age").aggregate(people=Count(window=Continuous("forever")))
