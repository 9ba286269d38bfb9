"""What a data scientist runs: commit, log, ask for training data with the public client, and wait.

One request has its rows in it; with a bucket, another reads `in/` of it and writes to `out/` there.
The arguments are the address of the platform, a token and, if there is one, the bucket with its key
id and secret key; the last status of each request is printed as JSON.
"""

import json
import sys
import time
from datetime import UTC, datetime

import pandas as pd
from fennel.client import Client
from fennel.connectors import CSV, S3, Webhook, source
from fennel.datasets import Count, Dataset, dataset, field, pipeline
from fennel.dtypes import Continuous
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F
from fennel.lib import inputs, outputs

__owner__ = "shop@example.com"
shop = Webhook(name="offline-shop")


@source(shop.endpoint("people"), disorder="14d", cdc="upsert")
@dataset(index=True)
class Person:
    uid: int = field(key=True)
    age: int
    at: datetime


@source(shop.endpoint("orders"), disorder="14d", cdc="append")
@dataset
class Order:
    uid: int
    amount: float
    at: datetime


@dataset(index=True)
class Orders:
    uid: int = field(key=True)
    placed: int
    at: datetime

    @pipeline
    @inputs(Order)
    def count(cls, orders: Dataset):
        return orders.groupby("uid").aggregate(placed=Count(window=Continuous("forever")))


@featureset
class Shopper:
    uid: int
    age: int = F(Person.age, default=-1)
    placed: int = F(Orders.placed, default=0)
    inverse: float
    regular: int

    @extractor(deps=[Person, Orders])
    @inputs("uid")
    @outputs("regular")
    def orders_of_regulars(cls, ts: pd.Series, uids: pd.Series):
        """The orders of those who were known four days before, -1 for others."""
        _, known = Person.lookup(ts - pd.Timedelta(days=4), uid=uids, fields=["age"])
        orders, _ = Orders.lookup(ts[known], uid=uids[known])
        found = pd.Series(-1, index=ts.index, name="regular")
        found[known] = orders["placed"].array
        return found

    @extractor
    @inputs("age")
    @outputs("inverse")
    def invert(cls, ts: pd.Series, ages: pd.Series):
        return pd.Series([1 / int(age) for age in ages], name="inverse")


def ask_for_files(client: Client, name: str, key_id: str, secret: str) -> dict:
    bucket = S3(name="training", aws_access_key_id=key_id, aws_secret_access_key=secret)
    return client.query_offline(
        inputs=[Shopper.uid],
        outputs=[Shopper.age, Shopper.placed],
        timestamp_column="at",
        input_s3=bucket.bucket(name, prefix="in/", format=CSV()),
        output_s3=bucket.bucket(name, prefix="out/", format="parquet"),
        feature_to_column_map={"Shopper.uid": "shopper"},
        workflow="bucket",
    )


def main(url: str, token: str, *bucket: str) -> None:
    client = Client(url, token=token)
    client.commit("offline", datasets=[Person, Order, Orders], featuresets=[Shopper])
    day = [datetime(2026, 1, n, tzinfo=UTC) for n in range(1, 9)]
    client.log(
        "offline-shop",
        "people",
        pd.DataFrame({"uid": [1, 2, 1], "age": [20, 0, 40], "at": [day[0], day[0], day[4]]}),
    )
    client.log(
        "offline-shop",
        "orders",
        pd.DataFrame({"uid": [1] * 3, "amount": [1.0] * 3, "at": [day[1], day[3], day[5]]}),
    )
    now = pd.DataFrame({"Shopper.uid": [1]})
    while client.query(
        inputs=[Shopper.uid], outputs=[Shopper.age, Shopper.placed], input_dataframe=now
    ).to_numpy().tolist() != [[40, 3]]:
        time.sleep(0.5)  # until the rows have been processed
    rows = pd.DataFrame(
        {
            "Shopper.uid": [1, 1, 1, 2, 3, 1],
            "at": [day[2], day[6], day[0], day[2], day[2], pd.NaT],
            "label": [0, 1, 0, 1, 0, 1],
        }
    )
    asked = client.query_offline(
        inputs=[Shopper.uid],
        outputs=[Shopper.age, Shopper.placed, Shopper.inverse, Shopper.regular],
        timestamp_column="at",
        input_dataframe=rows,
        workflow="churn",
        num_dpus=4,
    )
    for each in (asked, *([ask_for_files(client, *bucket)] if bucket else [])):
        while each["state"] in ("queued", "running"):
            time.sleep(0.5)  # between two polls, as the documentation shows it
            each = client.track_offline_query(each["request_id"])
        print(json.dumps(each))


if __name__ == "__main__":
    main(*sys.argv[1:])
