"""User code of every kind, written with the client; run by the client's interpreter it writes its
commit to the given file.
"""

# ruff: noqa: UP006, UP035, UP045 - the client reads annotations as typing's generics

import sys
from datetime import date, datetime
from pathlib import Path
from typing import Dict, List, Optional

import pandas as pd
from fennel.connectors import Webhook, eval, source
from fennel.datasets import Dataset, dataset, field, index, pipeline
from fennel.dtypes import Decimal, between, struct
from fennel.featuresets import extractor, featureset
from fennel.internal_lib.to_proto.to_proto import to_sync_request_proto
from fennel.lib import includes, inputs, outputs, secrets

__owner__ = "data@example.com"
webhook = Webhook(name="shop")


@struct
class Point:
    x: int
    label: Optional[str]


def bonus() -> int:
    return 100


@source(
    webhook.endpoint("Events"),
    disorder="14d",
    cdc="append",
    preproc={"amount": eval(lambda df: df["cents"].astype(float) / 100, schema={"cents": int})},
    where=lambda df: df["amount"] > 0,
)
@dataset
class Events:
    user: str
    amount: float
    count: Optional[int]
    price: Decimal[2]
    day: date
    tags: List[str]
    scores: Dict[str, int]
    place: Point
    flag: bool
    at: datetime = field(timestamp=True)


def dtypes_of(df: pd.DataFrame) -> pd.DataFrame:
    df["seen"] = (
        "|".join(f"{name}={df[name].dtype}" for name in df.columns)
        + "|"
        + type(df["place"].iloc[0]).__name__
    )
    return df[["user", "seen", "at"]]


def backwards(df: pd.DataFrame) -> pd.DataFrame:
    return df[["user", "amount", "at"]].sort_values("amount", ascending=False)


def unreadable(df: pd.DataFrame) -> pd.DataFrame:
    for user in df["user"]:
        if user == "bob":
            raise ValueError("\ud800")
    return df[["user", "amount", "at"]]


def with_secret(df: pd.DataFrame) -> pd.DataFrame:
    df["seen"] = secrets.get("salt")
    return df[["user", "seen", "at"]]


@dataset
class Seen:
    user: str
    seen: str
    at: datetime

    @pipeline(env="dtypes")
    @inputs(Events)
    def by_type(cls, events: Dataset):
        return events.transform(dtypes_of, schema={"user": str, "seen": str, "at": datetime})

    @pipeline(env="secret")
    @inputs(Events)
    def by_secret(cls, events: Dataset):
        return events.transform(with_secret, schema={"user": str, "seen": str, "at": datetime})


@dataset
class Sorted:
    user: str
    amount: float
    at: datetime

    @pipeline(env="unreadable")
    @inputs(Events)
    def unreadable(cls, events: Dataset):
        return events.transform(unreadable, schema={"user": str, "amount": float, "at": datetime})

    @pipeline(env="sorted")
    @inputs(Events)
    def sort(cls, events: Dataset):
        return events.transform(backwards, schema={"user": str, "amount": float, "at": datetime})


@dataset
class Assigned:
    user: str
    total: int
    half: int
    pair: Point
    pairs: List[Point]
    table: Dict[str, int]
    bounded: between(int, 0, 10)
    at: datetime

    @pipeline
    @inputs(Events)
    @includes(bonus)
    def assign(cls, events: Dataset):
        return (
            events.filter(
                lambda df: df["amount"] > 1.5,
            )
            .assign(
                "total",
                int,
                lambda df: df["count"].fillna(0) + bonus(),
            )
            .assign(
                "half",
                int,
                lambda df: df["amount"] / 2,
            )
            .assign(
                "pair",
                Point,
                lambda df: df["user"].apply(lambda user: Point(x=len(user), label=user)),
            )
            .assign(
                "pairs",
                List[Point],
                lambda df: df["tags"].apply(
                    lambda tags: [Point(x=len(t), label=None) for t in tags]
                ),
            )
            .assign(
                "table",
                Dict[str, int],
                lambda df: df["scores"].apply(lambda scores: {k: v + 1 for k, v in scores.items()}),
            )
            .assign(
                "bounded",
                between(int, 0, 10),
                lambda df: df["count"].fillna(0),
            )
            .select("user", "total", "half", "pair", "pairs", "table", "bounded", "at")
        )


@index
@source(webhook.endpoint("Users"), disorder="14d", cdc="upsert")
@dataset
class Users:
    user: str = field(key=True)
    age: int
    home: Point
    at: datetime


@featureset
class Ages:
    user: str
    place: Point
    age: Optional[int]
    older: int
    label: str
    ratio: Optional[float]
    secret: str

    @extractor(deps=[Users])
    @inputs("user")
    @outputs("age", "label")
    def both(cls, ts: pd.Series, users: pd.Series):
        found, known = Users.lookup(ts, user=users)
        found["age"] = found["age"] + known.astype(int)
        found["label"] = found["home"].apply(
            lambda home: "nowhere" if pd.isna(home) else home.label
        )
        return found[["age", "label"]]

    @extractor
    @inputs("age")
    @outputs("older")
    def add(cls, ts: pd.Series, ages: pd.Series):
        return pd.Series(ages.fillna(0) + 1, name="older")

    @extractor
    @inputs("user")
    @outputs("ratio")
    def undeclared(cls, ts: pd.Series, users: pd.Series):
        found, _ = Users.lookup(ts, user=users)
        return pd.Series(found["age"] / 2, name="ratio")

    @extractor
    @inputs("place")
    @outputs("secret")
    def hidden(cls, ts: pd.Series, places: pd.Series):
        return pd.Series(
            places.apply(lambda place: place["label"] + secrets.get("salt")), name="secret"
        )


OBJECTS = [Events, Seen, Sorted, Assigned, Users, Ages]

if __name__ == "__main__":
    feature_request = to_sync_request_proto(OBJECTS, "user code", None)
    Path(sys.argv[1]).write_bytes(feature_request.SerializeToString())
