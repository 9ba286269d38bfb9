"""What a source of files on S3 can say that is not served is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.streams import check_orders, check_stream, reads
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.connectors import (
    S3,
    Cdc,
    Login,
    NamedReference,
    PlainSecret,
    S3Table,
    SecretRef,
)
from fennel_core.wire.entities import Dataset
from tests.support.ingest_world import KEYLESS, source

KEYS = Login(PlainSecret("key"), PlainSecret("other"))
TABLE = S3Table(S3("lake", None, KEYS), "shop", "in/", "*.csv", "csv", ",", (), False, None)


class _Dataset:
    name, schema = DatasetName("Orders"), KEYLESS


def problems(table: S3Table = TABLE, **options: object) -> list[str]:
    given = {"table": table, "cdc": Cdc.APPEND, "every_us": 60_000_000} | options
    dataset: Dataset = _Dataset  # type: ignore[assignment]  # of a dataset, name and schema count
    return [f"{p.code}: {p.text}" for p in check_stream(dataset, source("Orders", **given))]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "delta", "hudi"])
def test_formats_that_are_read(kind: str) -> None:
    assert reads(replace(TABLE, format=kind)) == (kind != "hudi")


def test_what_is_served_has_no_problems() -> None:
    assert problems() == []
    assert problems(replace(TABLE, presorted=True, delimiter="\t", headers=("a", "b"))) == []
    assert problems(replace(TABLE, db=S3("lake", None, Login(None, None)))) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cdc": Cdc.DEBEZIUM}, "cdc-not-served: .*`debezium`"),
        ({"cdc": Cdc.NATIVE}, "cdc-not-served: .*`native`"),
        ({"cursor": "at"}, "source-option-not-served: .*`cursor`"),
        ({"timestamp_field": "x"}, "source-option-not-served: .*`timestamp_field`"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict, text: str) -> None:
    (problem,) = problems(**options)
    assert re.match(text, problem), problem


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"spread_us": 1}, "source-option-not-served: .*`spread`"),
        (
            {"db": NamedReference("lake", "s3"), "bucket": "a b"},
            "connector-not-served: .*no name of a bucket",
        ),
        ({"db": S3("lake", "arn:role", KEYS)}, "connector-not-served: .*has a role"),
        ({"db": S3("lake", None, Login(PlainSecret("key"), None))}, ".*one key of two"),
        (
            {"db": S3("lake", None, Login(SecretRef("arn", None, ()), PlainSecret("x")))},
            ".*secret of another store",
        ),
        ({"bucket": "arn:aws:s3:::shop"}, ".*no name of a bucket"),
        ({"bucket": "http://127.0.0.1/x"}, ".*no name of a bucket"),
        ({"delimiter": "||"}, r".*delimiter `\|\|`"),
        ({"headers": ("a", "a")}, ".*twice"),
        ({"suffix": "week=%U/*"}, ".*`%U`"),
    ],
)
def test_what_a_connector_cannot_say_is_refused(changes: dict, text: str) -> None:
    (problem,) = problems(replace(TABLE, **changes))
    assert re.match(text, problem), problem


def test_datasets_that_read_the_same_files_agree_on_their_order() -> None:
    own = source("Orders", table=TABLE)
    for changes, codes in (
        ({}, []),
        ({"presorted": True}, ["connector-redefined"]),
        ({"presorted": True, "delimiter": ""}, ["connector-redefined"]),
        ({"presorted": True, "prefix": "out/"}, []),
        ({"presorted": True, "db": S3("other", None, KEYS)}, []),
    ):
        other = source("Others", table=replace(TABLE, **changes))
        assert [p.code for p in check_orders(Graph(sources=(own, other)))] == codes


def test_spread_is_served_where_it_leaves_out_paths() -> None:
    days = replace(TABLE, suffix="date=%Y-%m-%d/*.csv", spread_us=1)
    assert problems(days, since_us=1) == []
    assert problems(days, until_us=1) == []
    (problem,) = problems(days)
    assert "`spread`, but it has neither `since` nor `until`" in problem
    (problem,) = problems(replace(TABLE, spread_us=1), since_us=1)
    assert "`spread`, but its path names no year" in problem
