"""Recorded commits broken in one way each, with the pass that reports it."""

from dataclasses import replace

from fennel_core.graph.passes.capabilities import refuse_unserved
from fennel_core.graph.passes.connectors import one_definition_per_connector
from fennel_core.graph.passes.cycles import forbid_cycles
from fennel_core.graph.passes.dependencies import declare_dependencies
from fennel_core.graph.passes.expectations import check_expectations
from fennel_core.graph.passes.expressions import check_expressions
from fennel_core.graph.passes.extractors import one_extractor_per_feature
from fennel_core.graph.passes.fields import check_fields
from fennel_core.graph.passes.indices import indices_need_keys
from fennel_core.graph.passes.joins import right_sides_are_datasets
from fennel_core.graph.passes.lookups import check_lookups
from fennel_core.graph.passes.names import unique_names
from fennel_core.graph.passes.owners import require_owners
from fennel_core.graph.passes.pipelines import one_pipeline_per_dataset
from fennel_core.graph.passes.references import resolve_references
from fennel_core.graph.passes.schemas import check_operator_schemas
from fennel_core.graph.passes.sinks import check_sinks
from fennel_core.graph.passes.sources import check_sources
from fennel_core.graph.passes.terminals import terminals_are_last
from fennel_core.vocab.dtypes import Field, Float, Optional, Str
from fennel_core.wire.connectors import (
    Cdc,
    EvalExpr,
    KafkaTopic,
    Recreate,
    S3Table,
    Sampling,
)
from fennel_core.wire.entities import (
    Alias,
    Expectation,
    ExpectedOf,
    Index,
    IndexSide,
    ListLookup,
    Lookup,
)
from fennel_core.wire.expr import Literal, Ref
from fennel_core.wire.operators import (
    Aggregate,
    AssignExpr,
    Emit,
    ExpDecay,
    FilterExpr,
    Tumbling,
    WindowOp,
)
from tests.support.commit_graphs import (
    edit,
    edit_dataset,
    edit_extractor,
    edit_operator,
    edit_source,
    number,
    values,
    without_dataset,
)
from tests.support.graph_edits import (
    add_lookup_key,
    after_end,
    call,
    copy_reads_terminal,
    drop_after_aggregate,
    edit_sink,
    expect,
    expect_of_terminal,
    join_with_result,
    key_orders,
    look_up_keyless,
    loop,
    loop_features,
    other_retention,
    retype,
    unown,
)

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
        "extractor twice",
        unique_names,
        "featuresets",
        lambda g: replace(g, extractors=(*g.extractors, g.extractors[0])),
    ),
    (
        "no owner",
        require_owners,
        "featuresets",
        lambda g: replace(g, datasets=unown(g.datasets), featuresets=unown(g.featuresets)),
    ),
    (
        "erase key that is no key",
        check_fields,
        "operators",
        lambda g: edit_dataset(g, "Users", lambda d: replace(d, erase_keys=("country",))),
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
        "read dataset that is no input",
        resolve_references,
        "operators",
        lambda g: replace(
            g,
            pipelines=edit(
                g.pipelines, lambda p: p.dataset == "Both", lambda p: replace(p, inputs=())
            ),
        ),
    ),
    (
        "operator twice",
        resolve_references,
        "operators",
        lambda g: replace(
            g, operators=(*g.operators, next(o for o in g.operators if o.dataset == "Both"))
        ),
    ),
    (
        "operator after the end",
        resolve_references,
        "operators",
        lambda g: replace(g, operators=(*g.operators, after_end(g))),
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
        check_sinks,
        "connectors",
        lambda g: replace(g, sinks=(replace(g.sinks[0], dataset="Events"),)),
    ),
    (
        "options of a Kafka sink",
        check_sinks,
        "connectors",
        edit_sink(KafkaTopic, cdc=Cdc.APPEND, every_us=1, how=Recreate(), since_us=1, version=7),
    ),
    (
        "options of an S3 sink",
        check_sinks,
        "connectors",
        edit_sink(S3Table, cdc=Cdc.APPEND, how=None, renames=(("a", "b"),)),
    ),
    ("connector with other parameters", one_definition_per_connector, "operators", other_retention),
    (
        "endpoint twice",
        one_definition_per_connector,
        "operators",
        lambda g: replace(g, sources=(*g.sources, g.sources[0])),
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
    ("join with a result", right_sides_are_datasets, "operators", join_with_result),
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
        "unknown expectation and column",
        check_expectations,
        "connectors",
        expect(
            Expectation("expect_luck", "{}"),
            Expectation("expect_multicolumn_sum_to_equal", '{"column_list": ["plain", "none"]}'),
            Expectation("expect_column_values_to_match_regex", '{"column": "text", "regex": "("}'),
        ),
    ),
    (
        "expectations of a missing featureset",
        check_expectations,
        "connectors",
        expect(entity="Nowhere", entity_kind=ExpectedOf.FEATURESET),
    ),
    ("expectations of a terminal dataset", check_expectations, "operators", expect_of_terminal),
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
        "undeclared dependency",
        declare_dependencies,
        "featuresets",
        call("def f(cls, ts):\n    return Items.lookup(ts, item=1)"),
    ),
    ("lookup without keys", declare_dependencies, "featuresets", look_up_keyless),
    (
        "two outputs and two inputs",
        one_extractor_per_feature,
        "featuresets",
        lambda g: edit_extractor(
            g, Alias, lambda x: replace(x, inputs=x.inputs * 2, outputs=(*x.outputs, "other"))
        ),
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
