"""The contract of a bank, for the in-memory and the Postgres implementation."""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.bank.errors import AssetAlreadyAlive
from fennel_core.bank.store import Asset, AssetState, AssetSummary
from fennel_core.blueprints.commit_plan import asset_id
from fennel_core.blueprints.logical import AssetKind, Blueprint
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import Commit, CommitOptions, Ledger, LedgerTransaction
from fennel_core.vocab.ids import MAIN_BRANCH, AssetId, BranchName, CommitId, WorkspaceId
from tests.support.toy_commits import key, toy

SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")
COMMIT, LATER = CommitId("c1"), CommitId("c2")
FEATURE = BranchName("feature")


def assets(
    *words: str,
    workspace: WorkspaceId = SHOP,
    incarnation: int = 1,
    state: AssetState = AssetState.LIVE,
) -> list[Asset]:
    def asset(blueprint: Blueprint) -> Asset:
        return Asset(
            asset_id(workspace, blueprint.key, incarnation),
            workspace,
            incarnation,
            state,
            blueprint,
        )

    return [
        asset(b) for b in toy(*words).blueprints if b.key.kind in (AssetKind.TOPIC, AssetKind.JOB)
    ]


def ids(of: list[Asset]) -> list[AssetId]:
    return sorted(a.id for a in of)


async def with_commits(tx: LedgerTransaction) -> None:
    for id_ in (COMMIT, LATER):
        await tx.add_commit(
            Commit(id_, SHOP, MAIN_BRANCH, CommitState.RECEIVED, id_, CommitOptions(), None), b""
        )


async def test_an_asset_is_read_back_with_an_equal_blueprint(
    ledger: Ledger,
) -> None:
    added = assets("orders", "users")
    await ledger.run(lambda tx: tx.bank.add(added))
    found = await ledger.run(lambda tx: tx.bank.assets([*ids(added), AssetId("unknown")]))
    assert found == sorted(added, key=lambda a: a.id)
    summaries = await ledger.run(lambda tx: tx.bank.summaries(ids(added)))
    assert summaries == [AssetSummary(a.id, a.key, a.state, a.blueprint.title) for a in found]


@pytest.mark.parametrize("state", AssetState)
async def test_only_alive_assets_of_the_same_workspace_are_found_for_sharing(
    ledger: Ledger, state: AssetState
) -> None:
    (topic, job) = assets("orders", state=state)
    await ledger.run(lambda tx: tx.bank.add([topic, job]))
    alive = state in ("pending", "created", "live")
    wanted = [topic.key, job.key, key(AssetKind.TOPIC, "unknown")]
    assert await ledger.run(lambda tx: tx.bank.alive(SHOP, wanted)) == (
        {topic.key: topic.id, job.key: job.id} if alive else {}
    )
    assert await ledger.run(lambda tx: tx.bank.alive(OTHER, wanted)) == {}


async def test_a_second_alive_asset_of_one_identity_is_refused(
    ledger: Ledger,
) -> None:
    first, second = assets("orders", incarnation=1), assets("orders", incarnation=2)
    await ledger.run(lambda tx: tx.bank.add(first))
    with pytest.raises(AssetAlreadyAlive):
        await ledger.run(lambda tx: tx.bank.add(second))
    await ledger.run(lambda tx: tx.bank.set_state(ids(first), AssetState.CONDEMNED))
    await ledger.run(lambda tx: tx.bank.add(second))
    await ledger.run(lambda tx: tx.bank.add(assets("orders", workspace=OTHER)))
    assert await ledger.run(lambda tx: tx.bank.alive(SHOP, [second[0].key])) == {
        second[0].key: second[0].id
    }


async def test_incarnations_never_repeat_even_after_a_failed_transaction(
    ledger: Ledger,
) -> None:
    issued: list[int] = []

    async def fails(tx: LedgerTransaction) -> None:
        issued.append(await tx.bank.next_incarnation())
        raise LookupError

    with pytest.raises(LookupError):
        await ledger.run(fails)
    issued.append(await ledger.run(lambda tx: tx.bank.next_incarnation()))
    assert len(set(issued)) == 2


async def test_reserved_and_referenced_assets_are_held(ledger: Ledger) -> None:
    orders, users, cities = assets("orders"), assets("users"), assets("cities")
    every = ids([*orders, *users, *cities])

    async def setup(tx: LedgerTransaction) -> None:
        await with_commits(tx)
        await tx.bank.add([*orders, *users, *cities])
        await tx.bank.reserve(COMMIT, ids(orders))
        await tx.bank.reserve(COMMIT, ids(orders))
        await tx.bank.add_references(LATER, MAIN_BRANCH, ids(users))
        await tx.bank.add_references(LATER, MAIN_BRANCH, ids(users))

    await ledger.run(setup)
    assert await ledger.run(lambda tx: tx.bank.unheld(every)) == ids(cities)
    assert await ledger.run(lambda tx: tx.bank.unheld(every, ignoring=MAIN_BRANCH)) == ids(
        [*users, *cities]
    )
    assert await ledger.run(lambda tx: tx.bank.reserved(COMMIT)) == ids(orders)
    assert await ledger.run(lambda tx: tx.bank.release_reservations(COMMIT)) == ids(orders)
    assert await ledger.run(lambda tx: tx.bank.release_reservations(COMMIT)) == []
    assert await ledger.run(lambda tx: tx.bank.unheld(every)) == ids([*orders, *cities])


async def test_references_are_counted_per_version_and_branch(ledger: Ledger) -> None:
    orders, users = assets("orders"), assets("users")

    async def setup(tx: LedgerTransaction) -> None:
        await with_commits(tx)
        await tx.bank.add([*orders, *users])
        await tx.bank.add_references(COMMIT, MAIN_BRANCH, ids(orders))
        await tx.bank.add_references(LATER, MAIN_BRANCH, ids([*orders, *users]))
        await tx.bank.add_references(COMMIT, FEATURE, ids(orders))

    await ledger.run(setup)
    both = ids([*orders, *users])
    assert await ledger.run(lambda tx: tx.bank.references(SHOP, MAIN_BRANCH)) == both
    assert await ledger.run(lambda tx: tx.bank.references(SHOP, MAIN_BRANCH, COMMIT)) == ids(orders)
    assert await ledger.run(lambda tx: tx.bank.references(OTHER, MAIN_BRANCH)) == []
    assert await ledger.run(lambda tx: tx.bank.remove_references(SHOP, MAIN_BRANCH, COMMIT)) == ids(
        orders
    )
    assert await ledger.run(lambda tx: tx.bank.references(SHOP, MAIN_BRANCH)) == both
    assert await ledger.run(lambda tx: tx.bank.remove_references(SHOP, MAIN_BRANCH)) == both
    assert await ledger.run(lambda tx: tx.bank.unheld(both)) == ids(users), (
        "the other branch still holds the other assets"
    )


async def test_an_error_rolls_back_the_whole_transaction(ledger: Ledger) -> None:
    added = assets("orders")

    async def fails(tx: LedgerTransaction) -> None:
        await tx.bank.add(added)
        raise LookupError

    with pytest.raises(LookupError):
        await ledger.run(fails)
    assert await ledger.run(lambda tx: tx.bank.summaries(ids(added))) == []


async def test_the_lock_serialises_transactions_of_a_workspace(
    ledger: Ledger,
) -> None:
    inside = 0

    async def work(tx: LedgerTransaction) -> bool:
        nonlocal inside
        open_ = await tx.bank.lock(SHOP)
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.01)  # time in which another transaction could enter
        inside -= 1
        return open_

    assert await asyncio.gather(*(ledger.run(work) for _ in range(4))) == [True] * 4


async def test_the_lock_reports_whether_the_workspace_is_open(
    ledger: Ledger,
) -> None:
    await ledger.run(lambda tx: tx.close_workspace(OTHER))
    found = [
        await ledger.run(lambda tx, w=w: tx.bank.lock(w))
        for w in (SHOP, OTHER, WorkspaceId("unknown"))
    ]
    assert found == [True, False, False]
