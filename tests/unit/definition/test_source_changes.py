"""A commit that adds or removes a source keeps the rows of its dataset and says so; branches that
share rows never see those of a source that they do not have.
"""

from __future__ import annotations

import pytest

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.definition.commit_report import CommitReport
from fennel_core.ledger import branches, creation
from fennel_core.ledger.errors import CommitConflict
from fennel_core.ledger.store import Commit
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId
from tests.sim.commit import definitions
from tests.support.definition_world import CommitServerWorld, request
from tests.support.ledger_world import SHOP

DEV, FRESH = BranchName("dev"), BranchName("fresh")


def body(*endpoints: str) -> bytes:
    """Return a commit of a dataset with these endpoints, and of a dataset derived from it."""
    users = definitions.source("Users")
    fed = definitions.Definition("Users", 1, users.fields, endpoints=endpoints)
    return definitions.request([fed, definitions.derived("Copy", users)])


async def commit(
    server: CommitServerWorld, *endpoints: str, branch: BranchName = MAIN_BRANCH
) -> CommitReport:
    return await server.commits.commit(request(body(*endpoints), branch))


def catalog(server: CommitServerWorld, branch: BranchName = MAIN_BRANCH) -> Catalog:
    state = server.world.ledger.state
    target = state.branch_rows[SHOP, branch].target
    assert target is not None
    return stored_names.loads(state.blobs[target, "catalog"], Catalog)


def topic(server: CommitServerWorld, branch: BranchName = MAIN_BRANCH) -> str:
    (found,) = [d.topic for d in catalog(server, branch).datasets if d.name == "Users"]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("endpoints", "code"), [(("a", "b"), "source-added"), ((), "source-removed")]
)
async def test_the_dataset_and_what_is_computed_from_it_are_kept(
    endpoints: tuple[str, ...], code: str
) -> None:
    server = await CommitServerWorld.open()
    await commit(server, "a")
    jobs, kept = catalog(server).jobs, topic(server)
    preview = await server.steps.preview(request(body(*endpoints)))
    report = await commit(server, *endpoints)
    assert report.lines == preview.lines
    assert report.plan is not None
    codes = [notice.code for notice in report.plan.notices]
    assert [each for each in codes if each.startswith("source-")] == [code]
    assert topic(server) == kept
    assert catalog(server).jobs == jobs
    assert kept in server.world.topics.partition_counts


async def test_no_backfill_is_needed_to_add_a_source() -> None:
    server = await CommitServerWorld.open()
    await commit(server, "a")
    await server.commits.commit(request(body("a", "b"), backfill=False))
    assert {s.endpoint for s in catalog(server).sources} == {"a", "b"}


async def test_a_clone_shares_rows_until_one_branch_changes_its_sources() -> None:
    server = await CommitServerWorld.open()
    await commit(server, "a")
    await commit(server, "a", "b")
    await branches.clone_branch(server.steps.context, SHOP, DEV, MAIN_BRANCH)
    await commit(server, "a", "b", branch=DEV)
    assert topic(server, DEV) == topic(server)
    report = await commit(server, "a", branch=DEV)
    assert report.plan is not None
    assert [notice.code for notice in report.plan.notices] == ["source-rows-not-shared"]
    assert topic(server, DEV) != topic(server)
    assert any("recompute" in job.spec.title for job in server.world.ledger.state.jobs.values())


async def test_a_new_branch_does_not_share_rows_of_a_source_that_it_does_not_have() -> None:
    server = await CommitServerWorld.open()
    await commit(server, "a")
    await branches.init_branch(server.steps.context, SHOP, DEV)
    await commit(server, "a", branch=DEV)
    assert topic(server, DEV) == topic(server), "nothing has changed, so the rows are shared"
    await branches.delete_branch(server.steps.context, SHOP, DEV)
    await commit(server, "a", "b")
    for branch in (DEV, FRESH):
        await branches.init_branch(server.steps.context, SHOP, branch)
        await commit(server, "a", branch=branch)
    assert topic(server, DEV) == topic(server, FRESH) != topic(server)


async def test_a_commit_fails_if_its_branch_is_cloned_while_it_changes_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await CommitServerWorld.open()
    await commit(server, "a")
    create = creation.create_assets

    async def clone_and_create(context: object, id_: CommitId) -> Commit:
        await branches.clone_branch(server.steps.context, SHOP, DEV, MAIN_BRANCH)
        return await create(server.steps.context, id_)

    monkeypatch.setattr("fennel_core.definition.commit_steps.create_assets", clone_and_create)
    with pytest.raises(ApiError, match=r"it was cloned.*`Users`") as conflict:
        await commit(server, "a", "b")
    assert conflict.value.code == CommitConflict.CODE
    monkeypatch.undo()
    assert topic(server) == topic(server, DEV)
    await commit(server, "a", "b")
    assert topic(server) != topic(server, DEV)
