"""Commits of the real client, recorded as bytes, decode to the values in `tests/golden/wire/*.txt`.

`REFRESH_GOLDEN=1 pytest tests/unit/wire/test_wire_decode.py` rewrites the text; read the diff
before committing it.
"""

import dataclasses
import os
import random
from pathlib import Path

import pytest

from fennel_core.vocab import dtypes
from fennel_core.wire import connectors, expr, operators
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.decode_datatypes import decode_dtype
from fennel_core.wire.decode_expressions import decode_expr
from fennel_core.wire.errors import (
    MalformedMessage,
    UndecodableEntities,
    UnsupportedValue,
    WireError,
)
from fennel_core.wire.gen import (
    connector_pb2,
    dataset_pb2,
    expression_pb2,
    schema_pb2,
    services_pb2,
)
from tests.support.readable import readable

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"
SUBJECTS = ("operators", "expressions", "connectors", "featuresets", "corrections")


def commit(subject: str):
    return decode_sync_request((GOLDEN / f"{subject}.binpb").read_bytes())


def kinds_of(value: object) -> set[type]:
    """The types of all values inside a decoded value."""
    if isinstance(value, tuple):
        return set().union(*map(kinds_of, value)) if value else set()
    if dataclasses.is_dataclass(value):
        return {type(value)}.union(
            *(kinds_of(getattr(value, f.name)) for f in dataclasses.fields(value))
        )
    return {type(value)}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_recorded_commit_decodes_to_its_golden_text(subject):
    text = readable(commit(subject)) + "\n"
    golden = GOLDEN / f"{subject}.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_decoded_values_are_hashable_and_equal_when_decoded_twice(subject):
    assert commit(subject) == commit(subject)
    assert hash(commit(subject)) == hash(commit(subject))


def test_the_recorded_commits_cover_every_member_of_every_union():
    seen = set().union(*(kinds_of(commit(subject)) for subject in SUBJECTS))
    unions = {
        operators.OperatorKind: set(),
        operators.Spec: set(),
        operators.Window: set(),
        connectors.Table: {connectors.PostgresChanges, connectors.MySQLChanges},
        connectors.Database: set(),
        connectors.PreProc: set(),
        connectors.InitPosition: {connectors.FromTrimHorizon},
        connectors.SinkStyle: {connectors.Recreate, connectors.Snapshot},
        expr.Expr: set(),
        dtypes.Dtype: {dtypes.Null, dtypes.Bytes},
    }
    for union, unseen in unions.items():
        assert set(union.__args__) - seen == unseen


def test_credentials_do_not_show_in_a_repr():
    text = repr(commit("connectors"))
    assert "mysql-password" not in text
    assert "secret-key" not in text
    assert "arn:aws:secretsmanager" in text


def test_bytes_that_are_not_a_commit_are_malformed():
    with pytest.raises(MalformedMessage, match="not a commit"):
        decode_sync_request(b"\xff\xff not protobuf")


def test_an_unknown_member_names_its_entity():
    request = services_pb2.SyncRequest()
    request.operators.append(dataset_pb2.Operator(id="x", dataset_name="D", pipeline_name="p"))
    with pytest.raises(UnsupportedValue, match=r"a `unknown` operator of pipeline `D\.p`"):
        decode_sync_request(request.SerializeToString())


def test_all_entities_that_cannot_be_decoded_are_named():
    request = services_pb2.SyncRequest()
    for pipeline in ("p", "q"):
        request.operators.append(
            dataset_pb2.Operator(id="x", dataset_name="D", pipeline_name=pipeline)
        )
    request.sinks.add(dataset="E")
    with pytest.raises(UndecodableEntities) as refused:
        decode_sync_request(request.SerializeToString())
    assert [entity.name for entity in refused.value.entities] == ["D.p", "D.q", "E"]


def test_models_are_refused():
    request = services_pb2.SyncRequest()
    request.models.add()
    with pytest.raises(UnsupportedValue, match="models"):
        decode_sync_request(request.SerializeToString())


def test_an_unknown_enum_value_is_rejected():
    unary = expression_pb2.Expr(
        unary=expression_pb2.Unary(
            op=77, operand=expression_pb2.Expr(ref=expression_pb2.Ref(name="a"))
        )
    )
    with pytest.raises(UnsupportedValue, match="op 77"):
        decode_expr(unary)


def test_a_table_with_a_database_of_another_kind_is_rejected():
    table = connector_pb2.ExtTable(
        mysql_table=connector_pb2.MySQLTable(
            db=connector_pb2.ExtDatabase(name="k", kafka=connector_pb2.Kafka())
        )
    )
    request = services_pb2.SyncRequest()
    request.sources.append(connector_pb2.Source(table=table, dataset="D"))
    with pytest.raises(UnsupportedValue, match="is a reference to one of kafka, but its table"):
        decode_sync_request(request.SerializeToString())
    request.sources[0].table.mysql_table.db.kafka.bootstrap_servers = "broker:1"
    with pytest.raises(
        UnsupportedValue, match="connector `k` is a Kafka, but its table needs a MySQL"
    ):
        decode_sync_request(request.SerializeToString())


def test_a_scale_that_decimal128_cannot_hold_is_rejected():
    request = services_pb2.SyncRequest()
    dataset = request.datasets.add(name="D")
    dataset.dsschema.timestamp = "at"
    dataset.dsschema.values.fields.add(
        name="x", dtype=schema_pb2.DataType(decimal_type=schema_pb2.DecimalType(scale=29))
    )
    with pytest.raises(UnsupportedValue, match=r"dataset `D`: Decimal\[29\] cannot be stored"):
        decode_sync_request(request.SerializeToString())


def test_an_invalid_regular_expression_is_rejected():
    with pytest.raises(UnsupportedValue, match="is not a regular expression"):
        decode_dtype(schema_pb2.DataType(regex_type=schema_pb2.RegexType(pattern="(")))


def test_an_expression_nested_too_deep_has_its_own_error():
    request = services_pb2.SyncRequest()
    node = request.operators.add().filter_expr.expr
    for _ in range(60):
        node = node.unary.operand
    node.ref.name = "a"
    with pytest.raises(UnsupportedValue, match="deeper than 100 levels"):
        decode_sync_request(request.SerializeToString())


def test_corrupt_commits_decode_or_raise_only_a_wire_error():
    body = (GOLDEN / "operators.binpb").read_bytes()
    dice, rejected = random.Random(7), 0  # noqa: S311  # repeatable, and no secret
    for _ in range(150):
        damaged = bytearray(body)
        for _ in range(dice.randint(1, 20)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            decode_sync_request(bytes(damaged[: dice.randint(1, len(damaged))]))
        except WireError:
            rejected += 1
    assert rejected > 100, "most damage is noticed"
