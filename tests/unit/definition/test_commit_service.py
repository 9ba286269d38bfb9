"""A commit as its client sees it: one call, one answer, whatever the orchestrator does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from fennel_core.connections.errors import ConnectionsError
from fennel_core.definition.lineage import BranchVersion
from fennel_core.definition.merged_request import assemble_request
from fennel_core.graph.entity_graph import build_graph, merge_incremental
from fennel_core.ledger.commit_protocol import create_assets, switch
from fennel_core.ledger.context import LedgerTimings
from fennel_core.ledger.reconcile import reconcile
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId, Millis
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.gen import services_pb2
from tests.support.definition_world import Office, changed, recorded, request
from tests.support.ledger_world import SHOP, World

OPERATORS, FEATURES = recorded("operators"), recorded("featuresets")


def renamed(message: services_pb2.SyncRequest) -> None:
    message.message = "the same again"


async def serving(world: World, branch: BranchName = MAIN_BRANCH) -> BranchVersion:
    commit = world.ledger.state.branch_rows[SHOP, branch].serving
    assert commit is not None
    merged, catalog = (
        await world.ledger.run(lambda tx: tx.merged(commit)),
        await world.ledger.run(lambda tx: tx.catalog(commit)),
    )
    assert merged is not None
    assert catalog is not None
    return BranchVersion.decode(merged, catalog)


async def test_a_commit_answers_with_its_plan_once_reads_have_moved() -> None:
    office = await Office.open()
    lines = await office.flow.commit(request(FEATURES))
    assert "+ create job of Profiles: table" in lines
    assert lines[-1].startswith("assets: ")
    version = await serving(office.world)
    assert {d.name for d in version.catalog.datasets} == {"Profiles", "Items"}
    assert all(
        topic in office.world.topics.partition_counts
        for d in version.catalog.datasets
        if (topic := d.topic)
    )
    await office.world.settle()
    office.world.check()


async def test_the_same_commit_twice_is_one_commit_at_once_and_later() -> None:
    office = await Office.open()
    nothing = ("nothing to do: the branch has these definitions since commit `c1`",)
    plan = await office.steps.preview(request(FEATURES))
    answers = await asyncio.gather(*(office.flow.commit(request(FEATURES)) for _ in range(3)))
    assert plan in answers
    assert set(answers) <= {plan, nothing}, (
        "whoever came while it was under way waited for it, whoever came later had nothing to do"
    )
    assert await office.flow.commit(request(FEATURES)) == nothing
    assert len(office.states) == 1


async def test_going_back_to_an_earlier_definition_is_a_commit_of_its_own() -> None:
    office = await Office.open()
    for body in (FEATURES, OPERATORS, FEATURES):
        await office.flow.commit(request(body))
    assert len(office.states) == 3
    assert {d.name for d in (await serving(office.world)).catalog.datasets} == {"Profiles", "Items"}
    await office.world.settle()
    office.world.check()


async def test_a_commit_that_changes_nothing_creates_nothing() -> None:
    office = await Office.open()
    await office.flow.commit(request(FEATURES))
    (only,) = await office.flow.commit(request(changed(FEATURES, renamed)))
    assert only.startswith("assets: 0 created, ")
    assert only.endswith("0 adopted, 0 released, 0 destroyed")


def without_profiles(message: services_pb2.SyncRequest) -> None:
    kept = [d for d in message.datasets if d.name != "Profiles"]
    del message.datasets[:]
    message.datasets.extend(kept)


async def test_every_problem_is_told_at_once_and_nothing_is_stored() -> None:
    office = await Office.open()
    with pytest.raises(ApiError) as refused:
        await office.flow.commit(request(changed(FEATURES, without_profiles)))
    assert refused.value.status == 500
    assert "Profiles" in refused.value.text
    assert office.states == []


@pytest.mark.parametrize(
    ("body", "code"), [(b"garbage", "commit-malformed"), (b"\xff" * 40, "commit-malformed")]
)
async def test_bytes_that_are_no_commit_are_refused_and_nothing_is_stored(
    body: bytes, code: str
) -> None:
    office = await Office.open()
    with pytest.raises(ApiError) as refused:
        await office.flow.commit(request(body))
    assert (refused.value.status, refused.value.code) == (400, code)
    assert office.states == []


async def test_an_unknown_branch_is_told_by_name() -> None:
    office = await Office.open()
    with pytest.raises(ApiError, match=r"^branch `nowhere` does not exist$") as refused:
        await office.flow.commit(request(FEATURES, BranchName("nowhere")))
    assert refused.value.status == 500


async def test_a_preview_tells_the_plan_and_changes_nothing() -> None:
    office = await Office.open()
    lines = await office.steps.preview(request(FEATURES))
    assert lines == await office.flow.commit(request(FEATURES)), (
        "what was previewed is what was done"
    )
    before = office.world.ledger.state.copy()
    assert "- release and destroy topic of Profiles" in await office.steps.preview(
        request(OPERATORS)
    )
    after = office.world.ledger.state
    assert (after.commits, after.bank.rows, after.entry_rows) == (
        before.commits,
        before.bank.rows,
        before.entry_rows,
    )


def new_version(message: services_pb2.SyncRequest) -> None:
    (dataset,) = [d for d in message.datasets if d.name == "Profiles"]
    dataset.version = 2
    for source in message.sources:
        if source.dataset == "Profiles":
            source.ds_version = 2
    for index in [*message.online_indices, *message.offline_indices]:
        if index.ds_name == "Profiles":
            index.ds_version = 2


async def test_backfill_false_refuses_what_computes_again_and_says_which() -> None:
    office = await Office.open()
    await office.flow.commit(request(FEATURES, backfill=False))
    with pytest.raises(ApiError, match="`Profiles`") as refused:
        await office.flow.commit(request(changed(FEATURES, new_version), backfill=False))
    assert (refused.value.status, refused.value.code) == (400, "backfill-needed")
    assert office.states[-1] == "rejected"
    with pytest.raises(ApiError, match="`Profiles`"):
        await office.steps.preview(request(changed(FEATURES, new_version), backfill=False))
    await office.flow.commit(request(changed(FEATURES, new_version)))
    await office.world.settle()
    office.world.check()


async def test_an_incremental_commit_adds_to_what_the_branch_has() -> None:
    office = await Office.open()
    await office.flow.commit(request(OPERATORS))
    lines = await office.flow.commit(request(FEATURES, incremental=True))
    assert lines[-1].endswith("0 released, 0 destroyed")
    version = await serving(office.world)
    both = {
        d.name
        for body in (OPERATORS, FEATURES)
        for d in build_graph(decode_sync_request(body)).datasets
    }
    assert (
        {d.name for d in version.request.datasets}
        == {d.name for d in version.catalog.datasets}
        == both
    )


def test_a_merged_request_decodes_to_the_merged_graph() -> None:
    one, two = decode_sync_request(OPERATORS), decode_sync_request(FEATURES)
    merged = merge_incremental(build_graph(one), build_graph(two))
    body = assemble_request(merged, "both", [(OPERATORS, one), (FEATURES, two)])
    again = build_graph(decode_sync_request(body))
    assert again.operators == merged.operators
    assert again.extractors == merged.extractors
    assert set(again.indices) == set(merged.indices)


async def test_an_error_before_the_commit_point_is_answered_and_everything_is_taken_back() -> None:
    office = await Office.open()
    await office.flow.commit(request(OPERATORS))
    settled = set(office.world.topics.partition_counts)

    async def refuse(topics: object) -> dict[str, str]:
        (first, *_) = topics  # type: ignore[misc]
        return {first.name: "policy"}

    office.world.topics.create = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(ApiError, match="could not be created") as failed:
        await office.flow.commit(request(FEATURES))
    assert failed.value.code == "asset-not-created"
    await office.world.settle()
    office.world.check()
    assert set(office.world.topics.partition_counts) == settled


async def test_a_first_version_with_a_parked_job_is_served_and_the_response_says_why() -> None:
    office = await Office.open()
    office.world.parked = {"Profiles: table"}
    lines = await office.flow.commit(request(FEATURES))
    assert lines[-1] == "! job `Profiles: table` is parked: bad code"


def without_readers(message: services_pb2.SyncRequest) -> None:
    for field in ("feature_sets", "features", "extractors", "online_indices", "offline_indices"):
        message.ClearField(field)  # type: ignore[arg-type]  # each is a field


async def test_a_parked_job_keeps_reads_on_the_version_before_and_the_answer_says_so() -> None:
    office = await Office.open()
    await office.flow.commit(request(changed(FEATURES, without_readers)))
    office.world.parked = {"Profiles: table"}
    began = office.flow.now()
    lines = await office.flow.commit(request(FEATURES))
    assert office.flow.now() - began < office.flow.timeout_seconds, (
        "who waits is told at once: it does not catch up by itself"
    )
    assert lines[-2] == "! job `Profiles: table` is parked: bad code"
    assert lines[-1].startswith("! the new jobs have not caught up yet")
    row = office.world.ledger.state.branch_rows[SHOP, MAIN_BRANCH]
    assert (row.target, row.serving) == ("c2", "c1")
    office.world.parked = set()
    await office.world.settle()
    office.world.check()


Run = Callable[[CommitId], Awaitable[None]]


class Silent:
    """An orchestrator that takes a commit and never says anything again."""

    def __init__(self, run: Run) -> None:
        self.started: list[tuple[CommitId, int]] = []
        self.dead = False

    async def start(self, commit: CommitId, attempt: int) -> None:
        self.started.append((commit, attempt))

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        return not self.dead


async def test_a_commit_that_takes_longer_than_the_client_waits_is_told_to_be_under_way() -> None:
    office = await Office.open(Silent)
    with pytest.raises(ApiError, match="still running") as late:
        await office.flow.commit(request(FEATURES))
    assert late.value.status == 504
    with pytest.raises(ApiError, match="still running"):
        await office.flow.commit(request(FEATURES))
    assert office.orchestrator.started == [("c1", 1)], (
        "sending it again goes on waiting for the same run"
    )  # type: ignore[attr-defined]


async def test_recovery_leaves_a_commit_alone_whose_run_waits_long_for_a_worker() -> None:
    office = await Office.open(Silent)
    office.steps.context = replace(
        office.steps.context, timings=LedgerTimings(lease_ms=Millis(5_000))
    )
    waiting = asyncio.create_task(office.flow.commit(request(FEATURES)))
    while office.states != ["received"]:
        await asyncio.sleep(0)
    while not waiting.done():
        await reconcile(office.world.context())
        assert office.states == ["received"] or waiting.done()
        await asyncio.sleep(0.002)
    with pytest.raises(ApiError, match="still running"):
        await waiting
    await office.world.settle()
    assert office.states == ["rejected"], "nobody waits any more"


async def test_the_same_commit_sent_twice_at_once_is_started_once() -> None:
    office = await Office.open(Silent)
    answers = await asyncio.gather(
        *(office.flow.commit(request(FEATURES)) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(answer, ApiError) for answer in answers)
    assert office.orchestrator.started == [("c1", 1)]  # type: ignore[attr-defined]


async def test_a_run_that_died_without_a_word_is_taken_back_and_can_be_sent_again() -> None:
    office = await Office.open(Silent)
    office.orchestrator.dead = True  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="rolled back"):
        await office.flow.commit(request(FEATURES))
    assert office.states == ["rejected"]
    office.orchestrator.dead = False  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="still running"):
        await office.flow.commit(request(FEATURES))
    assert office.orchestrator.started == [("c1", 1), ("c2", 1)]  # type: ignore[attr-defined]


class Away(Silent):
    async def start(self, commit: CommitId, attempt: int) -> None:
        raise ApiError(503, "orchestrator-unavailable", "Airflow is away")


async def test_an_orchestrator_that_is_away_leaves_nothing_behind() -> None:
    office = await Office.open(Away)
    with pytest.raises(ApiError, match="Airflow is away"):
        await office.flow.commit(request(FEATURES))
    assert office.states == ["rejected"]
    office.world.check()


async def test_a_database_that_goes_away_while_a_client_waits_does_not_end_the_wait() -> None:
    office = await Office.open()
    inner, calls = office.world.ledger.run, 0

    async def flickering(work: object) -> object:
        nonlocal calls
        calls += 1
        if calls in (6, 7, 12):
            raise ConnectionsError("away")
        return await inner(work)  # type: ignore[arg-type]

    office.world.ledger.run = flickering  # type: ignore[method-assign,assignment]
    with suppress(ApiError):
        await office.flow.commit(request(FEATURES))
    office.world.ledger.run = inner  # type: ignore[method-assign]
    await office.world.settle()
    office.world.check()
    assert not office.steps._validated, "nothing is kept of a commit that was answered"


async def test_a_step_may_be_run_again_at_any_time() -> None:
    office = await Office.open(Silent)
    waiting = asyncio.create_task(office.flow.commit(request(FEATURES)))
    while office.states != ["received"]:
        await asyncio.sleep(0)
    id_ = CommitId("c1")
    for step in (
        office.steps.compile_commit,
        partial(create_assets, office.steps.context),
        partial(switch, office.steps.context),
        office.steps.destroy_assets,
    ):
        first = await step(id_)
        assert (await step(id_)).state == first.state
    assert (await office.steps.undo(id_)).state == "finished", (
        "after the commit point there is nothing to undo"
    )
    for step in (
        office.steps.compile_commit,
        partial(create_assets, office.steps.context),
        partial(switch, office.steps.context),
        office.steps.destroy_assets,
    ):
        assert (await step(id_)).state == "finished"
    assert (await waiting)[-1].startswith("assets: ")
    office.world.check()


async def test_steps_out_of_order_are_refused() -> None:
    office = await Office.open(Silent)
    await office.world.receive("c1")
    with pytest.raises(ApiError, match="Run compile and create first"):
        await switch(office.steps.context, CommitId("c1"))
    with pytest.raises(ApiError, match="does not exist"):
        await switch(office.steps.context, CommitId("nobody"))
