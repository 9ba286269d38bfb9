"""Each pass finds what it is for, and only that: recorded commits are broken in one way each.

`REFRESH_GOLDEN=1 pytest tests/unit/graph/test_graph_passes.py` rewrites the texts; read the diff
before committing it.
"""

import base64
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from fennel_core.graph.entity_graph import Graph, build_graph, merge_incremental
from fennel_core.graph.passes import INCREMENTAL_RULES, RULES, validate
from fennel_core.graph.passes.cycles import forbid_cycles
from fennel_core.graph.passes.expressions import check_expressions
from fennel_core.graph.passes.extractors import one_extractor_per_feature
from fennel_core.graph.passes.fields import check_fields
from fennel_core.graph.passes.indices import indices_need_keys
from fennel_core.graph.passes.lookups import check_lookups
from fennel_core.graph.passes.names import unique_names
from fennel_core.graph.passes.pipelines import one_pipeline_per_dataset
from fennel_core.graph.passes.references import resolve_references
from fennel_core.graph.passes.schemas import check_operator_schemas
from fennel_core.graph.passes.sinks import sinks_only_on_derived
from fennel_core.graph.passes.sources import check_sources
from fennel_core.graph.passes.supersets import keep_features
from fennel_core.graph.passes.terminals import terminals_are_last
from fennel_core.graph.passes.versions import require_new_version_on_change
from fennel_core.vocab.dtypes import Field, Float, Int, Optional, Str
from fennel_core.wire.connectors import Cdc, EvalExpr, Sampling, Webhook
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import FeatureRef, Index, IndexSide, ListLookup, Lookup, PyFunc
from fennel_core.wire.expr import Literal, Ref
from fennel_core.wire.gen import spec_pb2, window_pb2
from fennel_core.wire.operators import Aggregate, AssignExpr, Drop, FilterExpr, WindowOp
from fennel_core.wire.window_specs import insert_window_specs, pipelines_without_specs

TESTS = Path(__file__).resolve().parents[2]


WINDOW = window_pb2.Window(session=window_pb2.Session(gap=duration_pb2.Duration(seconds=900)))
ORDERS = spec_pb2.PreSpec(count=spec_pb2.Count(name="orders", window=WINDOW))
RECOVERED = json.dumps(
    [[{"emit": "eager", "specs": [base64.b64encode(ORDERS.SerializeToString()).decode()]}]]
)
"""What running the one pipeline whose aggregations do not travel would print."""


def body(subject: str) -> bytes:
    return (TESTS / "golden" / "wire" / f"{subject}.binpb").read_bytes()


@cache
def graph(subject: str) -> Graph:
    sent = body(subject)
    pipelines = pipelines_without_specs(decode_sync_request(sent))
    return build_graph(
        decode_sync_request(insert_window_specs(sent, pipelines, RECOVERED) if pipelines else sent)
    )


def without_dataset(g: Graph, name: str) -> Graph:
    return replace(
        g,
        datasets=tuple(d for d in g.datasets if d.name != name),
        sources=tuple(s for s in g.sources if s.dataset != name),
        indices=tuple(i for i in g.indices if i.dataset != name),
    )


def edit(items: tuple, wanted, change) -> tuple:
    edited = tuple(change(item) if wanted(item) else item for item in items)
    assert edited != items, "the edit changed nothing"
    return edited


def edit_dataset(g: Graph, name: str, change) -> Graph:
    return replace(g, datasets=edit(g.datasets, lambda d: d.name == name, change))


def edit_operator(g: Graph, dataset: str, kind: type, change) -> Graph:
    def wanted(o):
        return o.dataset == dataset and isinstance(o.kind, kind)

    return replace(
        g, operators=edit(g.operators, wanted, lambda o: replace(o, kind=change(o.kind)))
    )


def edit_source(g: Graph, dataset: str, change) -> Graph:
    return replace(g, sources=edit(g.sources, lambda s: s.dataset == dataset, change))


def edit_extractor(g: Graph, kind: type, change) -> Graph:
    first = next(x for x in g.extractors if isinstance(x.kind, kind))
    return replace(g, extractors=edit(g.extractors, lambda x: x is first, change))


def retype(feature: str, dtype):
    def change(g: Graph) -> Graph:
        return replace(
            g,
            features=edit(
                g.features, lambda f: f.ref.fqn == feature, lambda f: replace(f, dtype=dtype)
            ),
        )

    return change


def loop(g: Graph) -> Graph:
    """Users is computed from what is computed from it."""
    pipeline = next(p for p in g.pipelines if p.dataset == "UserChanges")
    return replace(
        g, pipelines=(*g.pipelines, replace(pipeline, dataset="Users", inputs=("UserChanges",)))
    )


def loop_features(g: Graph) -> Graph:
    return edit_extractor(
        g, PyFunc, lambda x: replace(x, inputs=(FeatureRef("UserFeatures", "length"),))
    )


def add_lookup_key(g: Graph) -> Graph:
    return edit_extractor(g, Lookup, lambda x: replace(x, inputs=x.inputs * 2))


def values(*fields):
    return lambda d: replace(d, schema=replace(d.schema, values=(*d.schema.values, *fields)))


def copy_reads_terminal(g: Graph) -> Graph:
    def pipelines(p):
        return replace(p, inputs=("Continuously",))

    return replace(g, pipelines=edit(g.pipelines, lambda p: p.dataset == "Both", pipelines))


def drop_after_aggregate(g: Graph) -> Graph:
    aggregate = next(
        o for o in g.operators if o.dataset == "Decaying" and isinstance(o.kind, Aggregate)
    )
    follower = replace(aggregate, id="last", kind=Drop(aggregate.id, ()))
    return replace(
        g,
        operators=(
            *(replace(o, is_root=False) if o is aggregate else o for o in g.operators),
            follower,
        ),
    )


def number(name: str):
    return Field(name, Int())


# name, pass, recorded commit, how it is broken
CASES = [
    (
        "dataset twice",
        unique_names,
        "operators",
        lambda g: replace(g, datasets=(*g.datasets, g.datasets[0])),
    ),
    (
        "feature twice",
        unique_names,
        "featuresets",
        lambda g: replace(g, features=(*g.features, g.features[0])),
    ),
    (
        "field twice",
        check_fields,
        "operators",
        lambda g: edit_dataset(g, "Users", values(number("age"))),
    ),
    (
        "field of the platform",
        check_fields,
        "operators",
        lambda g: edit_dataset(g, "Users", values(number("__pos"))),
    ),
    (
        "key that may be null",
        check_fields,
        "operators",
        lambda g: edit_dataset(
            g,
            "Users",
            lambda d: replace(d, schema=replace(d.schema, keys=(Field("user", Optional(Str())),))),
        ),
    ),
    ("input missing", resolve_references, "operators", lambda g: without_dataset(g, "Users")),
    (
        "looked-up dataset missing",
        resolve_references,
        "featuresets",
        lambda g: without_dataset(g, "Items"),
    ),
    (
        "featureset missing",
        resolve_references,
        "featuresets",
        lambda g: replace(
            g,
            featuresets=g.featuresets[1:],
            features=tuple(f for f in g.features if f.ref.featureset != "Request"),
        ),
    ),
    (
        "feature missing",
        resolve_references,
        "featuresets",
        lambda g: replace(g, features=g.features[1:]),
    ),
    (
        "owner missing",
        resolve_references,
        "connectors",
        lambda g: replace(g, datasets=g.datasets[1:]),
    ),
    (
        "no root",
        resolve_references,
        "operators",
        lambda g: replace(
            g,
            operators=edit(
                g.operators, lambda o: o.dataset == "Both", lambda o: replace(o, is_root=False)
            ),
        ),
    ),
    (
        "operand missing",
        resolve_references,
        "operators",
        lambda g: edit_operator(g, "Decaying", Aggregate, lambda k: replace(k, operand="x")),
    ),
    ("dataset computed from itself", forbid_cycles, "operators", loop),
    ("feature computed from itself", forbid_cycles, "featuresets", loop_features),
    (
        "two pipelines",
        one_pipeline_per_dataset,
        "operators",
        lambda g: replace(g, pipelines=(*g.pipelines, replace(g.pipelines[0], name="again"))),
    ),
    (
        "pipeline of another version",
        one_pipeline_per_dataset,
        "operators",
        lambda g: edit_dataset(g, "Both", lambda d: replace(d, version=4)),
    ),
    (
        "source and pipeline",
        check_sources,
        "operators",
        lambda g: replace(g, sources=(*g.sources, replace(g.sources[0], dataset="Both"))),
    ),
    (
        "append with keys",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Users", lambda s: replace(s, cdc=Cdc.APPEND)),
    ),
    (
        "upsert without keys",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, cdc=Cdc.UPSERT)),
    ),
    (
        "source of another version",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, version=3)),
    ),
    (
        "unknown preproc field",
        check_sources,
        "connectors",
        lambda g: edit_source(
            g, "Events", lambda s: replace(s, preproc=(*s.preproc, ("none", s.preproc[0][1])))
        ),
    ),
    (
        "computed timestamp",
        check_sources,
        "connectors",
        lambda g: edit_source(
            g, "Events", lambda s: replace(s, preproc=(("at", EvalExpr(Ref("plain"), ())),))
        ),
    ),
    (
        "since after until",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, since_us=2, until_us=1)),
    ),
    (
        "bounded without idleness",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, bounded=True)),
    ),
    (
        "unknown sampling column",
        check_sources,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, sampling=Sampling(0.1, ("x",)))),
    ),
    (
        "sink on a source",
        sinks_only_on_derived,
        "connectors",
        lambda g: replace(g, sinks=(replace(g.sinks[0], dataset="Events"),)),
    ),
    (
        "index without keys",
        indices_need_keys,
        "operators",
        lambda g: replace(g, indices=(*g.indices, Index("Orders", 1, IndexSide.ONLINE, None))),
    ),
    (
        "field not computed",
        check_operator_schemas,
        "operators",
        lambda g: edit_dataset(g, "Both", values(number("more"))),
    ),
    (
        "operator on a missing column",
        check_operator_schemas,
        "operators",
        lambda g: edit_operator(g, "Decaying", Aggregate, lambda k: replace(k, keys=("nobody",))),
    ),
    (
        "aggregations that did not travel",
        check_operator_schemas,
        "operators",
        lambda g: edit_operator(
            g, "Sessions", WindowOp, lambda k: replace(k, specs=(), recovered=False)
        ),
    ),
    (
        "filter that is no bool",
        check_expressions,
        "connectors",
        lambda g: edit_operator(g, "Copied", FilterExpr, lambda k: replace(k, expr=Ref("id"))),
    ),
    (
        "filter on a missing column",
        check_expressions,
        "connectors",
        lambda g: edit_operator(g, "Copied", FilterExpr, lambda k: replace(k, expr=Ref("nobody"))),
    ),
    (
        "assigned column of another type",
        check_expressions,
        "operators",
        lambda g: edit_operator(
            g,
            "Stateless",
            AssignExpr,
            lambda k: replace(
                k, columns=tuple((n, Literal('"x"', Str()), d) for n, _, d in k.columns)
            ),
        ),
    ),
    (
        "preproc of another type",
        check_expressions,
        "connectors",
        lambda g: edit_source(
            g,
            "Events",
            lambda s: replace(
                s, preproc=(("computed", EvalExpr(Ref("raw"), (Field("raw", Str()),))),)
            ),
        ),
    ),
    (
        "where that is no bool",
        check_expressions,
        "connectors",
        lambda g: edit_source(g, "Events", lambda s: replace(s, where=EvalExpr(Ref("plain"), ()))),
    ),
    (
        "feature of another type",
        check_expressions,
        "featuresets",
        retype("UserFeatures.double_age", Str()),
    ),
    ("operator after a terminal", terminals_are_last, "operators", drop_after_aggregate),
    ("terminal dataset as input", terminals_are_last, "operators", copy_reads_terminal),
    (
        "two providers",
        one_extractor_per_feature,
        "featuresets",
        lambda g: replace(g, extractors=(*g.extractors, g.extractors[-1])),
    ),
    (
        "no index",
        check_lookups,
        "featuresets",
        lambda g: replace(g, indices=tuple(i for i in g.indices if i.dataset != "Items")),
    ),
    (
        "unknown field",
        check_lookups,
        "featuresets",
        lambda g: edit_extractor(
            g, Lookup, lambda x: replace(x, kind=replace(x.kind, field=number("none")))
        ),
    ),
    (
        "field of another type",
        check_lookups,
        "featuresets",
        lambda g: edit_extractor(
            g, ListLookup, lambda x: replace(x, kind=replace(x.kind, field=Field("price", Str())))
        ),
    ),
    ("too many keys", check_lookups, "featuresets", add_lookup_key),
    ("key of another type", check_lookups, "featuresets", retype("BasketFeatures.item", Float())),
]


@pytest.mark.parametrize("subject", ["operators", "expressions", "connectors", "featuresets"])
def test_what_the_client_sends_is_valid_alone_and_after_itself(subject):
    g = graph(subject)
    assert validate(g, None) == ()
    assert validate(g, g) == ()
    assert validate(merge_incremental(g, g), g, incremental=True) == ()


def test_every_way_to_break_a_commit_is_told_in_its_golden_text():
    lines = []
    for title, rule, subject, change in CASES:
        problems = list(rule(change(graph(subject)), None))
        assert problems, title
        lines.append(f"{rule.__name__}: {title}")
        lines += [f"    [{p.code}] {p.entity}: {p.text}" for p in problems]
    text = "\n".join(lines) + "\n"
    golden = TESTS / "golden" / "graph" / "problems.txt"
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_rule_has_a_case():
    with_before = {require_new_version_on_change, keep_features}
    assert {rule for _, rule, _, _ in CASES} | with_before == {*RULES, *INCREMENTAL_RULES}


def test_a_missing_input_is_told_once_and_in_the_words_of_the_client():
    g = without_dataset(graph("operators"), "Users")
    g = replace(
        g,
        pipelines=tuple(p for p in g.pipelines if p.dataset == "Enriched"),
        featuresets=(),
        features=(),
        extractors=(),
    )
    text = (
        "Dataset Users not found in the graph while creating inedges for pipeline "
        "Enriched@v1.joined"
    )
    assert [p.text for p in validate(g, None)] == [text]


def test_a_missing_lookup_dataset_is_told_once_and_in_the_words_of_the_client():
    g = without_dataset(graph("featuresets"), "Items")
    assert [p.text for p in validate(g, None)] == [
        (
            "Dataset Items not found in the graph while creating inedges for pipeline "
            "BasketFeatures._fennel_lookup_Items.price"
        )
    ]


def test_all_problems_are_collected():
    g = without_dataset(graph("operators"), "Users")
    g = edit_source(g, "Orders", lambda s: replace(s, cdc=Cdc.UPSERT))
    assert {p.code for p in validate(g, None)} >= {"dataset-missing", "cdc-keys"}


CHANGES = {
    "schema": lambda g: edit_dataset(g, "Users", values(number("more"))),
    "history": lambda g: edit_dataset(g, "Users", lambda d: replace(d, history_us=1)),
    "source": lambda g: edit_source(g, "Users", lambda s: replace(s, disorder_us=5)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_dataset_needs_a_higher_version(what):
    before = graph("operators")
    after = CHANGES[what](before)
    (problem,) = require_new_version_on_change(after, before)
    assert "please increment dataset version" in problem.text
    assert what in problem.text
    for version, told in ((2, False), (1, True), (0, True)):
        raised = edit_dataset(
            after,
            "Users",
            lambda d, v=version: replace(d, version=v, metadata=replace(d.metadata, owner="me")),
        )
        assert bool(list(require_new_version_on_change(raised, before))) is told


def test_a_changed_pipeline_needs_a_higher_version_of_its_dataset_only():
    before = graph("operators")
    after = edit_operator(
        before, "Continuously", Aggregate, lambda k: replace(k, specs=k.specs[1:])
    )
    assert [p.entity for p in require_new_version_on_change(after, before)] == ["Continuously"]


def test_metadata_ids_of_operators_and_comments_need_no_new_version():
    before = graph("operators")
    after = replace(
        before,
        operators=tuple(replace(o, id=f"x{o.id}", kind=_renamed(o.kind)) for o in before.operators),
    )
    after = replace(
        after,
        datasets=tuple(
            replace(d, metadata=replace(d.metadata, description="new")) for d in after.datasets
        ),
    )
    assert list(require_new_version_on_change(after, before)) == []


def test_the_source_that_the_clients_mock_adds_is_nobodys_change():
    before = graph("operators")
    orders = before.sources[0]
    hidden = replace(
        orders,
        table=replace(
            orders.table,
            db=Webhook("_internal_fennel_webhook", 0),
            endpoint="_internal_Orders_endpoint",
        ),
    )
    assert (
        list(
            require_new_version_on_change(
                replace(before, sources=(*before.sources, hidden)), before
            )
        )
        == []
    )
    other = replace(hidden, table=replace(orders.table, endpoint="Others"))
    assert [
        p.entity
        for p in require_new_version_on_change(
            replace(before, sources=(*before.sources, other)), before
        )
    ] == ["Orders"]


def _renamed(kind):
    names = {n: f"x{getattr(kind, n)}" for n in ("operand", "left", "right") if hasattr(kind, n)}
    if hasattr(kind, "operands"):
        names["operands"] = tuple(f"x{i}" for i in kind.operands)
    return replace(kind, **names)


def test_changed_extractor_code_needs_a_higher_version_of_the_extractor():
    before = graph("featuresets")

    def recoded(x, version):
        return replace(
            x,
            version=version,
            kind=PyFunc(replace(x.kind.pycode, core_code="def speak(cls, ts): return None")),
        )

    same = edit_extractor(before, PyFunc, lambda x: recoded(x, 3))
    assert [p.code for p in require_new_version_on_change(same, before)] == ["extractor-version"]
    assert (
        list(
            require_new_version_on_change(
                edit_extractor(before, PyFunc, lambda x: recoded(x, 4)), before
            )
        )
        == []
    )


def test_an_incremental_commit_may_not_lose_a_feature_silently():
    before = graph("featuresets")
    after = replace(before, features=before.features[:-1])
    assert [p.text for p in keep_features(after, before)] == [
        "Featureset BasketFeatures is not a superset of the existing featureset"
    ]
    named = replace(after, retired=replace(after.retired, features=(before.features[-1].ref,)))
    assert list(keep_features(named, before)) == []
