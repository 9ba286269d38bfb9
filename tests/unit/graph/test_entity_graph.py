"""Building graphs, merging them, and asking them in which order things are computed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.graph.entity_graph import (
    EdgeKind,
    Node,
    NodeKind,
    build_graph,
    merge_incremental,
    unite,
)
from fennel_core.graph.passes import validate
from fennel_core.graph.problems import Problem
from fennel_core.graph.topological_order import (
    DependencyCycle,
    dataset_order,
    inputs_first,
    resolve,
)
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import FeatureRef, IndexSide

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"


def request(subject: str):
    return decode_sync_request((GOLDEN / f"{subject}.binpb").read_bytes())


def ref(fqn: str) -> FeatureRef:
    return FeatureRef(*fqn.split("."))


def deleted(entity):
    return replace(entity, metadata=replace(entity.metadata, deleted=True))


def test_deleted_datasets_leave_with_all_that_hangs_on_them():
    g = build_graph(request("operators"))
    assert g.dataset("Retired") is None
    assert g.pipelines_of("Retired") == ()
    assert not [o for o in g.operators if o.dataset == "Retired"]
    assert g.retired.datasets == ("Retired",)


def test_operators_of_deselected_pipelines_are_dropped():
    sent = request("operators")
    assert {o.pipeline for o in sent.operators if o.dataset == "Enriched"} == {"joined", "inner"}
    assert {o.pipeline for o in build_graph(sent).operators if o.dataset == "Enriched"} == {
        "joined"
    }


def test_deleted_features_leave_with_extractors_that_have_nothing_else_to_do():
    sent = request("featuresets")
    gone = {ref("UserFeatures.age"), ref("UserFeatures.loud")}
    g = build_graph(
        replace(sent, features=tuple(deleted(f) if f.ref in gone else f for f in sent.features))
    )
    assert g.extractor_of(ref("UserFeatures.age")) is None
    assert g.extractor_of(ref("UserFeatures.length")) is not None
    assert set(g.retired.features) == gone


def test_entities_are_found_by_name_with_what_hangs_on_them():
    g = build_graph(request("operators"))
    users = g.dataset("Users")
    assert users is not None
    assert g.has_index("Users", IndexSide.ONLINE)
    assert [s.dataset for s in g.sources_of("Users")] == ["Users"]
    assert {p.dataset for p in g.readers_of("Users")} == {"Enriched", "UserChanges"}
    (pipeline,) = g.pipelines_of("Enriched")
    assert g.root_of(pipeline) == g.operators_of(pipeline)[-1]


def test_edges_are_typed():
    g = build_graph(request("operators"))
    pipeline = Node(NodeKind.PIPELINE, "Enriched.joined")
    about = {
        (e.kind, e.origin.name, e.target.name) for e in g.edges if pipeline in (e.origin, e.target)
    }
    assert about == {
        (EdgeKind.READS, "Orders", "Enriched.joined"),
        (EdgeKind.READS, "Users", "Enriched.joined"),
        (EdgeKind.COMPUTES, "Enriched.joined", "Enriched"),
    }
    features = build_graph(request("featuresets"))
    kinds = {e.kind for e in (*g.edges, *features.edges, *build_graph(request("connectors")).edges)}
    assert kinds == set(EdgeKind)


def test_a_graph_as_a_request_builds_the_same_graph():
    g = build_graph(request("featuresets"))
    assert build_graph(unite(g)) == g


def test_an_incremental_commit_replaces_what_it_names_and_keeps_the_rest():
    before = build_graph(request("operators"))
    users = replace(before.dataset("Users"), version=2)
    after = build_graph(
        replace(
            request("operators"),
            datasets=(users,),
            pipelines=(),
            operators=(),
            sources=(),
            indices=(),
        )
    )
    merged = merge_incremental(before, after)
    assert [d.name for d in merged.datasets] == [d.name for d in before.datasets]
    assert merged.dataset("Users").version == 2
    assert merged.sources_of("Users") == ()
    assert merged.indices_of("Users") == ()
    assert merged.pipelines_of("Enriched") == before.pipelines_of("Enriched")


def test_an_incremental_commit_removes_what_it_names_as_deleted():
    before = build_graph(request("featuresets"))
    sent = request("featuresets")
    merged = merge_incremental(
        before,
        build_graph(replace(decode_sync_request(b""), datasets=(deleted(sent.datasets[1]),))),
    )
    assert merged.dataset("Items") is None
    assert [p.code for p in validate(merged, before, incremental=True)] == ["dataset-missing"]


def test_datasets_come_after_what_they_are_computed_from():
    g = build_graph(request("operators"))
    order = dataset_order(g)
    assert sorted(order) == sorted(d.name for d in g.datasets)
    for pipeline in g.pipelines:
        assert all(order.index(i) < order.index(pipeline.dataset) for i in pipeline.inputs)


def order_or_cycle(nodes, inputs_of):
    try:
        return inputs_first(nodes, inputs_of)
    except DependencyCycle as cycle:
        return cycle


@given(st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3), max_size=7))
def test_inputs_come_first_or_a_cycle_is_shown(edges):
    def inputs_of(node):
        return edges.get(node, [])

    order = order_or_cycle(edges, inputs_of)
    if isinstance(order, DependencyCycle):
        assert order.path[0] == order.path[-1]
        assert all(a in inputs_of(b) for a, b in pairwise(order.path))
        return
    assert set(edges) <= set(order)
    for position, node in enumerate(order):
        assert set(inputs_of(node)) <= set(order[:position])


def test_extractors_run_after_those_whose_features_they_need():
    g = build_graph(request("featuresets"))
    order = resolve(
        g, [ref("Request.user")], [ref("BasketFeatures.loudness"), ref("UserFeatures.double_age")]
    )
    assert not isinstance(order, Problem)
    done = {ref("Request.user")}
    for extractor in order:
        assert set(extractor.inputs) <= done
        done.update(extractor.output_refs)
    assert {ref("BasketFeatures.loudness"), ref("UserFeatures.double_age")} <= done
    assert len(order) == len(set(order))


def test_a_given_feature_is_not_computed():
    g = build_graph(request("featuresets"))
    assert resolve(g, [ref("UserFeatures.age")], [ref("UserFeatures.age")]) == ()
    order = resolve(g, [ref("UserFeatures.age")], [ref("UserFeatures.double_age")])
    assert [x.outputs for x in order] == [("double_age",)]


@pytest.mark.parametrize(
    ("given_refs", "wanted", "text"),
    [
        ([], "UserFeatures.age", "No extractor found for feature `Request.user`."),
        ([], "UserFeatures.unset", "No extractor found for feature `UserFeatures.unset`."),
        (
            [],
            "UserFeatures.nobody",
            "Feature `UserFeatures.nobody` is not committed on this branch.",
        ),
    ],
)
def test_a_feature_that_nothing_provides_is_named(given_refs, wanted, text):
    problem = resolve(build_graph(request("featuresets")), given_refs, [ref(wanted)])
    assert isinstance(problem, Problem)
    assert problem.text == text


def test_features_that_need_each_other_are_a_cycle():
    g = build_graph(request("featuresets"))
    loud = g.extractor_of(ref("UserFeatures.loud"))
    looped = replace(loud, inputs=(ref("BasketFeatures.loudness"),))
    g = replace(g, extractors=tuple(looped if x is loud else x for x in g.extractors))
    problem = resolve(g, [], [ref("UserFeatures.loud")])
    assert isinstance(problem, Problem)
    assert problem.text.startswith("Cyclic dependency found for ")
