"""Descriptions of fields, as the client sends them, are the comments of columns."""

from __future__ import annotations

from pathlib import Path

from fennel_core.dataframes.datasource import spark_schema
from fennel_core.dataframes.planning import comments_of
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.schema import Schema
from fennel_core.wire.gen import services_pb2

COMMIT = Path(__file__).parents[2] / "golden" / "wire" / "operators.binpb"


def test_descriptions_become_comments_and_fields_without_one_have_none() -> None:
    request = services_pb2.SyncRequest.FromString(COMMIT.read_bytes())
    described = request.datasets[0]
    names = sorted(described.field_metadata)
    described.field_metadata[names[0]].description = "Where, ISO 3166."
    found = comments_of(request.SerializeToString())
    assert {name: of for name, of in found.items() if of} == {
        described.name: {names[0]: "Where, ISO 3166."}
    }
    schema = spark_schema(
        Schema((Field(names[0], Int()),), (Field("other", Int()),), "at").arrow(),
        found[described.name],
    )
    assert [field.metadata for field in schema.fields] == [{"comment": "Where, ISO 3166."}, {}, {}]
