"""Every expression the client can serialise: as assigned columns, and as features where its
pipelines cannot print them.
"""

# ruff: noqa: UP006, UP035, UP045 - the client reads annotations as typing's generics, and naive
# datetimes as UTC

from datetime import date, datetime
from typing import Dict, List, Optional

from fennel.connectors import Webhook, source
from fennel.datasets import Dataset, dataset, field, pipeline
from fennel.dtypes import struct
from fennel.expr import col, from_epoch, lit, make_struct, now, repeat, var, when
from fennel.expr import datetime as datetime_expr
from fennel.featuresets import feature as F
from fennel.featuresets import featureset
from fennel.lib import inputs

__owner__ = "data@example.com"
webhook = Webhook(name="lab")


@struct
class Point:
    x: int
    y: Optional[float]


@source(webhook.endpoint("Samples"), disorder="14d", cdc="append")
@dataset
class Samples:
    i: int
    f: float
    o: Optional[int]
    s: str
    b: bool
    t: datetime
    d: date
    numbers: List[int]
    flags: List[bool]
    words: List[str]
    counts: Dict[str, int]
    point: Point
    at: datetime = field(timestamp=True)


ARITHMETIC = {
    "neg": (-col("i")).astype(int),
    "negated": (~col("b")).astype(bool),
    "add": (col("i") + 1).astype(int),
    "sub": (col("i") - 1).astype(int),
    "mul": (col("i") * 2.5).astype(float),
    "div": (col("i") / 2).astype(float),
    "mod": (col("i") % 7).astype(int),
    "floor_div": (col("i") // 7).astype(int),
    "eq": (col("s") == "a").astype(bool),
    "ne": (col("s") != "a").astype(bool),
    "gt": (col("i") > 1).astype(bool),
    "gte": (col("i") >= 1).astype(bool),
    "lt": (col("i") < 1).astype(bool),
    "lte": (col("i") <= 1).astype(bool),
    "both": ((col("i") > 1) & col("b")).astype(bool),
    "either": ((col("i") > 1) | col("b")).astype(bool),
    "missing": col("o").isnull().astype(bool),
    "filled": col("o").fillnull(0).astype(int),
    "cased": when(col("i") > 1).then(1).when(col("b")).then(lit(2)).otherwise(lit(3)).astype(int),
    "half_cased": when(col("b")).then(lit("yes")).astype(Optional[str]),
}
MATH = {
    "absolute": col("i").num.abs().astype(int),
    "rounded": col("f").round(2).astype(float),
    "ceiled": col("f").ceil().astype(int),
    "floored": col("f").floor().astype(int),
    "printed": col("i").num.to_string().astype(str),
    "powered": col("i").num.pow(lit(2)).astype(int),
    "logged": col("f").num.log(10.0).astype(float),
    "rooted": col("f").num.sqrt().astype(float),
    "sine": col("f").num.sin().astype(float),
    "cosine": col("f").num.cos().astype(float),
    "tangent": col("f").num.tan().astype(float),
    "arcsine": col("f").num.arcsin().astype(float),
    "arccosine": col("f").num.arccos().astype(float),
    "arctangent": col("f").num.arctan().astype(float),
    "nan": col("f").num.is_nan().astype(bool),
    "infinite": col("f").num.is_infinite().astype(bool),
}
STRINGS = {
    "letters": col("s").str.len().astype(int),
    "low": col("s").str.lower().astype(str),
    "up": col("s").str.upper().astype(str),
    "has": col("s").str.contains("a").astype(bool),
    "starts": col("s").str.startswith("a").astype(bool),
    "ends": col("s").str.endswith(col("s")).astype(bool),
    "joined": col("s").str.concat(lit("!")).astype(str),
    "parsed": col("s").str.strptime("%Y-%m-%d").astype(datetime),
    "parsed_there": col("s").str.strptime("%Y-%m-%d", "Europe/Paris").astype(datetime),
    "decoded": col("s").str.parse(Point).astype(Point),
    "parts": col("s").str.split(",").astype(List[str]),
    "extracted": col("s").str.json_extract("$.a.b").astype(Optional[str]),
}
TIMES = {
    "hours": col("t").dt.since(col("at"), "hour").astype(int),
    "epoch": col("t").dt.since_epoch("microsecond").astype(int),
    "text": col("t").dt.strftime("%Y").astype(str),
    "text_there": col("t").dt.with_tz("Asia/Tokyo").strftime("%H").astype(str),
    "year": col("t").dt.year.astype(int),
    "hour_there": col("t").dt.with_tz("Asia/Tokyo").hour.astype(int),
    "made": from_epoch(col("i"), "millisecond").astype(datetime),
    "fixed": datetime_expr(2024, 1, 2, 3, 4, 5, timezone="Europe/Paris").astype(datetime),
    "age": now().dt.since(col("t"), "day").astype(int),
}
COLLECTIONS = {
    "length": col("numbers").list.len().astype(int),
    "at_zero": col("numbers").list.at(0).astype(Optional[int]),
    "contains": col("words").list.contains("a").astype(bool),
    "holes": col("numbers").list.hasnull().astype(bool),
    "entries": col("counts").dict.len().astype(int),
    "entry": col("counts").dict.get("a").astype(Optional[int]),
    "entry_or": col("counts").dict.get("a", lit(0)).astype(int),
    "x": col("point").struct.get("x").astype(int),
    "repeated": repeat(col("i"), lit(3)).astype(List[int]),
    "zipped": Point.zip(x=col("numbers"), y=col("numbers")).astype(List[Point]),
    "new": make_struct({"x": col("i"), "y": col("f")}, Point).astype(Point),
}


@dataset
class Computed:
    i: int
    neg: int
    negated: bool
    cased: int
    half_cased: Optional[str]
    at: datetime

    @pipeline
    @inputs(Samples)
    def computed(cls, samples: Dataset):
        return (
            samples.assign(**ARITHMETIC)
            .assign(**MATH)
            .assign(**STRINGS)
            .assign(**TIMES)
            .assign(**COLLECTIONS)
            .select("i", "neg", "negated", "cased", "half_cased")
        )


@featureset
class Lists:
    numbers: List[int]
    flags: List[bool]
    average: Optional[float] = F(col("numbers").list.mean())
    least: Optional[int] = F(col("numbers").list.min())
    most: Optional[int] = F(col("numbers").list.max())
    total: int = F(col("numbers").list.sum())
    every: bool = F(col("flags").list.all())
    some: bool = F(col("flags").list.any())
    kept: List[int] = F(col("numbers").list.filter("n", var("n") > 1))
    mapped: List[int] = F(col("numbers").list.map("n", var("n") * 2))


OBJECTS = [Samples, Computed, Lists]
ENV = None
