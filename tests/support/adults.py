"""Definitions of a dataset with a pipeline, and a sink of one kind or another."""

from __future__ import annotations

from typing import Final

ADULTS: Final = """\
from datetime import datetime

from fennel.connectors import {imports}
from fennel.datasets import Dataset, dataset, field, pipeline
from fennel.expr import col
from fennel.lib import inputs, meta

{connector}

@source(Webhook(name="door", retention="14d").endpoint("people"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@dataset
class Person:
    name: str = field({key})
    age: int
    at: datetime = field(timestamp=True)


{sink}
@meta(owner="tests@example.com")
@dataset
class Adult:
    name: str = field(key=True, erase_key=True)
    age: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Person)
    def grown(cls, people: Dataset):
        return people.filter(col("age") >= 18)
"""
"""To be formatted with what to import of connectors, a connector, the options of the key of people,
and the decorator of the sink.
"""
