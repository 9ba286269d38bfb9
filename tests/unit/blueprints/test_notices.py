"""What is accepted without effect is named once, and the client's defaults are not."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints.notices import definition_notices
from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.dtypes import Float
from fennel_core.wire.entities import Expectation, ExpectedOf, Index, IndexSide
from tests.support.commit_graphs import edit, graph


def texts(g: Graph) -> list[str]:
    return [f"{n.code} {n.entity}: {n.text}" for n in definition_notices(g)]


def test_recorded_commits_have_these_notices() -> None:
    assert texts(graph("operators")) == [
        "results-are-exact Continuously.aggregate: dataset `Continuously`: `distinct_cities`, "
        "`median` may be approximate and will be exact",
    ]
    assert texts(graph("connectors")) == []
    assert texts(graph("featuresets")) == [
        "online-index-missing Items: dataset `Items` has no online index; queries of "
        "BasketFeatures.price are refused until it has one"
    ]


def test_expectations_of_a_featureset_are_not_evaluated() -> None:
    g = graph("connectors")
    (suite,) = g.expectations
    featureset = replace(suite, entity="Ride", entity_kind=ExpectedOf.FEATURESET)
    assert texts(replace(g, expectations=(suite, featureset))) == [
        "expectations-not-evaluated Ride: featureset `Ride`: its expectations are recorded and not "
        "evaluated; those of datasets are",
    ]


def test_an_expectation_that_an_earlier_release_accepted_is_named() -> None:
    g = graph("connectors")
    (suite,) = g.expectations
    pattern = Expectation(
        "expect_column_values_to_match_regex", '{"column": "text", "regex": "(?=a)"}'
    )
    old = replace(g, expectations=(replace(suite, expectations=(pattern,)),))
    both = replace(suite, expectations=(*suite.expectations, pattern))
    (notice,) = definition_notices(replace(g, expectations=(both,)), old)
    assert (notice.code, notice.entity) == ("expectation-not-evaluable", suite.entity)
    assert "look-around" in notice.text
    assert definition_notices(g, old) == ()


def test_a_dataset_whose_sources_the_environment_removed_gets_no_rows() -> None:
    g = graph("operators")
    g = replace(g, sources=tuple(s for s in g.sources if s.dataset != "Users"))
    assert [n.entity for n in definition_notices(g) if n.code == "no-rows-arrive"] == ["Users"]


def test_a_duration_of_an_index_is_named() -> None:
    g = graph("operators")
    g = replace(g, indices=(*g.indices, Index("Users", 1, IndexSide.OFFLINE, 60_000_000)))
    (notice,) = [n for n in definition_notices(g) if n.code == "index-duration-not-applied"]
    assert "1m of its offline index" in notice.text


def test_a_feature_with_another_type_is_named() -> None:
    g = graph("featuresets")
    changed = replace(
        g,
        features=edit(
            g.features,
            lambda f: f.ref.fqn == "Request.user",
            lambda f: replace(f, dtype=Float()),
        ),
    )
    (notice,) = [n for n in definition_notices(changed, g) if n.code == "feature-type-changed"]
    assert notice.entity == "Request.user"
    assert len(definition_notices(g, g)) == len(definition_notices(g))
