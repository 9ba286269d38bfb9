"""Law: a map emits f(row) for each row that was not retracted; rows on which f fails are dead."""

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.map.step import MapStep
from fennel_core.operators.spec import MapSpec, MapStage
from fennel_core.vocab.dtypes import Field, Int, List, Optional, Str
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from fennel_core.wire.expr import Binary, BinaryOp, Literal, Ref
from tests.laws.operators.map import oracle
from tests.support.histories import as_frame, bag, histories, integral, run

K, X, Y, Z = Field("k", Str()), Field("x", Int()), Field("y", Int()), Field("z", Int())
O = Field("o", Optional(Int()))  # noqa: E741  # the column is called o
KEYED = Schema((K,), (X, Y, O), "t")
ASSIGNED = Schema((K,), (X, Y, O, Z), "t")
RENAMED = Schema((Field("key", Str()),), (Field("n", Int()), Y, O, Z), "t")
FULL = Schema((Field("key", Str()),), (Field("n", Int()), Y, Field("o", Int()), Z), "t")
DROPPED = Schema((Field("key", Str()),), (Field("n", Int()), Field("o", Int()), Z), "t")
POSITIVE = Binary(BinaryOp.GT, Ref("x"), Literal("0", Int()))
STAGES = (
    MapStage(
        wire.AssignExpr(
            "", (("z", Binary(BinaryOp.FLOOR_DIV, Literal("12", Int()), Ref("y")), Int()),)
        ),
        ASSIGNED,
    ),
    MapStage(wire.FilterExpr("", POSITIVE), ASSIGNED),
    MapStage(wire.Rename("", (("k", "key"), ("x", "n"))), RENAMED),
    MapStage(wire.Dropnull("", ("o",)), FULL),
    MapStage(wire.Drop("", ("y",)), DROPPED),
)
SMALL = st.integers(-2, 3)
KEYED_ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("pq"),
        "t": SMALL,
        "x": SMALL,
        "y": SMALL,
        "o": st.none() | SMALL,
        "__tombstone": st.sampled_from([False, False, True]),
    }
).map(lambda row: {**row, **dict.fromkeys("xyo")} if row["__tombstone"] else row)

LISTS = Schema((), (Field("a", List(Int())), Field("b", List(Str()))), "t")
ELEMENTS = Schema((), (Field("a", Optional(Int())), Field("b", Optional(Str()))), "t")
LIST_ROW = st.fixed_dictionaries(
    {"t": SMALL, "a": st.lists(SMALL, max_size=3), "b": st.lists(st.sampled_from("uv"), max_size=3)}
)


@given(histories(KEYED_ROW))
def test_a_keyed_map_turns_every_row_into_its_image_or_a_tombstone(history):
    _, emitted = run(MapStep(MapSpec((KEYED,), (STAGES,), DROPPED)), history, KEYED)
    assert bag(integral(emitted)) == bag(
        [image for row in history.left_over() for image in oracle.keyed(row)]
    )


@given(histories(LIST_ROW, LIST_ROW))
def test_a_union_of_exploded_branches_keeps_positions_unique(history):
    keep = MapStage(
        wire.FilterExpr("", Binary(BinaryOp.GT, Ref("a"), Literal("0", Int()))), ELEMENTS
    )
    branch = (MapStage(wire.Explode("", ("a", "b")), ELEMENTS), keep)
    _, emitted = run(
        MapStep(MapSpec((LISTS, LISTS), (branch, branch), ELEMENTS)), history, LISTS, LISTS
    )
    rows = integral(emitted)
    assert bag(rows) == bag(
        [
            image
            for source in (0, 1)
            for row in history.left_over(source)
            for image in oracle.exploded(row, source)
        ]
    )
    assert len({row["__pos"] for row in rows}) == len(rows)


@given(histories(KEYED_ROW, retract=False))
def test_dead_rows_are_exactly_those_whose_expression_fails(history):
    step = MapStep(MapSpec((KEYED,), (STAGES,), DROPPED))
    dead = []
    for batch in history.batches:
        for rows in step.apply(None, 0, as_frame(KEYED, batch)).dead:
            assert "`z`" in rows.reason
            dead += rows.frame["__pos"].to_list()
    assert sorted(dead) == sorted(
        row["__pos"] for row in history.left_over() if row["y"] == 0 and not row["__tombstone"]
    )
