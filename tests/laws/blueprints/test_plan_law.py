"""The plan against sets: for any bank and any wishes it creates what is missing, keeps and adopts
what is alive, lets go of the rest.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    CommitPlan,
    asset_id,
    diff,
    plan_commit,
    recomputed,
)
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.vocab.ids import WorkspaceId
from tests.support.toy_commits import toy

WORDS = ("orders", "users", "cities", "totals")
words = st.sets(st.sampled_from(WORDS))
SHOP = WorkspaceId("shop")


def keys(of: set[str]) -> set[AssetKey]:
    return {b.key for b in toy(*sorted(of)).blueprints} if of else set()


def facts(alive: set[str], mine: set[str], others: set[str]) -> BankFacts:
    """`mine` and `others` are held, and so alive; `alive` besides them is on its way."""
    everything = keys(alive | mine | others)
    return BankFacts(
        workspace=SHOP,
        incarnation=7,
        alive={key: asset_id(SHOP, key, 1) for key in everything},
        mine={asset_id(SHOP, key, 1): key.identity for key in keys(mine)},
        shared=frozenset(asset_id(SHOP, key, 1) for key in keys(mine) & keys(others)),
    )


def made(plan_: CommitPlan) -> dict[str, set[AssetKey]]:
    return {
        name: {p.blueprint.key for p in getattr(plan_, name)}
        for name in ("create", "keep", "adopt")
    }


@given(words, words, words, words)
def test_a_plan_is_set_arithmetic(
    alive: set[str], mine: set[str], others: set[str], wanted: set[str]
) -> None:
    compiled = toy(*sorted(wanted))
    found = plan_commit(facts(alive, mine, others), compiled.blueprints)
    want, have, own = {b.key for b in compiled.blueprints}, keys(alive | mine | others), keys(mine)
    assert made(found) == {"create": want - have, "keep": want & own, "adopt": (want & have) - own}
    assert {id_ for id_, _ in found.release} == {asset_id(SHOP, key, 1) for key in own - want}
    assert {id_ for id_, _ in found.destroy} == {
        asset_id(SHOP, key, 1) for key in own - want - keys(others)
    }
    assert found.ids() == {key: asset_id(SHOP, key, 1 if key in have else 7) for key in want}


@given(words, words)
def test_a_plan_that_was_carried_out_leaves_nothing_to_plan(
    mine: set[str], wanted: set[str]
) -> None:
    first = plan_commit(facts(set(), mine, set()), toy(*sorted(wanted)).blueprints)
    ids = first.ids()
    after = BankFacts(SHOP, 8, ids, dict.fromkeys(ids.values(), ""), frozenset())
    assert plan_commit(after, toy(*sorted(wanted)).blueprints).changes_nothing


@given(words, words, words, words)
def test_the_diff_counts_every_asset(
    alive: set[str], mine: set[str], others: set[str], wanted: set[str]
) -> None:
    found = plan_commit(facts(alive, mine, others), toy(*sorted(wanted)).blueprints)
    *lines, last = diff(found)
    assert last == (
        f"assets: {len(found.create)} created, {len(found.keep)} kept, {len(found.adopt)} adopted, "
        f"{len(found.release)} released, {len(found.destroy)} destroyed"
    )
    assert len(set(lines)) == len(lines)
    assert all(line[:2] in ("+ ", "~ ", "- ") for line in lines)


@given(words, words)
def test_a_job_over_a_topic_that_exists_is_a_recomputation_and_one_over_new_topics_is_not(
    mine: set[str], wanted: set[str]
) -> None:
    def without_jobs(compiled: Compiled) -> BankFacts:
        topics = {t.key: asset_id(SHOP, t.key, 1) for t in compiled.topics}
        return BankFacts(SHOP, 7, topics, dict.fromkeys(topics.values(), ""), frozenset())

    compiled = toy(*sorted(wanted))
    again = recomputed(plan_commit(without_jobs(toy(*sorted(mine))), compiled.blueprints), compiled)
    assert set(again) == {f"{word}: table" for word in mine & wanted}
