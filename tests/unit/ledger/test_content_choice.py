"""Which contents of source datasets a commit may share with other branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.ledger import reservation
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
