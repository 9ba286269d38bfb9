"""The plan of a commit against set operations.

For any bank and any wanted assets it creates the missing ones, keeps or adopts the alive ones and
releases the rest.
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
    """Return facts: `mine` and `others` are held, so alive; `alive` is alive without references."""
    everything = keys(alive | mine | others)
    return BankFacts(
        workspace=SHOP,
        incarnation=7,
        alive={key: asset_id(SHOP, key, 1) for key in everything},
        mine={asset_id(SHOP, key, 1): key.identity for key in keys(mine)},
        shared=frozenset(asset_id(SHOP, key, 1) for key in keys(mine) & keys(others)),
    )


def by_action(plan: CommitPlan) -> dict[str, set[AssetKey]]:
    return {
        name: {p.blueprint.key for p in getattr(plan, name)} for name in ("create", "keep", "adopt")
    }


@given(words, words, words, words)
def test_a_plan_compares_sets_of_assets(
    alive: set[str], mine: set[str], others: set[str], wanted: set[str]
) -> None:
    compiled = toy(*sorted(wanted))
    found = plan_commit(facts(alive, mine, others), compiled.blueprints)
    want, have, own = {b.key for b in compiled.blueprints}, keys(alive | mine | others), keys(mine)
    assert by_action(found) == {
        "create": want - have,
        "keep": want & own,
        "adopt": (want & have) - own,
    }
    assert {id_ for id_, _ in found.release} == {asset_id(SHOP, key, 1) for key in own - want}
    assert {id_ for id_, _ in found.destroy} == {
        asset_id(SHOP, key, 1) for key in own - want - keys(others)
    }
    assert found.ids() == {key: asset_id(SHOP, key, 1 if key in have else 7) for key in want}


@given(words, words)
def test_planning_again_after_the_commit_changes_nothing(mine: set[str], wanted: set[str]) -> None:
    first = plan_commit(facts(set(), mine, set()), toy(*sorted(wanted)).blueprints)
    ids = first.ids()
    after = BankFacts(SHOP, 8, ids, dict.fromkeys(ids.values(), ""), frozenset())
    again = plan_commit(after, toy(*sorted(wanted)).blueprints)
    assert (again.create, again.adopt, again.release) == ((), (), ())


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
def test_only_a_new_job_over_an_existing_topic_is_a_recomputation(
    mine: set[str], wanted: set[str]
) -> None:
    def without_jobs(compiled: Compiled) -> BankFacts:
        topics = {t.key: asset_id(SHOP, t.key, 1) for t in compiled.topics}
        return BankFacts(SHOP, 7, topics, dict.fromkeys(topics.values(), ""), frozenset())

    compiled = toy(*sorted(wanted))
    again = recomputed(plan_commit(without_jobs(toy(*sorted(mine))), compiled.blueprints), compiled)
    assert set(again) == {f"{word}: table" for word in mine & wanted}
