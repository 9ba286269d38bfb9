"""Plans of offline queries: the index they need, what is refused, and what travels to tasks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fennel_core.offline.planned_query import PlannedQuery
from fennel_core.offline.query_steps import steps_of
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.query.errors import LookupRejected, QueryRejected
from fennel_core.query.program import bind
from fennel_core.query.view import View
from fennel_core.wire.entities import PyFunc
from tests.laws.offline.worlds import (
    BY_TIME,
    CURRENT,
    GIVEN,
    PAIRS,
    SPECS,
    TOTALS,
    USERS,
    features,
    job_of,
    planned,
    tables,
)
from tests.laws.offline.worlds import TYPES as FEATURES
from tests.support.featuresets import CODE, request


def indexed(*, online: bool, offline: bool) -> Mapping[Any, Any]:
    """Return the datasets, of which `Users` has these indexes."""
    found = tables()
    users = found[USERS.name]
    view = replace(users.view, online=online, offline=offline)
    return found | {USERS.name: replace(users, view=view)}


def test_a_lookup_needs_an_offline_index_and_no_online_one() -> None:
    plan = planned(["F.v"]).plan
    assert PlannedQuery(plan, indexed(online=False, offline=True)).jobs() == (job_of("Users"),)
    with pytest.raises(LookupRejected, match="define an offline index on dataset : Users"):
        PlannedQuery(plan, indexed(online=True, offline=False)).program()


def view_of(code: str, datasets: Mapping[Any, Any]) -> View:
    """Return a view in which the code of every extractor is `code`."""
    kind = PyFunc(replace(CODE, core_code=code))
    made = [replace(e, kind=kind) if isinstance(e.kind, PyFunc) else e for e in features()]
    every = [USERS, PAIRS, TOTALS, BY_TIME, CURRENT]
    return View(None, None, FeatureIndex.of(request(dict(FEATURES), made, every)), datasets)


def test_datasets_that_code_may_look_up_are_read() -> None:
    found = PlannedQuery.of(view_of("", tables()), (GIVEN, ("F.pair",)))
    assert set(found.tables) == {USERS.name, PAIRS.name}
    assert set(found.jobs()) == {job_of("Users"), job_of("Pairs")}


def test_a_dataset_that_code_names_needs_an_offline_index() -> None:
    datasets, asked = indexed(online=True, offline=False), (GIVEN, ("F.pair",))
    named = view_of("def f(cls, ts, k, n):\n    return Users.lookup(ts, k=k)", datasets)
    with pytest.raises(LookupRejected, match="define an offline index on dataset : Users"):
        PlannedQuery.of(named, asked)
    # Code may declare what it does not use.
    assert PlannedQuery.of(view_of("", datasets), asked).jobs() == (job_of("Pairs"),)


def test_a_lookup_as_of_now_still_needs_an_online_index() -> None:
    plan = planned(["F.v"]).plan
    bind(plan, indexed(online=True, offline=False))
    with pytest.raises(LookupRejected, match="define an online index on dataset : Users"):
        bind(plan, indexed(online=False, offline=True))


def test_only_datasets_that_are_looked_up_travel() -> None:
    every = [USERS, PAIRS, TOTALS, BY_TIME, CURRENT]
    index = FeatureIndex.of(request(dict(FEATURES), features(), every))
    view = View(None, None, index, tables())
    found = PlannedQuery.of(view, (GIVEN, ("F.v", "F.plus")))
    assert set(found.tables) == {USERS.name}


def test_a_feature_that_no_extractor_computes_is_refused_by_name() -> None:
    index = FeatureIndex.of(request(dict(FEATURES), [], []))
    with pytest.raises(QueryRejected, match=r"F\.v"):
        PlannedQuery.of(View(None, None, index, tables()), (GIVEN, ("F.v",)))


def test_a_query_is_the_same_program_after_its_way_to_a_task() -> None:
    query = planned(["F.deep", "F.plus", "F.vs", "F.sum", "F.pairs"])
    there = pickle.loads(pickle.dumps(query))  # noqa: S301  # bytes of this test
    specs = {job_of(name): spec for name, spec in SPECS.items()}
    here_steps, there_steps = (steps_of(each.program(), specs) for each in (query, there))
    assert [type(step) for step in here_steps] == [type(step) for step in there_steps]
    lookups, others = (
        [lookup for level in each.program().levels for lookup in level.lookups]
        for each in (query, there)
    )
    assert lookups == others, "registers have the same numbers"
