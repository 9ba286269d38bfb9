"""Building graphs of commits and merging them."""

from dataclasses import replace
from pathlib import Path

from fennel_core.graph.entity_graph import (
    build_graph,
    merge_incremental,
)
from fennel_core.graph.passes import validate
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import FeatureRef, IndexSide

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"


def request(subject: str):
    return decode_sync_request((GOLDEN / f"{subject}.binpb").read_bytes())


def ref(fqn: str) -> FeatureRef:
    return FeatureRef(*fqn.split("."))


def deleted(entity):
    return replace(entity, metadata=replace(entity.metadata, deleted=True))


def test_a_deleted_dataset_is_dropped_with_its_parts():
    g = build_graph(request("operators"))
    assert g.dataset("Retired") is None
    assert g.pipelines_of("Retired") == ()
    assert not [o for o in g.operators if o.dataset == "Retired"]
    assert g.deleted.datasets == ("Retired",)


def test_operators_of_deselected_pipelines_are_dropped():
    sent = request("operators")
    assert {o.pipeline for o in sent.operators if o.dataset == "Enriched"} == {"joined", "inner"}
    assert {o.pipeline for o in build_graph(sent).operators if o.dataset == "Enriched"} == {
        "joined"
    }


def test_a_deleted_feature_is_dropped_with_extractors_that_compute_no_other():
    sent = request("featuresets")
    gone = {ref("UserFeatures.age"), ref("UserFeatures.loud")}
    g = build_graph(
        replace(sent, features=tuple(deleted(f) if f.ref in gone else f for f in sent.features))
    )
    assert g.extractor_of(ref("UserFeatures.age")) is None
    assert g.extractor_of(ref("UserFeatures.length")) is not None
    assert set(g.deleted.features) == gone


def test_entities_and_their_parts_are_found_by_name():
    g = build_graph(request("operators"))
    users = g.dataset("Users")
    assert users is not None
    assert g.has_index("Users", IndexSide.ONLINE)
    assert [s.dataset for s in g.sources_of("Users")] == ["Users"]
    (pipeline,) = g.pipelines_of("Enriched")
    assert g.root_of(pipeline) == g.operators_of(pipeline)[-1]


def test_an_incremental_commit_replaces_named_entities_and_keeps_the_rest():
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


def test_an_incremental_commit_removes_entities_named_as_deleted():
    before = build_graph(request("featuresets"))
    sent = request("featuresets")
    merged = merge_incremental(
        before,
        build_graph(replace(decode_sync_request(b""), datasets=(deleted(sent.datasets[1]),))),
    )
    assert merged.dataset("Items") is None
    assert [p.code for p in validate(merged, before, incremental=True)] == ["dataset-missing"]
