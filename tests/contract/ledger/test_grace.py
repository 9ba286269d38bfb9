"""The grace period in memory and in Postgres: the same answers to the same history."""

from __future__ import annotations

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints.commit_plan import asset_id
from fennel_core.ledger.store import Ledger, LedgerTransaction
from fennel_core.vocab.ids import AssetId, Millis, WorkspaceId
from tests.support.toy_commits import toy

SHOP = WorkspaceId("shop")
BLUEPRINTS = toy("orders", "users").topics
NO_WAIT = Millis(0)
KEYS = [b.key for b in BLUEPRINTS]


async def live(ledger: Ledger) -> list[AssetId]:
    """Add a live asset for each topic of two datasets."""

    async def add(tx: LedgerTransaction) -> list[AssetId]:
        number = await tx.bank.next_incarnation()
        ids = [asset_id(SHOP, key, number) for key in KEYS]
        await tx.bank.add(
            [
                Asset(id_, SHOP, number, AssetState.LIVE, blueprint)
                for id_, blueprint in zip(ids, BLUEPRINTS, strict=True)
            ]
        )
        return ids

    return await ledger.run(add)


async def retain(ledger: Ledger, ids: list[AssetId], kept: list[AssetId]) -> None:
    async def work(tx: LedgerTransaction) -> None:
        await tx.bank.set_state(ids, AssetState.RETAINED)
        await tx.retain(SHOP, ids, kept)

    await ledger.run(work)


async def test_retained_assets_are_found_by_key_and_those_released_together_have_one_time(
    ledger: Ledger,
) -> None:
    ids = await live(ledger)
    assert await ledger.run(lambda tx: tx.retained(SHOP, KEYS)) == {}
    await retain(ledger, ids[:2], [])
    found = await ledger.run(lambda tx: tx.retained(SHOP, KEYS))
    assert {key: asset.id for key, asset in found.items()} == dict(
        zip(KEYS[:2], ids[:2], strict=True)
    )
    assert len({asset.since_us for asset in found.values()}) == 1
    assert all(asset.job is None for asset in found.values())
    assert await ledger.run(lambda tx: tx.retained(SHOP, KEYS[2:])) == {}
    assert await ledger.run(lambda tx: tx.retained(WorkspaceId("other"), KEYS)) == {}


async def test_a_retained_content_that_had_other_sources_says_so(ledger: Ledger) -> None:
    ids = await live(ledger)
    await ledger.run(lambda tx: tx.bank.mark_sources_changed(ids[1:2]))
    assert await ledger.run(lambda tx: tx.bank.with_changed_sources(ids)) == {ids[1]}
    await retain(ledger, ids, [])
    found = await ledger.run(lambda tx: tx.retained(SHOP, KEYS))
    assert {asset.id for asset in found.values() if asset.sources_changed} == {ids[1]}


async def test_without_a_grace_period_everything_expires_at_once_but_what_is_kept(
    ledger: Ledger,
) -> None:
    ids = await live(ledger)
    await retain(ledger, ids[:3], ids[:1])
    assert await ledger.run(lambda tx: tx.workspaces_with_expired()) == [SHOP]

    async def expired(*, all_of_them: bool) -> list[AssetId]:
        return await ledger.run(lambda tx: tx.expired(SHOP, all_of_them=all_of_them))

    assert await expired(all_of_them=False) == sorted(ids[1:3])
    assert await expired(all_of_them=True) == sorted(ids[:3])
    await ledger.run(lambda tx: tx.confirm_losses(SHOP))
    assert await expired(all_of_them=False) == sorted(ids[:3])


async def test_what_is_presumed_to_be_empty_expires_only_when_it_was_found_empty(
    ledger: Ledger,
) -> None:
    ids = sorted(await live(ledger))[:3]

    async def work(tx: LedgerTransaction) -> None:
        await tx.bank.set_state(ids, AssetState.RETAINED)
        await tx.retain(SHOP, ids, (), ids)

    async def expired() -> list[AssetId]:
        return await ledger.run(lambda tx: tx.expired(SHOP, all_of_them=False))

    await ledger.run(work)
    assert await expired() == []
    assert await ledger.run(lambda tx: tx.presumed_empty(SHOP, NO_WAIT)) == ids
    assert await ledger.run(lambda tx: tx.presumed_empty(SHOP, Millis(60_000))) == [], "too early"
    assert await ledger.run(lambda tx: tx.workspaces_with_expired()) == [SHOP]
    recent = await ledger.run(lambda tx: tx.released_within(SHOP, Millis(60_000)))
    assert recent == set(ids)
    assert await ledger.run(lambda tx: tx.released_within(SHOP, NO_WAIT)) == frozenset()
    await ledger.run(lambda tx: tx.found_empty(ids[:1]))
    await ledger.run(lambda tx: tx.found_rows(ids[1:2]))
    assert await expired() == ids[:1]
    assert await ledger.run(lambda tx: tx.presumed_empty(SHOP, NO_WAIT)) == ids[2:]
    await ledger.run(lambda tx: tx.confirm_losses(SHOP))
    assert await expired() == ids
    assert await ledger.run(lambda tx: tx.presumed_empty(SHOP, NO_WAIT)) == []


async def test_a_revived_asset_has_no_end(ledger: Ledger) -> None:
    ids = await live(ledger)
    await retain(ledger, ids[:2], [])

    async def revive(tx: LedgerTransaction) -> None:
        await tx.end_grace(ids[:2])
        await tx.bank.set_state(ids[:2], AssetState.LIVE)

    await ledger.run(revive)
    assert await ledger.run(lambda tx: tx.workspaces_with_expired()) == []
    assert await ledger.run(lambda tx: tx.expired(SHOP, all_of_them=True)) == []


async def test_released_assets_are_listed_with_their_times(ledger: Ledger) -> None:
    ids = await live(ledger)
    assert await ledger.run(lambda tx: tx.released()) == []
    await retain(ledger, ids[:3], ids[:1])
    found = await ledger.run(lambda tx: tx.released(SHOP))
    assert [a.id for a in found] == sorted(ids[:3])
    titles = {id_: b.title for id_, b in zip(ids, BLUEPRINTS, strict=True)}
    assert {a.id: (a.title, a.workspace) for a in found} == {
        id_: (titles[id_], SHOP) for id_ in ids[:3]
    }
    assert {a.id: None if a.ends_ms is None else a.ends_ms - a.released_ms for a in found} == {
        id_: None if id_ == ids[0] else 0 for id_ in ids[:3]
    }
    assert await ledger.run(lambda tx: tx.released()) == found
    assert await ledger.run(lambda tx: tx.released(WorkspaceId("other"))) == []
