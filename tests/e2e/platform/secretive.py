"""Definitions whose code reads a secret: used by the test that looks for the secret everywhere
afterwards.
"""

from datetime import datetime

import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field, index
from fennel.featuresets import extractor, featureset
from fennel.lib import inputs, meta, outputs, secrets

webhook = Webhook(name="door")


@source(webhook.endpoint("people"), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    name: str = field(key=True)
    age: int
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@featureset
class Sealed:
    name: str
    length: int

    @extractor
    @inputs("name")
    @outputs("length")
    def measure(cls, ts: pd.Series, names: pd.Series):
        return pd.Series([len(secrets.get("vault")) for _ in names], name="length")
