"""Which contents of source datasets a commit may share with other branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.ledger import creation, reservation, switching
from fennel_core.ledger.branches import delete_branch
from fennel_core.ledger.errors import CommitConflict
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import Branch, Commit
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId, DatasetName, WorkspaceId
from tests.support.compiler_inputs import schema, sourced, webhook
from tests.support.ledger_world import World

SHOP = WorkspaceId("shop")
OTHER = BranchName("other")
USERS = replace(
    sourced("Users", schema("user", "city:str"), version=1, online=True), sources=(webhook("a"),)
)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.open()
    await made.commit("first", compile_datasets([USERS], 2))
    await made.ledger.run(lambda tx: tx.add_branch(Branch(SHOP, OTHER, None, None)))
    return made


async def reserved_on_another_branch(world: World) -> object:
    id_ = await world.receive("third", OTHER)
    compiled = compile_datasets([USERS], 2)
    return await reservation.reserve(world.context(), id_, compiled, b"merged", base=None)


async def test_branches_with_the_same_sources_share_a_content(world: World) -> None:
    assert isinstance(await reserved_on_another_branch(world), Commit)


async def test_a_content_that_is_only_read_is_not_shared(world: World) -> None:
    """While the next version of its branch is warming, ingest writes no rows to it."""
    second = await world.receive("second")
    warming = Branch(SHOP, MAIN_BRANCH, second, CommitId("first"))
    await world.ledger.run(lambda tx: tx.update_branch(warming))
    outcome = await reserved_on_another_branch(world)
    assert isinstance(outcome, reservation.ContentsMoved)
    own = compile_datasets([USERS], 2).source_contents
    assert outcome.source_contents[DatasetName("Users")] != own[DatasetName("Users")]


ORDERS = replace(
    sourced("Orders", schema("order", "price"), version=1, online=True), sources=(webhook("a"),)
)
"""Keeps the endpoint in use after `Users` is dropped."""


async def between_t1_and_t2_of_another_branch(world: World) -> CommitId:
    """Run T1 of a commit that shares `Users` of the main branch, and create its assets."""
    assert isinstance(await reserved_on_another_branch(world), Commit)
    await creation.create_assets(world.context(), CommitId("third"))
    return CommitId("third")


async def require_conflict(world: World, id_: CommitId) -> None:
    with pytest.raises(CommitConflict) as refused:
        await switching.switch(world.context(), id_)
    assert "`Users`" in refused.value.text
    row = await world.ledger.run(lambda tx: tx.commit(id_))
    assert row is not None
    assert row.state is CommitState.UNDOING


async def test_a_content_that_was_dropped_since_t1_is_not_shared(world: World) -> None:
    """Requests between the two commits were not written to its topic."""
    third = await between_t1_and_t2_of_another_branch(world)
    await world.commit("second", compile_datasets([ORDERS], 2))
    await require_conflict(world, third)


async def test_a_content_whose_branch_was_deleted_since_t1_is_not_shared(world: World) -> None:
    gone = BranchName("gone")
    fresh = compile_datasets([replace(USERS, sources=(webhook("b"),))], 2)
    await world.ledger.run(lambda tx: tx.add_branch(Branch(SHOP, gone, None, None)))
    await world.commit("second", fresh, gone)
    id_ = await world.receive("third", OTHER)
    outcome = await reservation.reserve(world.context(), id_, fresh, b"merged", base=None)
    assert isinstance(outcome, Commit)
    await creation.create_assets(world.context(), id_)
    await delete_branch(world.context(), SHOP, gone)
    await require_conflict(world, id_)


async def test_a_commit_that_kept_a_dropped_content_does_not_pass_it_on(world: World) -> None:
    """A third branch that shares it because of the reservation of a commit is refused, too."""
    third = await between_t1_and_t2_of_another_branch(world)
    await world.commit("second", compile_datasets([ORDERS], 2))
    name = BranchName("late")
    await world.ledger.run(lambda tx: tx.add_branch(Branch(SHOP, name, None, None)))
    late = await world.receive("late", name)
    compiled = compile_datasets([USERS], 2)
    outcome = await reservation.reserve(world.context(), late, compiled, b"merged", base=None)
    assert isinstance(outcome, Commit)
    await creation.create_assets(world.context(), late)
    await require_conflict(world, late)
    await require_conflict(world, third)


async def test_a_content_that_is_still_fed_is_shared_at_t2(world: World) -> None:
    third = await between_t1_and_t2_of_another_branch(world)
    await world.commit("second", compile_datasets([USERS, ORDERS], 2))
    assert (await switching.switch(world.context(), third)).state is CommitState.WARMING


async def test_commits_that_create_a_content_together_share_it(world: World) -> None:
    fresh = compile_datasets([replace(USERS, sources=(webhook("b"),))], 2)
    await world.ledger.run(lambda tx: tx.add_branch(Branch(SHOP, BranchName("b"), None, None)))
    for id_, branch in (("fourth", OTHER), ("fifth", BranchName("b"))):
        await world.receive(id_, branch)
        outcome = await reservation.reserve(
            world.context(), CommitId(id_), fresh, b"merged", base=None
        )
        assert isinstance(outcome, Commit)
        await creation.create_assets(world.context(), CommitId(id_))
    for id_ in ("fourth", "fifth"):
        row = await switching.switch(world.context(), CommitId(id_))
        assert row.state is CommitState.WARMING
