"""The plan of a commit against set operations.

For any bank and any wanted assets it creates the missing ones, keeps or adopts the alive ones and
releases the rest.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    CommitPlan,
    asset_id,
    plan_commit,
    recomputed,
)
from fennel_core.blueprints.logical import AssetKey, Blueprint, Compiled
from fennel_core.blueprints.plan_entries import (
    Notice,
    PlanAction,
    decode_record,
    encode_record,
)
from fennel_core.blueprints.plan_text import render
from fennel_core.vocab.ids import AssetId, WorkspaceId
from tests.support.toy_commits import toy

WORDS = ("orders", "users", "cities", "totals")
words = st.sets(st.sampled_from(WORDS))
SHOP = WorkspaceId("shop")


def keys(of: set[str]) -> set[AssetKey]:
    return {b.key for b in toy(*sorted(of)).blueprints} if of else set()


def blueprints(of: set[str]) -> dict[AssetId, Blueprint]:
    return {asset_id(SHOP, b.key, 1): b for b in toy(*sorted(of)).blueprints} if of else {}


def facts(alive: set[str], mine: set[str], others: set[str], wanted: set[str]) -> BankFacts:
    """Return facts: `mine` and `others` are held, so alive; `alive` is alive without references."""
    everything = keys(alive | mine | others)
    kept = keys(wanted) if wanted else {b.key for b in toy().blueprints}
    own = blueprints(mine)
    return BankFacts(
        workspace=SHOP,
        incarnation=7,
        alive={key: asset_id(SHOP, key, 1) for key in everything},
        mine=frozenset(own),
        leaving={id_: b for id_, b in own.items() if b.key not in kept},
        shared=frozenset(asset_id(SHOP, key, 1) for key in keys(mine) & keys(others)),
    )


def by_action(plan: CommitPlan) -> dict[PlanAction, set[AssetId]]:
    return {action: {e.asset for e in plan.entries if e.action is action} for action in PlanAction}


def ids(keys: set[AssetKey], incarnation: int = 1) -> set[AssetId]:
    return {asset_id(SHOP, key, incarnation) for key in keys}


@given(words, words, words, words)
def test_a_plan_compares_sets_of_assets(
    alive: set[str], mine: set[str], others: set[str], wanted: set[str]
) -> None:
    compiled = toy(*sorted(wanted))
    found = plan_commit(facts(alive, mine, others, wanted), compiled)
    want, have, own = {b.key for b in compiled.blueprints}, keys(alive | mine | others), keys(mine)
    assert by_action(found) == {
        PlanAction.CREATE: ids(want - have, 7),
        PlanAction.KEEP: ids(want & own),
        PlanAction.ADOPT: ids((want & have) - own),
        PlanAction.RELEASE: ids((own - want) & keys(others)),
        PlanAction.DESTROY: ids(own - want - keys(others)),
        PlanAction.RETAIN: set(),
        PlanAction.REVIVE: set(),
    }
    assert {p.id for p in found.create} == ids(want - have, 7)
    assert found.ids() == {key: asset_id(SHOP, key, 1 if key in have else 7) for key in want}


@given(words, words)
def test_planning_again_after_the_commit_changes_nothing(mine: set[str], wanted: set[str]) -> None:
    first = plan_commit(facts(set(), mine, set(), wanted), toy(*sorted(wanted)))
    names = first.ids()
    after = BankFacts(SHOP, 8, names, frozenset(names.values()))
    again = plan_commit(after, toy(*sorted(wanted)))
    assert {entry.action for entry in again.entries} == {PlanAction.KEEP}


@given(words, words, words, words)
def test_the_text_of_a_plan_counts_every_asset_and_gives_a_reason_per_line(
    alive: set[str], mine: set[str], others: set[str], wanted: set[str]
) -> None:
    found = plan_commit(facts(alive, mine, others, wanted), toy(*sorted(wanted)))
    *lines, last = render(found.record)
    count = {action: len(assets) for action, assets in by_action(found).items()}
    destroyed = count[PlanAction.DESTROY]
    assert last == (
        f"assets: {count[PlanAction.CREATE]} created, {count[PlanAction.KEEP]} kept, "
        f"{count[PlanAction.ADOPT]} adopted, {count[PlanAction.RELEASE] + destroyed} released, "
        f"{destroyed} destroyed"
    )
    assert all(entry.reason for entry in found.entries)
    assert len(set(lines)) == len(lines)
    assert all(line[:2] in ("+ ", "~ ", "- ") for line in lines)


@given(words, words, words)
def test_with_a_grace_period_nothing_is_destroyed(
    mine: set[str], others: set[str], wanted: set[str]
) -> None:
    compiled, known = toy(*sorted(wanted)), facts(set(), mine, others, wanted)
    at_once = by_action(plan_commit(known, compiled))
    later = by_action(plan_commit(replace(known, grace_ms=5_000), compiled))
    assert later[PlanAction.RETAIN] == at_once[PlanAction.DESTROY]
    assert not later[PlanAction.DESTROY]


@given(words, words)
def test_only_a_new_job_over_an_existing_topic_is_a_recomputation(
    mine: set[str], wanted: set[str]
) -> None:
    def without_jobs(compiled: Compiled) -> BankFacts:
        topics = {t.key: asset_id(SHOP, t.key, 1) for t in compiled.topics}
        return BankFacts(SHOP, 7, topics, frozenset(topics.values()))

    compiled = toy(*sorted(wanted))
    again = recomputed(plan_commit(without_jobs(toy(*sorted(mine))), compiled), compiled)
    assert set(again) == {f"{word}: table" for word in mine & wanted}


@given(words, words, words)
def test_a_stored_plan_is_read_as_it_was_written(
    mine: set[str], others: set[str], wanted: set[str]
) -> None:
    record = plan_commit(facts(set(), mine, others, wanted), toy(*sorted(wanted))).record
    record = replace(record, notices=(Notice("kept-longer", "Orders", "rows are kept longer"),))
    assert decode_record(encode_record(record)) == record
