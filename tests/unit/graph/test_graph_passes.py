"""Each pass reports its own rule only: recorded commits are broken in one way each.

`REFRESH_GOLDEN=1 pytest tests/unit/graph/test_graph_passes.py` rewrites the texts; read the diff
before committing it.
"""

import os
from dataclasses import replace

import pytest

from fennel_core.graph.entity_graph import Graph, merge_incremental
from fennel_core.graph.passes import INCREMENTAL_RULES, RULES, validate
from fennel_core.graph.passes.capabilities import DEFAULT_EVERY_US, refuse_unserved
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
from fennel_core.vocab.dtypes import Field, Float, Optional, Str
from fennel_core.wire.connectors import Cdc, EvalExpr, Sampling, WebhookEndpoint
from fennel_core.wire.entities import FeatureRef, Index, IndexSide, ListLookup, Lookup, PyFunc
from fennel_core.wire.expr import Literal, Ref
from fennel_core.wire.operators import (
    Aggregate,
    AssignExpr,
    Dedup,
    Drop,
    Emit,
    ExpDecay,
    FilterExpr,
    Tumbling,
    WindowOp,
)
from tests.support.commit_graphs import (
    TESTS,
    edit,
    edit_dataset,
    edit_extractor,
    edit_operator,
    edit_source,
    graph,
    number,
    values,
    without_dataset,
)


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


def key_orders(g: Graph) -> Graph:
    """The left side of the join, which has `within`, gets a key."""

    def keyed(d):
        return replace(d, schema=replace(d.schema, keys=(number("order_id"),), values=rest(d)))

    def rest(d):
        return tuple(f for f in d.schema.values if f.name != "order_id")

    return edit_dataset(g, "Orders", keyed)


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
    ("every connector", refuse_unserved, "connectors", lambda g: g),
    (
        "change feed through a webhook",
        refuse_unserved,
        "operators",
        lambda g: edit_source(g, "Orders", lambda s: replace(s, cdc=Cdc.DEBEZIUM)),
    ),
    (
        "options of sources that are polled",
        refuse_unserved,
        "operators",
        lambda g: edit_source(
            g, "Orders", lambda s: replace(s, every_us=60, cursor="at", timestamp_field="day")
        ),
    ),
    (
        "decay over windows that close",
        refuse_unserved,
        "operators",
        lambda g: edit_operator(
            g,
            "Decaying",
            Aggregate,
            lambda k: replace(
                k, specs=tuple(replace(s, window=Tumbling(3_600_000_000, 0)) for s in k.specs)
            ),
        ),
    ),
    (
        "decay in a windowed groupby",
        refuse_unserved,
        "operators",
        lambda g: edit_operator(
            g,
            "Sessions",
            WindowOp,
            lambda k: replace(k, specs=(ExpDecay("heat", k.window, "amount", 1_000_000),)),
        ),
    ),
    (
        "final sessions",
        refuse_unserved,
        "operators",
        lambda g: edit_operator(g, "Sessions", WindowOp, lambda k: replace(k, emit=Emit.FINAL)),
    ),
    ("within of a keyed left side", refuse_unserved, "operators", key_orders),
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
            g, "Sessions", WindowOp, lambda k: replace(k, specs=(), specs_known=False)
        ),
    ),
    (
        "filter that is not a bool",
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
        "where that is not a bool",
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


def served(g: Graph) -> Graph:
    """Return the graph without the connectors that the platform refuses."""
    return replace(
        g,
        sources=tuple(s for s in g.sources if isinstance(s.table, WebhookEndpoint)),
        sinks=(),
    )


@pytest.mark.parametrize("subject", ["operators", "expressions", "connectors", "featuresets"])
def test_recorded_commits_are_valid_on_an_empty_branch_and_when_repeated(subject):
    g = served(graph(subject))
    assert validate(g, None) == ()
    assert validate(g, g) == ()
    assert validate(merge_incremental(g, g), g, incremental=True) == ()


def test_every_broken_commit_yields_its_golden_problem_text():
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


def test_a_missing_input_is_reported_once_with_the_clients_text():
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


def test_a_missing_lookup_dataset_is_reported_once_with_the_clients_text():
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


def test_every_source_that_is_not_a_webhook_and_every_sink_is_refused():
    g = graph("connectors")
    refused = [p.code for p in refuse_unserved(g, None)]
    others = [s for s in g.sources if not isinstance(s.table, WebhookEndpoint)]
    kinds = {type(s.table) for s in others}
    assert len(kinds) == 10, "the recorded commit has every kind of source"
    assert refused.count("source-not-served") == len(others)
    assert refused.count("sink-not-served") == len(g.sinks) == 4


def test_a_webhook_beside_another_source_does_not_hide_it():
    g = graph("connectors")
    kafka = next(s for s in g.sources if s.table.__class__.__name__ == "KafkaTopic")
    stacked = replace(served(g), sources=(*served(g).sources, kafka))
    assert [(p.code, p.entity) for p in validate(stacked, None)] == [
        ("source-not-served", kafka.dataset)
    ]


def test_defaults_of_the_client_are_accepted():
    g = edit_source(
        graph("operators"),
        "Orders",
        lambda s: replace(s, every_us=DEFAULT_EVERY_US, timestamp_field="at"),
    )
    assert validate(g, None) == ()


def test_each_branch_of_a_pipeline_reports_its_own_mismatch():
    g = edit_operator(
        graph("operators"),
        "Both",
        Dedup,
        lambda k: replace(k, by=(f"no_{type(k.window).__name__}",)),
    )
    texts = [p.text for p in check_operator_schemas(g, None)]
    assert len(texts) == 2
    assert "no_Session" in texts[0]
    assert "no_Tumbling" in texts[1]
