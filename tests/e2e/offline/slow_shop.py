"""Features whose computation takes a while, in user code; each call has 4,096 rows at most."""

from datetime import datetime

import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import dataset, field
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F
from fennel.lib import inputs, outputs

__owner__ = "tests@example.com"


@source(Webhook(name="slow").endpoint("people"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Person:
    uid: int = field(key=True)
    age: int
    at: datetime


@featureset
class Shopper:
    uid: int
    age: int = F(Person.age, default=-1)
    double: int

    @extractor
    @inputs("age")
    @outputs("double")
    def doubled(cls, ts: pd.Series, ages: pd.Series):
        import time

        time.sleep(2)  # a call that takes a while
        return pd.Series([2 * int(age) for age in ages], name="double")
