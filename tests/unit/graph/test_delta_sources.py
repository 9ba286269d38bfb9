"""What a source of a Delta table can say that is not served is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fennel_core.graph.delta_keys import key_columns
from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.delta_sources import check_delta_keys
from fennel_core.graph.passes.streams import check_stream
from fennel_core.vocab import dtypes
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    S3,
    Cdc,
    Constant,
    FromPayload,
    Login,
    NamedReference,
    PlainSecret,
    S3Table,
)
from fennel_core.wire.entities import Dataset
from tests.support.ingest_world import KEYED, KEYLESS, source

KEYS = Login(PlainSecret("key"), PlainSecret("other"))
TABLE = S3Table(S3("lake", None, KEYS), "shop", "in/users", "", "delta", "", (), False, None)


class _Dataset:
    def __init__(self, name: str = "Users", schema: Schema = KEYED) -> None:
        self.name, self.schema, self.version = DatasetName(name), schema, 1


def problems(table: S3Table = TABLE, schema: Schema = KEYED, **options: object) -> list[str]:
    given = {"table": table, "cdc": Cdc.NATIVE, "every_us": 60_000_000} | options
    dataset: Dataset = _Dataset(schema=schema)  # type: ignore[assignment]  # name and schema count
    return [f"{p.code}: {p.text}" for p in check_stream(dataset, source(**given))]


def test_what_is_served_has_no_problems() -> None:
    assert problems() == []
    assert problems(schema=KEYLESS) == []
    assert problems(preproc=(("user", FromPayload("name")),)) == []
    assert problems(replace(TABLE, db=NamedReference("lake", "s3"))) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cdc": Cdc.UPSERT}, "cdc-not-served: .*cdc `upsert`, but the table itself says"),
        ({"table": replace(TABLE, presorted=True)}, "source-option-not-served: .*`presorted`"),
        ({"table": replace(TABLE, spread_us=1)}, "source-option-not-served: .*`spread`"),
        ({"table": replace(TABLE, suffix="*")}, "source-option-not-served: .*no folder"),
        ({"table": replace(TABLE, prefix="/")}, "source-option-not-served: .*no folder"),
        ({"cursor": "at"}, "source-option-not-served: .*`cursor`"),
        ({"timestamp_field": "x"}, "source-option-not-served: .*`timestamp_field`"),
        (
            {"preproc": (("user", Constant("x", dtypes.Str())),)},
            "source-option-not-served: .*a key field that is computed",
        ),
        (
            {"table": replace(TABLE, db=S3("lake", "arn", KEYS))},
            "connector-not-served: .*a Delta table in S3 bucket `shop` has a role",
        ),
    ],
)
def test_an_option_that_is_not_served_is_refused(options: dict, text: str) -> None:
    (problem,) = problems(**options)
    assert re.match(text, problem), problem


def test_keys_are_the_columns_that_key_fields_are_read_from() -> None:
    of = source(table=TABLE, cdc=Cdc.NATIVE, preproc=(("user", FromPayload("name")),))
    assert key_columns(of, KEYED) == ("name",)
    assert key_columns(of, KEYLESS) == ()
    assert key_columns(source(), KEYED) == ()


def test_datasets_of_one_table_agree_on_its_keys() -> None:
    datasets = (_Dataset(), _Dataset("Growing", KEYLESS), _Dataset("Same"))
    sources = tuple(source(each.name, table=TABLE, cdc=Cdc.NATIVE) for each in datasets)
    graph = Graph(datasets=datasets, sources=sources)  # type: ignore[arg-type]  # as above
    (problem,) = check_delta_keys(graph)
    assert (problem.code, problem.entity) == ("connector-redefined", "Growing")
    assert "by no keys, and dataset `Users` reads it by the key columns `user`" in problem.text
