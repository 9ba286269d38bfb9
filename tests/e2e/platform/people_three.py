"""Version 3 adds a required field, which some earlier requests have, and one that code computes."""

from datetime import datetime

from fennel.connectors import Webhook, eval, source
from fennel.datasets import Count, Dataset, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

webhook = Webhook(name="door", retention="14d")


@source(
    webhook.endpoint("people"),
    disorder="14d",
    cdc="upsert",
    preproc={"double": eval(lambda df: df["age"] * 2, schema={"age": int})},
)
@meta(owner="tests@example.com")
@index
@dataset(version=3)
class Person:
    name: str = field(key=True)
    age: int
    city: str
    double: int
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset(version=3)
class Ages:
    age: int = field(key=True)
    people: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Person)
    def count(cls, people: Dataset):
        return people.groupby("age").aggregate(people=Count(window=Continuous("forever")))
