"""Which content a source dataset has when its sources change, and what the plan says about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from fennel_core.blueprints.commit_plan import BankFacts, TopicAmounts, measured_topics, plan_commit
from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.plan_text import render
from fennel_core.blueprints.resolve import resolve_catalog
from fennel_core.blueprints.source_contents import (
    ContentFacts,
    choose_contents,
    continued_with_other_sources,
)
from fennel_core.blueprints.spec import Catalog
from fennel_core.vocab.ids import AssetId, DatasetName, WorkspaceId
from fennel_core.wire.connectors import JsonFormat, Kafka, KafkaTopic, Login, NamedReference
from tests.support.compiler_inputs import schema, sourced, webhook

SHOP = WorkspaceId("shop")
USERS = schema("user", "city:str")
NAME = DatasetName("Users")


def users(*endpoints: str, name: str = "Users", version: int = 1) -> DatasetInput:
    made = sourced(name, USERS, version=version, online=True)
    return replace(made, sources=tuple(map(webhook, endpoints)))


def compiled(*datasets: DatasetInput, **contents: AssetKey) -> Compiled:
    return compile_datasets(datasets, 2, {DatasetName(k): v for k, v in contents.items()})


def plan_of(
    version: Compiled, before: Catalog | None = None, amounts: TopicAmounts | None = None
) -> tuple[str, ...]:
    facts = BankFacts(SHOP, 2, before=before, amounts=amounts or TopicAmounts())
    return render(plan_commit(facts, version).record)


def catalog(version: Compiled) -> Catalog:
    return resolve_catalog(version, SHOP, plan_commit(BankFacts(SHOP, 1), version).ids())


def chosen(
    before: Compiled,
    after: Compiled,
    *,
    shared: bool = False,
    taken: Collection[AssetKey] = (),
) -> dict[DatasetName, AssetKey]:
    had = catalog(before)
    topics = [AssetId(d.topic) for d in had.datasets if shared and d.topic is not None]
    return choose_contents(after, ContentFacts(had, topics, taken))


ONE = compiled(users("a"))
(KEY,) = ONE.source_contents.values()


@pytest.mark.parametrize("endpoints", [("a",), ("a", "b"), ("b",), ()])
def test_a_dataset_keeps_its_content_whatever_its_sources_become(endpoints: tuple[str, ...]):
    assert chosen(ONE, compiled(users(*endpoints))) == {NAME: KEY}


def test_everything_that_is_computed_from_the_dataset_keeps_its_name():
    more = compiled(users("a", "b"), Users=KEY)
    assert [job.key for job in more.jobs] == [job.key for job in ONE.jobs]
    assert {t.key for t in ONE.topics} < {t.key for t in more.topics}


def test_a_shared_content_is_continued_only_with_the_same_sources():
    assert chosen(ONE, compiled(users("a")), shared=True) == {NAME: KEY}
    both = compiled(users("a", "b"))
    assert chosen(ONE, both, shared=True) == both.source_contents != {NAME: KEY}


def test_another_version_or_schema_begins_another_content():
    bumped = compiled(users("a", version=2))
    assert chosen(ONE, bumped) == bumped.source_contents != {NAME: KEY}
    wider = compiled(sourced("Users", schema("user", "city:str age"), source=webhook("a")))
    assert chosen(ONE, wider) == wider.source_contents != {NAME: KEY}


def test_a_content_that_had_other_sources_is_not_begun_again():
    fresh = ContentFacts(taken={KEY})
    (other,) = choose_contents(ONE, fresh).values()
    assert other != KEY
    (third,) = choose_contents(ONE, ContentFacts(taken={KEY, other})).values()
    assert third not in (KEY, other)
    assert chosen(ONE, ONE, taken={KEY}) == {NAME: KEY}, "its own branch goes on with it"


def test_datasets_that_share_a_content_part_when_one_of_them_changes_its_sources():
    before = compiled(users("a"), users("a", name="Copy"))
    assert set(before.source_contents.values()) == {KEY}
    both = {NAME: KEY, DatasetName("Copy"): KEY}
    assert chosen(before, compiled(users("a", "b"), users("a", "b", name="Copy"))) == both
    parted = chosen(before, compiled(users("a", "b"), users("a", name="Copy")))
    assert parted[DatasetName("Copy")] == KEY != parted[NAME]


def test_a_new_dataset_does_not_share_a_content_whose_sources_change_in_the_same_commit():
    found = chosen(ONE, compiled(users("a", "b"), users("a", name="Copy")))
    assert found[NAME] == KEY != found[DatasetName("Copy")]


def test_the_choice_does_not_depend_on_how_the_definitions_were_compiled():
    again = compiled(users("a", "b"), Users=KEY)
    assert chosen(ONE, again) == chosen(ONE, compiled(users("a", "b")))


def test_a_continued_content_with_other_sources_is_found():
    more = compiled(users("a", "b"), Users=KEY)
    assert continued_with_other_sources(catalog(ONE), more) == {KEY}
    assert continued_with_other_sources(catalog(ONE), catalog(more)) == {KEY}
    assert continued_with_other_sources(catalog(ONE), ONE) == set()
    assert continued_with_other_sources(None, ONE) == set()


def test_the_plan_counts_the_requests_that_a_branch_with_rows_of_its_own_leaves_out():
    before, after = catalog(ONE), compiled(users("b"))
    (raw,) = {AssetId(source.raw_topic) for source in before.sources}
    assert raw in measured_topics(BankFacts(SHOP, 2, before=before), after)
    assert raw not in measured_topics(BankFacts(SHOP, 2, before=before), ONE)
    (line,) = [x for x in plan_of(after, before, TopicAmounts({raw: 1_234})) if x.startswith("!")]
    assert line.endswith("`hook/a` are left out (those of at most 1,234 messages)")


def test_the_plan_says_what_becomes_of_the_rows_of_each_source():
    lines = plan_of(compiled(users("b", "c"), Users=KEY), catalog(ONE))
    assert [line for line in lines if line.startswith("!")] == [
        "! dataset `Users`: source `hook/b` is added and brings rows from this commit on; rows "
        "that its endpoint received earlier are not fetched",
        "! dataset `Users`: source `hook/c` is added and brings rows from this commit on; rows "
        "that its endpoint received earlier are not fetched",
        "! dataset `Users`: source `hook/a` is removed and brings no more rows; its rows are kept",
    ]
    (shared,) = [x for x in plan_of(compiled(users("b")), catalog(ONE)) if x.startswith("!")]
    assert shared == (
        "! dataset `Users`: its rows are shared with a branch or commit that keeps the earlier "
        "sources, so it is recomputed from the requests of its present sources; rows of the "
        "removed source `hook/a` are left out (unknown)"
    )
    for version in (ONE, compiled(users("b", version=2))):
        assert not [x for x in plan_of(version, catalog(ONE)) if x.startswith("!")]


def test_from_code_to_its_name_a_source_goes_on_and_is_named_once():
    in_code = Kafka("shop", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))

    def reading(connector: Kafka | NamedReference) -> DatasetInput:
        made = replace(webhook("a"), table=KafkaTopic(connector, "orders", JsonFormat()))
        return replace(users("a"), sources=(made,))

    before = compiled(reading(in_code))
    after = reading(NamedReference("shop", "kafka"))
    [content] = before.source_contents.values()
    assert chosen(before, compiled(after)) == {NAME: content}
    continued = compiled(after, Users=content)
    [raw] = {each.raw_topic for each in before.sources}
    assert {each.raw_topic for each in continued.sources} == {raw}
    lines = [line for line in plan_of(continued, catalog(before)) if "source `shop/orders`" in line]
    assert len(lines) == 1, lines
    assert "is defined otherwise; its rows are kept" in lines[0]
