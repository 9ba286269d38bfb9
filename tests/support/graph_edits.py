"""Edits that break one entity of a recorded commit."""

from dataclasses import replace

from fennel_core.graph.entity_graph import Graph
from fennel_core.wire.entities import (
    Expectation,
    FeatureRef,
    Lookup,
    PyFunc,
)
from fennel_core.wire.operators import (
    Aggregate,
    Drop,
    Join,
)
from tests.support.commit_graphs import (
    edit,
    edit_dataset,
    edit_extractor,
    edit_operator,
    edit_source,
    graph,
    number,
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


def after_end(g: Graph):
    root = next(o for o in g.operators if o.dataset == "Both" and o.is_root)
    return replace(root, id="later", is_root=False, kind=Drop(root.id, ()))


def unown(items: tuple) -> tuple:
    first = replace(items[0], metadata=replace(items[0].metadata, owner=""))
    return (first, *items[1:])


def expect(*expectations: Expectation, **changes):
    """The recorded suite with other expectations or another owner."""

    def change(g: Graph) -> Graph:
        (suite,) = g.expectations
        return replace(
            g,
            expectations=(
                replace(suite, expectations=expectations or suite.expectations, **changes),
            ),
        )

    return change


def expect_of_terminal(g: Graph) -> Graph:
    (suite,) = graph("connectors").expectations
    return replace(g, expectations=(replace(suite, entity="Decaying", expectations=()),))


def edit_sink(kind: type, **changes):
    def change(g: Graph) -> Graph:
        return replace(
            g,
            sinks=edit(
                g.sinks, lambda s: isinstance(s.table, kind), lambda s: replace(s, **changes)
            ),
        )

    return change


def join_with_result(g: Graph) -> Graph:
    return edit_operator(g, "Enriched", Join, lambda k: replace(k, right=k.left))


def other_retention(g: Graph) -> Graph:
    def longer(s):
        return replace(s, table=replace(s.table, db=replace(s.table.db, retention_us=1)))

    return edit_source(g, "Users", longer)


def call(code: str):
    """The extractor in Python gets another text."""

    def change(g: Graph) -> Graph:
        def edited(x):
            pycode = replace(x.kind.pycode, core_code=code)
            return replace(x, kind=replace(x.kind, pycode=pycode), datasets=())

        return edit_extractor(g, PyFunc, edited)

    return change


def look_up_keyless(g: Graph) -> Graph:
    g = edit_dataset(g, "Items", lambda d: replace(d, schema=replace(d.schema, keys=())))
    g = call("def f(cls, ts):\n    return Items.lookup(ts)")(g)
    return edit_extractor(g, PyFunc, lambda x: replace(x, datasets=("Items",)))
