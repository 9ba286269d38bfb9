"""Seeds of the simulated control plane that CI runs; `make sim WORLD=commit SEEDS=3000` runs more.

Each deliberate defect is caught by the recorded seed, which is tried first, or by another one; a
defect that no seed can show would prove that the world is too tame.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from fennel_core.blueprints import source_contents
from fennel_core.definition import commit_service, commit_steps
from fennel_core.ledger import destruction, switching, transitions, warming
from fennel_core.ledger.commit_failure import reject_commit
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.memory import MemoryLedgerTransaction
from fennel_core.ledger.readiness import (
    Judgement,
    NextRound,
    Ready,
    WarmingJobs,
    judge_readiness,
)
from fennel_core.ledger.reconcile import Reconciler, ReconcileResult, nothing_runs
from fennel_core.ledger.reservation import reserve
from fennel_core.ledger.store import CatchUp, Commit, LedgerTransaction, PartitionProgress
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import AssetId, CommitId, Millis, WorkspaceId
from tests.sim.commit import world
from tests.sim.commit.laws import LawViolated
from tests.sim.commit.world import quiet, simulate

SEEDS = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_faults_commits_settle_and_no_law_is_broken(seed: int) -> None:
    simulate(seed)


def test_a_seed_produces_the_same_events_in_every_process() -> None:
    call = [sys.executable, "-m", "tests.sim.run", "--world", "commit", "--first", "4"]
    first, second = (
        subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [*call, "--seeds", "1", "--events"],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hashing},
        ).stdout.partition("seeds hold")[0]
        for hashing in "12"
    )
    assert first == second
    assert "is now c" in first, "the laws of versions were checked on something"


def outcome(seed: int) -> str:
    """Return which law a seed breaks."""
    try:
        simulate(seed)
    except LawViolated as broken:
        return str(broken).partition("\n")[0]
    return "nothing"


def is_caught(law: str, first: int) -> bool:
    """Return whether a seed breaks this law: the recorded one, or another if the world changed."""
    return any(law in outcome(seed) for seed in (first, *range(SEEDS)))


def test_definitions_that_are_committed_on_another_version_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def on_any_version(
        context: LedgerContext, id_: CommitId, *values: Any, base: object, **options: Any
    ) -> Any:
        async def target(tx: LedgerTransaction) -> CommitId | None:
            row = await tx.commit(id_)
            assert row is not None
            branch = await tx.branch(row.workspace, row.branch)
            return None if branch is None else branch.target

        now = await context.ledger.run(target)
        return await reserve(context, id_, *values, base=now, **options)

    monkeypatch.setattr(commit_steps, "reserve", on_any_version)
    assert is_caught("lost what", first=1)


def test_saying_that_nothing_changed_without_looking_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def without_looking(context: LedgerContext, id_: CommitId, error: ApiError) -> Commit:
        await reject_commit(context, id_, error)
        raise error

    monkeypatch.setattr(commit_service, "reject_commit", without_looking)
    assert is_caught("answered `nothing changed`", first=6)


def test_a_shared_content_that_gets_other_sources_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unchecked(*_: object) -> None:
        return None

    monkeypatch.setattr(source_contents, "_is_sole", lambda *_: True)
    monkeypatch.setattr(switching, "check_contents_at_switch", unchecked)
    assert is_caught("with other sources", first=17)


def test_a_dataset_that_loses_its_rows_when_a_source_is_added_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_contents, "_is_sole", lambda *_: False)
    assert is_caught("dropped the rows", first=0)


def test_a_lease_that_is_not_kept_while_a_step_works_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def not_kept(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(commit_steps, "keep_lease", not_kept)
    assert is_caught("was undone while it was running", first=3)


def test_a_reconcile_that_does_not_ask_for_queued_runs_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "run_check", lambda _: nothing_runs)
    assert is_caught("was undone while it was running", first=1)


def test_a_pass_that_ends_at_the_first_item_that_fails_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def one_after_the_other(self: Reconciler, **_: bool) -> ReconcileResult:
        result = ReconcileResult()
        for item in itertools.chain.from_iterable(await self._items()):
            try:
                await self._work(item, result)
            except Exception:
                await self._give_back(item)
                raise
        return result

    monkeypatch.setattr(Reconciler, "run_pass", one_after_the_other)
    assert is_caught("not settled", first=6)


def test_reads_that_move_before_the_whole_chain_has_caught_up_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge_all_layers_at_once(
        jobs: WarmingJobs, catch_up: CatchUp, progress: Collection[PartitionProgress]
    ) -> Judgement:
        flat = tuple(job for layer in jobs.layers for job in layer)
        judged = judge_readiness(replace(jobs, layers=(flat,)), catch_up, progress)
        return Ready() if isinstance(judged, NextRound) else judged

    monkeypatch.setattr(warming, "judge_readiness", judge_all_layers_at_once)
    assert is_caught("miss", first=7)


def test_a_revived_job_that_stays_paused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: MemoryLedgerTransaction, ids: Iterable[AssetId]) -> None:
        for id_ in ids:
            self.grace.pop(id_, None)

    monkeypatch.setattr(MemoryLedgerTransaction, "end_grace", forget)
    assert is_caught("is stopped", first=7)


def test_an_endpoint_that_is_destroyed_without_being_counted_again_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def presume(context: LedgerContext, workspace: WorkspaceId, _: object) -> None:
        async def empty(tx: LedgerTransaction) -> None:
            await tx.found_empty(await tx.presumed_empty(workspace, Millis(0)))

        await context.ledger.run(empty)

    monkeypatch.setattr(destruction, "_check_presumed_empty", presume)
    assert is_caught("no user confirmed it", first=38)


def test_an_endpoint_that_is_destroyed_at_once_without_a_grace_period_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to_keep = transitions._endpoints_to_keep

    async def with_a_period(tx: LedgerTransaction, *values: Any) -> frozenset[AssetId]:
        return await to_keep(tx, *values) if tx.destroy_grace_ms else frozenset()

    monkeypatch.setattr(transitions, "_endpoints_to_keep", with_a_period)
    assert is_caught("no user confirmed it", first=143)
