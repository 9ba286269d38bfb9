"""Plans of small featuresets, compared line by line."""

import itertools

import pytest

from fennel_core.plans.errors import CyclicFeatures, MissingProvider, UnknownName, UnservedDataset
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.plan_nodes import (
    AliasNode,
    ExpressionNode,
    FieldRead,
    ListLookupNode,
    LookupNode,
    PythonExtractorNode,
    QueryPlan,
)
from fennel_core.plans.planner import make_plan
from fennel_core.vocab.dtypes import Int, List, Optional, Str
from fennel_core.wire import entities as wire
from fennel_core.wire.expr import Binary, BinaryOp, Ref
from tests.support.featuresets import (
    CODE,
    OPTIONAL_INT,
    USERS,
    dataset,
    extractor,
    list_lookup,
    lookup,
    ref,
    request,
)

CARDS = dataset("Cards", {"uid": Int(), "card": Int()}, {"limit": Int()})
DOUBLE = wire.ExprExtractor(Binary(BinaryOp.ADD, Ref("age"), Ref("age")))

FEATURES = {
    "User.uid": Int(),
    "User.age": Int(),
    "User.name": Optional(Str()),
    "User.double": Int(),
    "Card.uid": Int(),
    "Card.card": Int(),
    "Card.limit": OPTIONAL_INT,
    "Card.score": Int(),
    "Card.rank": Int(),
    "Many.uids": List(Int()),
    "Many.ages": List(OPTIONAL_INT),
}
EXTRACTORS = [
    extractor("User.age", lookup("Users", "age", default="7"), "User.uid"),
    extractor("User.name", lookup("Users", "name", Str(), default="null"), "User.uid"),
    extractor("User.double", DOUBLE, "User.age"),
    extractor("Card.uid", wire.Alias(None), "User.uid"),
    extractor("Card.limit", lookup("Cards", "limit"), "Card.uid", "Card.card"),
    extractor(
        "Card.score",
        wire.PyFunc(CODE),
        "Card.limit",
        "User.double",
        datasets=("Users",),
        also=("rank",),
    ),
    extractor("Many.ages", list_lookup("Users", "age"), "Many.uids"),
]
INDEX = FeatureIndex.of(request(FEATURES, EXTRACTORS, [USERS, CARDS]))


def plan(inputs: list[str], outputs: list[str]) -> QueryPlan:
    return make_plan(INDEX, tuple(inputs), tuple(outputs))


def shape(built: QueryPlan) -> list[str]:
    """Return one line per node, in order, levels numbered."""
    lines = []
    for number, level in enumerate(built.levels):
        for step in (*level.local, *level.remote):
            match step:
                case LookupNode(name, keys, reads) | ListLookupNode(name, keys, reads):
                    kind = "lookup" if isinstance(step, LookupNode) else "list lookup"
                    got = ", ".join(f"{r.output.ref.fqn}={r.field}" for r in reads)
                    lines.append(f"{number} {kind} {name}[{', '.join(k.fqn for k in keys)}]: {got}")
                case AliasNode():
                    lines.append(f"{number} alias {step.output.ref.fqn} = {step.source.fqn}")
                case ExpressionNode():
                    lines.append(
                        f"{number} expr {step.output.ref.fqn} of "
                        f"{', '.join(i.ref.fqn for i in step.inputs)}"
                    )
                case PythonExtractorNode():
                    lines.append(
                        f"{number} python {step.name}: {', '.join(o.ref.fqn for o in step.outputs)}"
                    )
    return lines


def test_the_number_of_levels_is_the_longest_chain_of_round_trips() -> None:
    assert shape(plan(["User.uid", "Card.card"], ["Card.score", "User.name"])) == [
        "0 alias Card.uid = User.uid",
        "0 lookup Cards[Card.uid, Card.card]: Card.limit=limit",
        "0 lookup Users[User.uid]: User.age=age, User.name=name",
        "1 expr User.double of User.age",
        "1 python _score: Card.score, Card.rank",
    ]


def test_lookups_of_one_row_are_one_node_despite_different_defaults() -> None:
    step = plan(["User.uid"], ["User.age", "User.name"]).levels[0].remote[0]
    assert isinstance(step, LookupNode)
    assert [(r.field, r.default_json) for r in step.reads] == [("age", "7"), ("name", None)]


def test_an_input_feature_and_its_dependencies_are_not_computed() -> None:
    built = plan(["User.age", "User.uid"], ["User.double"])
    assert shape(built) == ["0 expr User.double of User.age"]
    assert [i.ref.fqn for i in built.inputs] == ["User.age"]


def test_an_output_that_is_also_an_input_is_returned_unchanged() -> None:
    built = plan(["User.age"], ["User.age"])
    assert shape(built) == []
    assert [o.ref.fqn for o in built.outputs] == ["User.age"]


def test_an_extractor_still_runs_if_one_of_its_outputs_is_an_input() -> None:
    built = plan(["Card.limit", "User.age", "Card.score"], ["Card.score", "Card.rank"])
    assert shape(built) == [
        "0 expr User.double of User.age",
        "0 python _score: Card.score, Card.rank",
    ]


def test_a_featureset_name_expands_to_its_features_in_order_and_once() -> None:
    built = plan(["User.uid"], ["User.double", "User"])
    assert [o.ref.fqn for o in built.outputs] == [
        "User.double",
        "User.uid",
        "User.age",
        "User.name",
    ]


def test_list_lookups_are_not_merged_with_plain_lookups() -> None:
    built = plan(["User.uid", "Many.uids"], ["Many.ages", "User.age"])
    assert shape(built) == [
        "0 list lookup Users[Many.uids]: Many.ages=age",
        "0 lookup Users[User.uid]: User.age=age",
    ]


def test_expressions_reference_features_by_full_name() -> None:
    step = plan(["User.age"], ["User.double"]).levels[0].local[0]
    assert isinstance(step, ExpressionNode)
    assert step.expr == Binary(BinaryOp.ADD, Ref("User.age"), Ref("User.age"))


def test_a_feature_without_extractor_is_reported_with_the_clients_text() -> None:
    with pytest.raises(MissingProvider, match=r"^No extractor found for feature `Card.card`.$"):
        plan(["User.uid"], ["Card.limit"])


def test_an_unknown_featureset_is_reported_by_name() -> None:
    with pytest.raises(UnknownName, match="`Nowhere`"):
        plan(["User.uid"], ["Nowhere"])


@pytest.mark.parametrize("name", ["User", "User.", ".age", "a.b.c"])
def test_an_input_must_be_a_full_feature_name(name: str) -> None:
    with pytest.raises(UnknownName, match=r"Featureset\.feature"):
        plan([name], ["User.age"])


def test_a_cyclic_feature_is_rejected() -> None:
    features = {"A.x": Int(), "A.y": Int()}
    index = FeatureIndex.of(
        request(
            features,
            [extractor("A.x", wire.Alias(None), "A.y"), extractor("A.y", wire.Alias(None), "A.x")],
        )
    )
    with pytest.raises(CyclicFeatures, match="Cyclic dependency found for"):
        make_plan(index, (), ("A.x",))
    assert shape(make_plan(index, ("A.y",), ("A.x",))) == ["0 alias A.x = A.y"]


def test_a_chain_longer_than_the_recursion_limit_is_planned() -> None:
    names = [f"A.f{n}" for n in range(3000)]
    steps = [extractor(b, wire.Alias(None), a) for a, b in itertools.pairwise(names)]
    index = FeatureIndex.of(request(dict.fromkeys(names, Int()), steps))
    assert len(make_plan(index, (names[0],), (names[-1],)).levels[0].local) == 2999


def test_a_lookup_into_an_uncommitted_dataset_is_rejected() -> None:
    index = FeatureIndex.of(request(FEATURES, EXTRACTORS, [CARDS]))
    with pytest.raises(UnservedDataset, match="`Users` not found"):
        make_plan(index, ("User.uid",), ("User.age",))


def test_a_lookup_with_too_few_key_features_is_rejected() -> None:
    short = extractor("Card.limit", lookup("Cards", "limit"), "Card.uid")
    index = FeatureIndex.of(request(FEATURES, [short], [CARDS]))
    with pytest.raises(UnservedDataset, match="uid, card"):
        make_plan(index, ("Card.uid",), ("Card.limit",))


def test_reads_keep_the_declared_type_of_the_feature() -> None:
    step = plan(["User.uid"], ["User.name"]).levels[0].remote[0]
    assert isinstance(step, LookupNode)
    assert step.reads == (FieldRead("name", plan(["User.uid"], ["User.name"]).outputs[0], None),)
    assert step.reads[0].output.ref == ref("User.name")
