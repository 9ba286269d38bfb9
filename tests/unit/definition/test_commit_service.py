"""A commit as its client sees it: one request, one response, for every orchestrator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.definition.lineage import BranchVersion
from fennel_core.definition.merged_request import assemble_request
from fennel_core.definition.orchestrator import InlineOrchestrator
from fennel_core.graph.entity_graph import build_graph, merge_incremental
from fennel_core.ledger.context import LedgerTimings
from fennel_core.ledger.creation import create_assets
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.reconcile import reconcile
from fennel_core.ledger.switching import switch
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId, Millis
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.gen import services_pb2
from tests.support.definition_world import CommitServerWorld, changed, recorded, request
from tests.support.ledger_world import SHOP, World
from tests.support.polling import eventually

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


async def test_a_commit_returns_its_plan_after_reads_have_moved() -> None:
    server = await CommitServerWorld.open()
    lines = (await server.commits.commit(request(FEATURES))).lines
    assert "+ create job of Profiles: table (dataset Profiles is new)" in lines
    assert lines[-1].startswith("assets: ")
    version = await serving(server.world)
    assert {d.name for d in version.catalog.datasets} == {"Profiles", "Items"}
    assert all(
        topic in server.world.topics.partition_counts
        for d in version.catalog.datasets
        if (topic := d.topic)
    )
    await server.world.settle()
    server.world.check()


async def test_the_same_commit_sent_twice_is_one_commit() -> None:
    server = await CommitServerWorld.open()
    nothing = ("nothing to do: the branch has these definitions since commit `c1`",)
    plan = (await server.steps.preview(request(FEATURES))).lines
    responses = [
        report.lines
        for report in await asyncio.gather(
            *(server.commits.commit(request(FEATURES)) for _ in range(3))
        )
    ]
    assert plan in responses
    assert set(responses) <= {plan, nothing}, (
        "requests during the commit wait for it, later ones have nothing to do"
    )
    assert (await server.commits.commit(request(FEATURES))).lines == nothing
    assert len(server.states) == 1


async def test_going_back_to_earlier_definitions_is_a_new_commit() -> None:
    server = await CommitServerWorld.open()
    for body in (FEATURES, OPERATORS, FEATURES):
        await server.commits.commit(request(body))
    assert len(server.states) == 3
    assert {d.name for d in (await serving(server.world)).catalog.datasets} == {"Profiles", "Items"}
    await server.world.settle()
    server.world.check()


async def test_a_commit_that_changes_nothing_creates_nothing() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(FEATURES))
    notice, totals = (await server.commits.commit(request(changed(FEATURES, renamed)))).lines
    assert notice.startswith("! dataset `Items` has no online index")
    assert totals.startswith("assets: 0 created, ")
    assert totals.endswith("0 adopted, 0 released, 0 destroyed")


def without_profiles(message: services_pb2.SyncRequest) -> None:
    kept = [d for d in message.datasets if d.name != "Profiles"]
    del message.datasets[:]
    message.datasets.extend(kept)


async def test_all_problems_are_reported_at_once_and_nothing_is_stored() -> None:
    server = await CommitServerWorld.open()
    with pytest.raises(ApiError) as refused:
        await server.commits.commit(request(changed(FEATURES, without_profiles)))
    assert refused.value.status == 500
    assert "Profiles" in refused.value.text
    assert server.states == []


@pytest.mark.parametrize(
    ("body", "code"), [(b"garbage", "commit-malformed"), (b"\xff" * 40, "commit-malformed")]
)
async def test_a_malformed_commit_is_refused_and_not_stored(body: bytes, code: str) -> None:
    server = await CommitServerWorld.open()
    with pytest.raises(ApiError) as refused:
        await server.commits.commit(request(body))
    assert (refused.value.status, refused.value.code) == (400, code)
    assert server.states == []


async def test_an_unknown_branch_is_named_in_the_error() -> None:
    server = await CommitServerWorld.open()
    with pytest.raises(ApiError, match=r"^branch `nowhere` does not exist$") as refused:
        await server.commits.commit(request(FEATURES, BranchName("nowhere")))
    assert refused.value.status == 500


async def test_a_preview_returns_the_plan_and_changes_nothing() -> None:
    server = await CommitServerWorld.open()
    lines = (await server.steps.preview(request(FEATURES))).lines
    assert lines == (await server.commits.commit(request(FEATURES))).lines, (
        "what was previewed is what was done"
    )
    await eventually(
        lambda: all(
            row.state is CommitState.FINISHED for row in server.world.ledger.state.commits.values()
        ),
        what="the commit goes on after its response",
    )
    before = server.world.ledger.state.copy()
    assert (
        "- release and destroy topic of Profiles (dataset Profiles was removed)"
        in (await server.steps.preview(request(OPERATORS))).lines
    )
    after = server.world.ledger.state
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


async def test_backfill_false_rejects_recomputation_and_names_the_assets() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(FEATURES, backfill=False))
    with pytest.raises(ApiError, match="`Profiles`") as refused:
        await server.commits.commit(request(changed(FEATURES, new_version), backfill=False))
    assert (refused.value.status, refused.value.code) == (400, "backfill-needed")
    assert server.states[-1] == "rejected"
    with pytest.raises(ApiError, match="`Profiles`"):
        await server.steps.preview(request(changed(FEATURES, new_version), backfill=False))
    await server.commits.commit(request(changed(FEATURES, new_version)))
    await server.world.settle()
    server.world.check()


async def test_an_incremental_commit_adds_to_what_the_branch_has() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(OPERATORS))
    lines = (await server.commits.commit(request(FEATURES, incremental=True))).lines
    assert lines[-1].endswith("0 released, 0 destroyed")
    version = await serving(server.world)
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


async def test_an_error_before_the_commit_point_is_returned_and_undoes_the_commit() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(OPERATORS))
    settled = set(server.world.topics.partition_counts)

    async def refuse(topics: object) -> dict[str, str]:
        (first, *_) = topics
        return {first.name: "policy"}

    server.world.topics.create = refuse
    with pytest.raises(ApiError, match="could not be created") as failed:
        await server.commits.commit(request(FEATURES))
    assert failed.value.code == "asset-not-created"
    await server.world.settle()
    server.world.check()
    assert set(server.world.topics.partition_counts) == settled


async def test_a_first_version_with_a_parked_job_serves_reads_and_reports_the_job() -> None:
    server = await CommitServerWorld.open()
    server.world.engines.parked = {"Profiles: table"}
    lines = (await server.commits.commit(request(FEATURES))).lines
    assert lines[-1] == "! job `Profiles: table` is parked: bad code"


def without_readers(message: services_pb2.SyncRequest) -> None:
    for field in ("feature_sets", "features", "extractors", "online_indices", "offline_indices"):
        message.ClearField(field)  # type: ignore[arg-type]  # each is a field


async def test_a_parked_job_keeps_reads_on_the_previous_version_and_is_reported() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(changed(FEATURES, without_readers)))
    server.world.engines.parked = {"Profiles: table"}
    began = server.commits.now()
    lines = (await server.commits.commit(request(FEATURES))).lines
    assert server.commits.now() - began < server.commits.timeout_seconds, (
        "the client gets the response at once: a parked job does not catch up by itself"
    )
    assert lines[-2] == "! job `Profiles: table` is parked: bad code"
    assert lines[-1].startswith("! the new jobs have not caught up yet")
    row = server.world.ledger.state.branch_rows[SHOP, MAIN_BRANCH]
    assert (row.target, row.serving) == ("c2", "c1")
    server.world.engines.parked = {"Items: table"}
    await server.world.reconcile_once()
    assert [job.title for job in server.world.ledger.state.commits["c2"].stuck] == [
        "Items: table"
    ], "a job that has recovered is not listed any more"
    server.world.engines.parked = set()
    await server.world.settle()
    assert server.world.ledger.state.commits["c2"].stuck == ()
    server.world.check()


Run = Callable[[CommitId], Awaitable[None]]


class SilentOrchestrator:
    """An orchestrator that accepts commits and does not run them."""

    def __init__(self, run: Run) -> None:
        self.started: list[tuple[CommitId, int]] = []
        self.dead = False

    async def start(self, commit: CommitId, attempt: int) -> None:
        self.started.append((commit, attempt))

    async def alive(self, commit: CommitId, attempt: int) -> bool:
        return not self.dead


async def test_a_commit_that_outlasts_the_client_is_reported_as_still_running() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    with pytest.raises(ApiError, match="still running") as late:
        await server.commits.commit(request(FEATURES))
    assert late.value.status == 504
    with pytest.raises(ApiError, match="still running"):
        await server.commits.commit(request(FEATURES))
    assert server.orchestrator.started == [("c1", 1)], "sending it again waits for the same run"


async def test_reads_move_before_the_orchestrator_begins_its_task() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    waiting = asyncio.create_task(server.commits.commit(request(FEATURES)))
    await eventually(lambda: server.states == ["received"], what="the commit is stored")
    commit = CommitId("c1")
    await server.steps.compile_commit(commit)
    await server.steps.create_assets(commit)
    await server.steps.switch(commit)
    await waiting
    assert server.states == ["serving"], "no task has warmed the commit"
    assert (await server.steps.warm(commit)).state is CommitState.SERVING
    await server.steps.destroy_assets(commit)
    await server.world.settle()
    server.world.check()


async def test_a_failure_of_warming_beside_the_orchestrator_is_no_failure_of_the_commit() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    failed: list[CommitId] = []

    async def fail(commit: CommitId) -> None:
        failed.append(commit)
        raise SystemUnavailable("Postgres: connection refused")

    server.commits = replace(server.commits, warming=InlineOrchestrator(fail))
    waiting = asyncio.create_task(server.commits.commit(request(FEATURES)))
    await eventually(lambda: server.states == ["received"], what="the commit is stored")
    commit = CommitId("c1")
    await server.steps.compile_commit(commit)
    await server.steps.create_assets(commit)
    await server.steps.switch(commit)
    await eventually(lambda: failed == [commit], what="the server has tried to warm the commit")
    await server.steps.warm(commit)
    assert (await waiting).lines
    assert failed == [commit], "the orchestrator's own task does it, and reconcile after that"
    await server.world.settle()
    server.world.check()


async def test_a_waiting_server_asks_the_orchestrator_every_five_seconds() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    asked: list[float] = []
    alive = server.orchestrator.alive

    async def counted(commit: CommitId, attempt: int) -> bool:
        asked.append(server.world.now_ms / 1000)
        return await alive(commit, attempt)

    server.orchestrator.alive = counted
    began = server.world.now_ms / 1000
    with pytest.raises(ApiError, match="still running"):
        await server.commits.commit(request(FEATURES))
    assert [round(at - began) for at in asked[:3]] == [5, 10, 15]
    assert len(asked) <= 4, "the commit ends its wait after 20 s"


async def test_reconcile_leaves_a_commit_alone_whose_run_is_queued() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    server.steps.context = replace(
        server.steps.context, timings=LedgerTimings(lease_ms=Millis(5_000))
    )
    waiting = asyncio.create_task(server.commits.commit(request(FEATURES)))
    while server.states != ["received"]:
        await asyncio.sleep(0)
    while not waiting.done():
        await reconcile(server.world.context())
        assert server.states == ["received"] or waiting.done()
        await asyncio.sleep(0.002)  # a pause between two passes of the reconciler
    with pytest.raises(ApiError, match="still running"):
        await waiting
    await server.world.settle()
    assert server.states == ["rejected"], "no client waits for it now"


async def test_the_same_commit_sent_twice_at_once_is_started_once() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    responses = await asyncio.gather(
        *(server.commits.commit(request(FEATURES)) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(answer, ApiError) for answer in responses)
    assert server.orchestrator.started == [("c1", 1)]


async def test_a_run_that_died_silently_is_undone_and_can_be_sent_again() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    server.orchestrator.dead = True
    with pytest.raises(ApiError, match="rolled back"):
        await server.commits.commit(request(FEATURES))
    assert server.states == ["rejected"]
    server.orchestrator.dead = False
    with pytest.raises(ApiError, match="still running"):
        await server.commits.commit(request(FEATURES))
    assert server.orchestrator.started == [("c1", 1), ("c2", 1)]


class UnavailableOrchestrator(SilentOrchestrator):
    async def start(self, commit: CommitId, attempt: int) -> None:
        raise ApiError(503, "orchestrator-unavailable", "Airflow is unreachable")


async def test_an_unavailable_orchestrator_rejects_the_commit_and_leaves_nothing() -> None:
    server = await CommitServerWorld.open(UnavailableOrchestrator)
    with pytest.raises(ApiError, match="Airflow is unreachable"):
        await server.commits.commit(request(FEATURES))
    assert server.states == ["rejected"]
    server.world.check()


async def test_an_unavailable_database_does_not_end_the_wait_for_a_commit() -> None:
    server = await CommitServerWorld.open()
    inner, calls = server.world.ledger.run, 0

    async def flickering(work: object) -> object:
        nonlocal calls
        calls += 1
        if calls in (6, 7, 12):
            raise ConnectionsError("unavailable")
        return await inner(work)

    server.world.ledger.run = flickering
    with suppress(ApiError):
        await server.commits.commit(request(FEATURES))
    server.world.ledger.run = inner
    await server.world.settle()
    server.world.check()
    assert not server.steps._checked, "the definitions of a finished commit are forgotten"


async def test_a_step_may_be_run_again_at_any_time() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    waiting = asyncio.create_task(server.commits.commit(request(FEATURES)))
    while server.states != ["received"]:
        await asyncio.sleep(0)
    id_ = CommitId("c1")
    for step in (
        server.steps.compile_commit,
        partial(create_assets, server.steps.context),
        partial(switch, server.steps.context),
        server.steps.warm,
        server.steps.destroy_assets,
    ):
        first = await step(id_)
        assert (await step(id_)).state == first.state
    assert (await server.steps.undo(id_)).state == "finished", (
        "after the commit point there is nothing to undo"
    )
    for step in (
        server.steps.compile_commit,
        partial(create_assets, server.steps.context),
        partial(switch, server.steps.context),
        server.steps.warm,
        server.steps.destroy_assets,
    ):
        assert (await step(id_)).state == "finished"
    assert (await waiting).lines[-1].startswith("assets: ")
    server.world.check()


async def test_steps_out_of_order_are_refused() -> None:
    server = await CommitServerWorld.open(SilentOrchestrator)
    await server.world.receive("c1")
    with pytest.raises(ApiError, match="Run compile and create first"):
        await switch(server.steps.context, CommitId("c1"))
    with pytest.raises(ApiError, match="does not exist"):
        await switch(server.steps.context, CommitId("nobody"))


def without(*names: str) -> Callable[[services_pb2.SyncRequest], None]:
    """Return a change that keeps only datasets, without those of `names`."""

    def change(message: services_pb2.SyncRequest) -> None:
        without_readers(message)
        for field in ("datasets", "sources"):
            items = getattr(message, field)
            kept = [i for i in items if (i.name if field == "datasets" else i.dataset) not in names]
            del items[:]
            items.extend(kept)

    return change


PROFILES, ITEMS = changed(FEATURES, without("Items")), changed(FEATURES, without("Profiles"))


async def commit_during_another(
    server: CommitServerWorld, body: bytes, other: bytes, *, incremental: bool
) -> tuple[str, ...]:
    """Commit `body` while it is validated against a branch that `other` then changes."""
    check = server.steps.checker.check

    async def slow(sent: object) -> object:
        result = await check(sent)
        server.steps.checker.check = check
        await server.commits.commit(request(other, incremental=incremental))
        return result

    server.steps.checker.check = slow
    return (await server.commits.commit(request(body, incremental=incremental))).lines


async def test_an_incremental_commit_keeps_what_was_committed_while_it_was_validated() -> None:
    server = await CommitServerWorld.open()
    lines = await commit_during_another(server, PROFILES, ITEMS, incremental=True)
    assert any(line.startswith("! branch `main` changed while") for line in lines)
    version = await serving(server.world)
    assert {d.name for d in version.request.datasets} == {"Profiles", "Items"}
    await server.world.settle()
    server.world.check()


async def test_a_full_commit_does_not_remove_what_was_committed_while_it_was_validated() -> None:
    server = await CommitServerWorld.open()
    with pytest.raises(ApiError, match="dataset `Items`, which this commit removes") as refused:
        await commit_during_another(server, PROFILES, ITEMS, incremental=False)
    assert (refused.value.status, refused.value.code) == (409, "commit-conflict")
    assert {d.name for d in (await serving(server.world)).request.datasets} == {"Items"}
    await server.commits.commit(request(PROFILES))
    assert {d.name for d in (await serving(server.world)).request.datasets} == {"Profiles"}, (
        "the user has seen the change and sends the commit again"
    )


async def test_a_rebased_commit_is_validated_against_the_version_it_replaces() -> None:
    server = await CommitServerWorld.open()

    def next_version(message: services_pb2.SyncRequest) -> None:
        new_version(message)
        without_readers(message)

    await server.commits.commit(request(ITEMS))
    with pytest.raises(ApiError, match="another definition of dataset `Profiles`"):
        await commit_during_another(
            server, changed(FEATURES, without()), changed(FEATURES, next_version), incremental=False
        )


async def test_a_commit_whose_branch_is_busy_is_returned_before_it_is_validated_again() -> None:
    server = await CommitServerWorld.open()
    world, steps = server.world, server.steps
    first, second = await world.receive("c1"), await world.receive("c2")
    await steps.compile_commit(first)
    steps.checker.check_stored = None  # type: ignore[method-assign,assignment]  # not called
    assert (await steps.compile_commit(second, 0.0)).state == "received"
    limit = steps.context.timings.branch_wait_seconds
    assert (await steps.compile_commit(second, limit - 1)).state == "received"
    with pytest.raises(ApiError, match="commit `c1` of branch `main` has not been finished"):
        await steps.compile_commit(second, limit)
    assert server.states == ["reserved", "rejected"]


class LostResponse(SilentOrchestrator):
    """An orchestrator that runs the commit although its response is lost."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._run = run

    async def start(self, commit: CommitId, attempt: int) -> None:
        await self._run(commit)
        raise ApiError(503, "orchestrator-unavailable", "Airflow is unreachable")


async def test_a_commit_whose_start_was_not_confirmed_is_waited_for() -> None:
    server = await CommitServerWorld.open(LostResponse)
    lines = (await server.commits.commit(request(FEATURES))).lines
    assert lines[-1].startswith("assets: ")
    assert server.states == ["finished"]


async def test_an_unexpected_error_of_a_step_is_the_reason_in_the_answer_and_in_the_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await CommitServerWorld.open()

    def broken(*_: object) -> None:
        raise AssertionError("right side of a join is a dataset; postgresql://me:hunter2@host/db")

    monkeypatch.setattr(
        "fennel_core.definition.commit_steps.compile_definitions",
        broken,
    )
    with pytest.raises(ApiError, match="AssertionError: right side of a join is") as failed:
        await server.commits.commit(request(FEATURES))
    assert (failed.value.status, failed.value.code) == (500, "commit-step-failed")
    assert "hunter2" not in failed.value.text
    (row,) = server.world.ledger.state.commits.values()
    assert row.error is not None
    assert row.error.text == failed.value.text
