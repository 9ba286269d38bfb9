"""Changed definitions need a higher version, and an incremental commit keeps features."""

from dataclasses import replace

import pytest

from fennel_core.graph.passes.supersets import keep_features
from fennel_core.graph.passes.versions import require_new_version_on_change
from fennel_core.wire.connectors import Source
from fennel_core.wire.entities import PyFunc
from fennel_core.wire.operators import Aggregate
from tests.support.commit_graphs import (
    edit_dataset,
    edit_extractor,
    edit_operator,
    edit_source,
    graph,
    number,
    values,
)

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
    for version, reported in ((2, False), (1, True), (0, True)):
        raised = edit_dataset(
            after,
            "Users",
            lambda d, v=version: replace(d, version=v, metadata=replace(d.metadata, owner="me")),
        )
        assert bool(list(require_new_version_on_change(raised, before))) is reported


def test_a_changed_pipeline_needs_a_higher_version_of_its_dataset_only():
    before = graph("operators")
    after = edit_operator(
        before, "Continuously", Aggregate, lambda k: replace(k, specs=k.specs[1:])
    )
    assert [p.entity for p in require_new_version_on_change(after, before)] == ["Continuously"]


def test_changed_metadata_and_operator_ids_need_no_new_version():
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


def test_a_source_may_be_added_or_removed_and_needs_a_new_version_to_be_changed():
    """The client's mock adds a source of its own to every dataset that it processes."""
    before = graph("operators")
    orders = before.sources[0]
    other = replace(orders, table=replace(orders.table, endpoint="Others"))

    def refused(*sources: Source) -> list[str]:
        after = replace(before, sources=(*sources, *before.sources[1:]))
        return [p.entity for p in require_new_version_on_change(after, before)]

    assert refused(orders, other) == refused(other) == refused() == []
    later = replace(orders, disorder_us=orders.disorder_us + 1)
    assert refused(later) == refused(later, other) == ["Orders"]
    assert refused(replace(orders, every_us=5)) == []


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
    named = replace(after, deleted=replace(after.deleted, features=(before.features[-1].ref,)))
    assert list(keep_features(named, before)) == []
