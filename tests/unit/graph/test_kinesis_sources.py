"""Which Kinesis streams are read, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.kinesis import check_starts, unusable_stream
from fennel_core.graph.passes.streams import check_stream, reads
from fennel_core.wire.connectors import (
    Cdc,
    FromLatest,
    FromTrimHorizon,
    Kinesis,
    KinesisStream,
    NamedReference,
)
from fennel_core.wire.entities import Dataset
from tests.support.commit_graphs import graph
from tests.support.ingest_world import source

ROLE = "arn:aws:iam::123456789012:role/reader"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
STREAM = KinesisStream(Kinesis("shop", ROLE), ARN, FromLatest(), "json")


def problems(**changes: object) -> list[str]:
    dataset: Dataset = graph("connectors").datasets[0]
    of = source(dataset.name, **({"table": STREAM} | changes))
    return [f"{each.code}: {each.text}" for each in check_stream(dataset, of)]


def test_a_stream_is_read_with_the_options_of_a_topic() -> None:
    assert reads(STREAM)
    for cdc in (Cdc.APPEND, Cdc.UPSERT, Cdc.DEBEZIUM):
        assert problems(cdc=cdc) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cdc": Cdc.NATIVE}, "cdc-not-served"),
        ({"cursor": "at"}, "`cursor`"),
        ({"timestamp_field": "other"}, "`timestamp_field`"),
        ({"every_us": 1}, "`every`"),
    ],
)
def test_what_has_no_effect_is_refused(changes: dict[str, object], text: str) -> None:
    (problem,) = problems(**changes)
    assert text in problem


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (replace(STREAM, db=Kinesis("shop", "")), "not stored by name"),
        (replace(STREAM, db=NamedReference("shop", "kinesis")), "not stored by name"),
        (replace(STREAM, db=Kinesis("shop", "role/reader")), "not the ARN of a role"),
        (replace(STREAM, stream_arn="orders"), "not the ARN of a stream"),
        (
            replace(STREAM, stream_arn=ARN.replace("eu-west-1", "evil.com/")),
            "not the ARN of a stream",
        ),
        (replace(STREAM, format="csv"), "read as `json`"),
    ],
)
def test_connectors_that_reach_nothing_are_refused(table: KinesisStream, text: str) -> None:
    (reason,) = unusable_stream(table)
    assert text in reason


def test_two_datasets_begin_a_stream_at_one_place() -> None:
    first = source("Orders", table=STREAM)
    other = source("Sales", table=replace(STREAM, init_position=FromTrimHorizon()))
    (problem,) = check_starts(Graph(sources=(first, other)))
    assert (problem.code, problem.entity) == ("connector-redefined", "Sales")
    assert not list(check_starts(Graph(sources=(first, source("Sales", table=STREAM)))))
    named = replace(other.table, db=Kinesis("other", ROLE))
    assert not list(check_starts(Graph(sources=(first, replace(other, table=named)))))
