"""Version 2 adds an optional field, which earlier requests do not have."""

from datetime import datetime
from typing import Optional

from fennel.connectors import Webhook, source
from fennel.datasets import Count, Dataset, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

webhook = Webhook(name="door", retention="14d")


@source(webhook.endpoint("people"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset(version=2)
class Person:
    name: str = field(key=True)
    age: int
    email: Optional[str]  # noqa: UP045  # the client reads this form
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset(version=2)
class Ages:
    age: int = field(key=True)
    people: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Person)
    def count(cls, people: Dataset):
        return people.groupby("age").aggregate(people=Count(window=Continuous("forever")))
