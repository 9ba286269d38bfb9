"""Schemas of operator outputs, derived from recorded commits.

The golden text shows each operator with its keys, values and timestamp. `REFRESH_GOLDEN=1 pytest
tests/unit/graph/test_derived_schemas.py` rewrites it; read the diff before committing it.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fennel_core.graph.derived_schemas import (
    SchemaMismatch,
    derive_pipeline_schemas,
    derive_schema,
    schema_difference,
    storage_type,
)
from fennel_core.graph.entity_graph import build_graph
from fennel_core.vocab.dtypes import (
    Between,
    Bool,
    Decimal,
    Field,
    Float,
    Int,
    List,
    Map,
    Optional,
    Regex,
    Str,
    Struct,
    Timestamp,
    show,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as o
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.expr import Ref

TESTS = Path(__file__).resolve().parents[2]
KEYLESS = Schema(
    (), (Field("a", Int()), Field("b", Optional(Float())), Field("tags", List(Str()))), "at"
)
KEYED = Schema((Field("k", Str()),), (Field("v", Int()), Field("o", Optional(Str()))), "t")
FOREVER = o.Forever()


def graph(subject: str):
    return build_graph(
        decode_sync_request((TESTS / "golden" / "wire" / f"{subject}.binpb").read_bytes())
    )


def show_schema(schema: Schema) -> str:
    keys = ", ".join(f"{f.name}: {show(f.dtype)}" for f in schema.keys)
    values = ", ".join(f"{f.name}: {show(f.dtype)}" for f in schema.values)
    return f"[{keys}] {values} @{schema.timestamp}"


def test_every_recorded_operator_derives_its_golden_schema():
    lines = []
    for subject in ("operators", "expressions", "connectors"):
        g = graph(subject)
        for pipeline in g.pipelines:
            lines.append(f"{pipeline.dataset}.{pipeline.name}")
            schemas = derive_pipeline_schemas(g, pipeline)
            lines += [
                f"    {type(op.kind).__name__.rstrip('_'):12} {show_schema(schemas[op.id])}"
                for op in g.operators_of(pipeline)
            ]
    text = "\n".join(lines) + "\n"
    golden = TESTS / "golden" / "graph" / "schemas.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def derived(kind, *inputs):
    return derive_schema(build_graph(decode_sync_request(b"")), kind, inputs)


@pytest.mark.parametrize(
    ("kind", "inputs", "expected"),
    [
        (o.FilterExpr("i", Ref("a")), [KEYED], KEYED),
        (o.Drop("i", ("a",)), [KEYLESS], replace(KEYLESS, values=KEYLESS.values[1:])),
        (
            o.Rename("i", (("k", "key"), ("t", "time"), ("v", "k"))),
            [KEYED],
            Schema((Field("key", Str()),), (Field("k", Int()), KEYED.values[1]), "time"),
        ),
        (
            o.Explode("i", ("tags",)),
            [KEYLESS],
            replace(KEYLESS, values=(*KEYLESS.values[:2], Field("tags", Optional(Str())))),
        ),
        (
            o.Dropnull("i", ("b",)),
            [KEYLESS],
            replace(KEYLESS, values=(KEYLESS.values[0], Field("b", Float()), KEYLESS.values[2])),
        ),
        (
            o.First("i", ("tags", "a")),
            [KEYLESS],
            Schema((KEYLESS.values[2], KEYLESS.values[0]), (KEYLESS.values[1],), "at"),
        ),
        (
            o.Changelog("i", "gone", True),
            [KEYED],
            Schema((), (*KEYED.keys, *KEYED.values, Field("gone", Bool())), "t"),
        ),
        (
            o.AssignExpr("i", (("a", Ref("a"), Float()), ("z", Ref("a"), Str()))),
            [KEYLESS],
            replace(KEYLESS, values=(Field("a", Float()), *KEYLESS.values[1:], Field("z", Str()))),
        ),
    ],
)
def test_an_operator_yields_its_schema(kind, inputs, expected):
    assert derived(kind, *inputs) == expected


def join(**changes):
    return replace(o.Join("l", "r", (("name", "k"),), o.JoinHow.LEFT, None, 0, ()), **changes)


LEFT = Schema((), (Field("name", Str()),), "at")


def test_a_left_join_makes_the_right_side_optional_and_an_inner_join_does_not():
    assert derived(join(), LEFT, KEYED).values == (
        *LEFT.values,
        Field("v", Optional(Int())),
        Field("o", Optional(Str())),
    )
    assert derived(join(how=o.JoinHow.INNER), LEFT, KEYED).values == (*LEFT.values, *KEYED.values)
    assert derived(join(fields=("v", "t")), LEFT, KEYED).values == (
        *LEFT.values,
        Field("v", Optional(Int())),
        Field("t", Optional(Timestamp())),
    )


@pytest.mark.parametrize(
    ("kind", "inputs", "text"),
    [
        (
            o.Drop("i", ("k",)),
            [KEYED],
            "Field `k` is a key or timestamp field in schema "
            "of drop node input. Value "
            "fields are: ['v', 'o']",
        ),
        (o.Drop("i", ("x",)), [KEYED], "`drop` uses column `x`"),
        (
            o.Union_(("l", "r")),
            [KEYED, KEYED],
            "Union over keyed datasets is currently not supported",
        ),
        (
            o.Union_(("l", "r")),
            [LEFT, KEYLESS],
            "the inputs of a union must have one schema: "
            "value field `a: int` is "
            "declared but missing",
        ),
        (o.Explode("i", ("a",)), [KEYLESS], "Cannot explode column `a` of type `int`"),
        (o.Explode("i", ("v",)), [KEYED], "Explode over keyed datasets is not defined"),
        (o.Latest("i", ("k",)), [KEYED], "Latest over keyed datasets is not defined"),
        (o.Dedup("i", ("k",), None), [KEYED], "Dedup over keyed datasets is not defined"),
        (
            o.Changelog("i", "gone", True),
            [KEYLESS],
            "Changelog operation is allowed only on keyed datasets",
        ),
        (o.Changelog("i", "v", True), [KEYED], "Column name collision. `v` already exists"),
        (o.Dropnull("i", ("a",)), [KEYLESS], "its type `int` is not Optional"),
        (o.Rename("i", (("a", "b"),)), [KEYLESS], "Field `b` already exists"),
        (
            o.AssignExpr("i", (("k", Ref("v"), Str()),)),
            [KEYED],
            "`k` is a key or timestamp field and cannot be assigned",
        ),
        (join(on=(("name", "v"),)), [LEFT, KEYED], "are not the keys `['k']` of the right dataset"),
        (
            join(),
            [Schema((), (Field("name", Int()),), "at"), KEYED],
            "the join on `name: int` meets a key `k: str`",
        ),
        (
            join(),
            [Schema((), (Field("name", Optional(Str())),), "at"), KEYED],
            "must not be optional in left schema",
        ),
        (
            join(),
            [Schema((), (Field("name", Str()), Field("v", Int())), "at"), KEYED],
            "Column name collision. `v` already exists",
        ),
        (
            join(fields=("x",)),
            [LEFT, KEYED],
            "fields member `x` not present in allowed fields ['v', 'o', 't']",
        ),
        (
            o.WindowOp("i", FOREVER, ("a",), "window"),
            [KEYLESS],
            "must be Tumbling, Hopping or Session",
        ),
        (
            o.WindowOp("i", o.Session(1), ("k",), "window"),
            [KEYED],
            "Using 'window' param in groupby on keyed dataset is not allowed",
        ),
    ],
)
def test_an_operator_that_does_not_fit_its_input_is_rejected_with_the_reason(kind, inputs, text):
    with pytest.raises(SchemaMismatch) as caught:
        derived(kind, *inputs)
    assert text in str(caught.value)


def aggregate(*specs, along=None, emit=o.Emit.EAGER, keys=("a",)):
    return o.Aggregate("i", keys, specs, along, emit)


def count(name="n", window=FOREVER, **options):
    return o.Count(
        name,
        window,
        options.get("of"),
        options.get("unique", False),
        True,
        options.get("dropnull", False),
    )


HOURLY, DAILY = o.Tumbling(3_600_000_000, 0), o.Tumbling(86_400_000_000, 60_000_000)


@pytest.mark.parametrize(
    ("kind", "schema", "text"),
    [
        (aggregate(), KEYLESS, "expects at least one aggregation"),
        (aggregate(count(), count("m", HOURLY)), KEYLESS, "have to be either discrete"),
        (
            aggregate(count(window=HOURLY), count("m", DAILY)),
            KEYLESS,
            "must have same lookback found [0, 60] seconds",
        ),
        (
            aggregate(count(window=HOURLY), keys=("k",)),
            KEYED,
            "can not be used to aggregate keyed datasets",
        ),
        (aggregate(count(window=o.Session(5))), KEYLESS, "Session windows go into `groupby"),
        (aggregate(count(), along="a"), KEYLESS, "`a` is not of type datetime"),
        (aggregate(count(name="a")), KEYLESS, "columns ['a'] appear twice"),
        (
            aggregate(o.Sum("s", FOREVER, "tags")),
            KEYLESS,
            "Cannot take sum of field `tags` of type `List[str]`",
        ),
        (aggregate(o.Distinct("s", FOREVER, "b", False)), KEYLESS, "as it is not hashable"),
        (aggregate(count(of="a", dropnull=True)), KEYLESS, "as it is not optional"),
        (aggregate(count(), keys=("x",)), KEYLESS, "`groupby` uses column `x`"),
    ],
)
def test_an_invalid_aggregation_is_rejected_with_the_reason(kind, schema, text):
    with pytest.raises(SchemaMismatch) as caught:
        derived(kind, schema)
    assert text in str(caught.value)


def test_an_aggregation_completed_at_read_time_is_terminal():
    assert aggregate(count()).terminal
    assert aggregate(count(), emit=o.Emit.FINAL).terminal is False
    assert aggregate(count(window=HOURLY)).terminal is False
    assert aggregate(o.ExpDecay("x", HOURLY, "b", 1)).terminal


def test_schema_comparison_ignores_restrictions_and_struct_names_only():
    def of(dtype):
        return Schema((), (Field("x", dtype),), "at")

    assert schema_difference(of(Between(Int(), 0, 1)), of(Int())) is None
    assert schema_difference(of(List(Regex("a"))), of(List(Str()))) is None
    assert (
        schema_difference(
            of(Struct("A", (Field("f", Int()),))), of(Struct("B", (Field("f", Int()),)))
        )
        is None
    )
    assert (
        schema_difference(of(Optional(Int())), of(Int()))
        == "value field `x` has type `Optional[int]`, but `int` is declared"
    )
    assert schema_difference(of(Decimal(2)), of(Decimal(3))) is not None
    assert (
        schema_difference(of(Int()), replace(of(Int()), timestamp="t"))
        == "the timestamp field is `at`, but `t` is declared"
    )
    assert storage_type(Map(Between(Float(), 0, 1))) == Map(Float())
